"""Rendering of published tables: their list, a reproduced table as Markdown and JSON, plots of its curves."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from limner.apps.reproduce.results import (
    Reproduction,
    RowResult,
    TableComparison,
    by_row,
    compare_rows,
    contrasts,
    mean_score,
    significance_marks,
)
from limner.apps.reproduce.tables import (
    PAPERS,
    PropertyRow,
    PropertyTable,
    PublishedRow,
    PublishedTable,
    TableColumn,
    find_table,
    property_tables,
    published_tables,
    read_paper,
)
from limner.data.collection import Collection
from limner.errors import CollectionError, SettingsError
from limner.evaluation.comparison import DAGGERS
from limner.files import write_text
from limner.models.mrnn import MRNNSettings
from limner.models.show_and_tell import ShowAndTellSettings
from limner.plots import figures
from limner.progress import StageProgress
from limner.runs.evaluations import Point
from limner.runs.recipe import load_recipe
from limner.storage.json_text import to_json

HEADINGS = {
    (True, False): "rows",
    (True, True): "rows, systems of other authors",
    (False, False): "published only: the authors' own, without a recipe",
    (False, True): "published only: systems of other authors",
}
"""Headings of rows by whether they have a recipe, and whether they are of other authors."""

DATA_OF_PAPERS = {
    "Attributes": "Attributes (no reader)",
    "IAPR TC-12": "IAPR TC-12 ('limner import iapr SOURCE COLLECTION --descriptions whole')",
    "Multi30k": "Multi30k ('limner import multi30k SOURCE COLLECTION')",
}
"""Data sets, and the commands that import them, of tables whose rows have the same recipe for any collection."""
LANGUAGES = {"de": "German", "en": "English"}


def list_tables(name: str | None) -> dict[str, Any]:
    """List all tables and figures, or the table of a name, as plain values for JSON."""
    everything: dict[str, PublishedTable | PropertyTable] = {**published_tables(), **property_tables()}
    if name is not None:
        return {"tables": [_entry(everything[name] if name in everything else find_table(name))], "figures": []}
    figures = [{"paper": paper, **figure.model_dump()} for paper in PAPERS for figure in read_paper(paper).figures]
    return {"tables": [_entry(everything[key]) for key in sorted(everything)], "figures": figures}


def listing_text(listing: dict[str, Any]) -> str:
    """Render the tables with their data, rows and published scores, then the figures with their commands."""
    lines = []
    for table in listing["tables"]:
        lines += [f"{table['table']}: {table['title']}", f"  data: {table['data']}"]
        lines.append(f"  published scores: {', '.join(table['columns']) or 'none published'}")
        for kind, heading in HEADINGS.items():
            rows = [row for row in table["rows"] if (row["recipe"] is not None, row["other_authors"]) == kind]
            lines += [f"  {heading}:", *(f"    {_line(row)}" for row in rows)] if rows else []
    for figure in listing["figures"]:
        lines.append(f"{figure['paper']}, {figure['number']}: {figure['title']}")
        lines += [f"    {command}" for command in figure["commands"]]
        lines += [f"  {figure['note']}"] if figure["note"] else []
    return "\n".join(lines)


def open_collection(table: PublishedTable, path: Path | None) -> Collection:
    """Open the collection of a table."""
    if path is None:
        raise SettingsError(f"{table.name}: expected --collection, the folder of {required_data(table)}")
    try:
        return Collection.open(path)
    except CollectionError as error:
        raise CollectionError(f"{error}; {table.name} needs {required_data(table)}") from None


def required_data(table: PublishedTable) -> str:
    """The data of the paper with the commands that import it, and the other data that the rows can be trained on."""
    if table.trained_on:
        paper = " or ".join(f"{dataset.name} ('limner import {dataset.command}')" for dataset in table.trained_on)
        keys = " or ".join(dataset.key for dataset in table.trained_on)
        return f"{paper}; or any other collection with --dataset {keys}"
    paper = " or ".join(DATA_OF_PAPERS.get(name, name) for name in table.datasets)
    if table.reverse is not None:
        paper = paper.replace("COLLECTION')", "COLLECTION', both tasks for rows with M30kC)")
    row = next(row for row in table.rows if row.recipe is not None)
    data = load_recipe(f"{table.recipes}/{row.recipe}", list(row.changes)).data
    languages = sorted(LANGUAGES.get(lang, lang) for lang in (data.source_lang, data.lang) if lang is not None)
    content = f"images and {languages[0]} sentences"
    if data.source_lang is not None:
        content = f"{' and '.join(languages)} sentence pairs, and images for rows with features"
    return f"{paper}; or any other collection with {content}" if paper else f"a collection with {content}"


def properties_text(table: PropertyTable) -> str:
    """Render the properties of our recipes beside the published properties as Markdown."""
    head = [*table.columns, *(f"{column}, published" for column in table.columns)]
    lines = [f"| | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for row in table.rows:
        name = f"{row.name} (other authors)" if row.other_authors else row.name
        lines.append(f"| {' | '.join((name, *_properties_of(row), *row.published))} |")
    return "\n".join([f"# {table.title}", "", *lines, "", table.notes, ""])


def properties_plain(table: PropertyTable) -> dict[str, Any]:
    """Return the properties of our recipes and the published properties as plain values for JSON."""
    properties = [row.model_dump(mode="json") | {"properties": list(_properties_of(row))} for row in table.rows]
    rows = [{"row": values.pop("name"), **values} for values in properties]
    return {"table": table.name, "columns": list(table.columns), "rows": rows}


def _properties_of(row: PropertyRow) -> tuple[str, str]:
    """Size of the recurrent layer of the row's recipe, and whether it is an LSTM."""
    if row.recipe is None:
        return "–", "–"
    model = load_recipe(row.recipe, []).model
    assert isinstance(model, MRNNSettings | ShowAndTellSettings), "rows with a recipe are of these models"
    return str(model.hidden_dim), "Yes" if model.cell is not None and model.cell.name == "lstm" else "No"


def _entry(table: PublishedTable | PropertyTable) -> dict[str, Any]:
    """A table as plain values: its rows with their requirements and published scores."""
    rows: list[dict[str, Any]] = [
        {"row": row.name, "other_authors": row.other_authors, "recipe": row.recipe} for row in table.rows
    ]
    if isinstance(table, PropertyTable):
        data, labels = "no collection", list(table.columns)
        for entry, properties in zip(rows, table.rows, strict=True):
            entry |= {"needs": [], "published": {"": list(properties.published)}}
    else:
        data, labels = required_data(table), [column.label for column in table.published_columns]
        for entry, row in zip(rows, table.rows, strict=True):
            cells = {
                name: [row.published_cell(name, column) for column in table.published_columns] for name in row.published
            }
            entry |= {"needs": _requirements(row, table), "published": cells}
    return {"table": table.name, "title": table.title, "data": data, "columns": labels, "rows": rows}


def _requirements(row: PublishedRow, table: PublishedTable) -> list[str]:
    """Languages, corpus and feature tables that a row needs; none if it is not trained."""
    if row.recipe is None:
        return []
    names = [row.recipe.format(dataset=dataset.key) for dataset in table.trained_on] or [row.recipe]
    recipes = [load_recipe(f"{table.recipes}/{name}", list(row.changes)) for name in names]
    data, of_recipes = recipes[0].data, dict.fromkeys(name for recipe in recipes for name in recipe.features.tables)
    needs = [] if data.source_lang is None else [f"{data.source_lang} to {data.lang}"]
    needs += [] if row.corpus is None else ["sentence pairs of --corpus"]
    if table.trained_on and row.features:  # any of them, or the features of the recipe for the data set
        return [*needs, f"features {' or '.join(dict.fromkeys((*row.features, *of_recipes)))}"]
    return [*needs, *(f"features {name}" for name in (row.features or of_recipes))]


def _line(row: dict[str, Any]) -> str:
    """A row as a separate line, because names contain commas."""
    scores = [f"{' '.join(values)}{f' ({dataset})' if dataset else ''}" for dataset, values in row["published"].items()]
    return " | ".join([row["row"], *row["needs"], *scores])


MAX_OVERRIDE_LENGTH = 16
"""Maximum length of an override's value beside the name of a row, in characters."""
RETRIEVAL_TITLES = {"text_to_image": "Text-to-image retrieval", "image_to_text": "Image-to-text retrieval"}


def write_table(
    table: PublishedTable, results: Sequence[RowResult], out: Path, on_progress: StageProgress
) -> Reproduction:
    """Compare the rows with their baselines, and write the table as Markdown and JSON and the recall curves."""
    markdown, plain = out / "table.md", out / "table.json"
    comparison = compare_rows(table, results, out, on_progress)
    write_text(markdown, to_markdown(table, results, comparison))
    write_text(plain, to_json(_to_plain(table, results, comparison), indent=1))
    figures = (*_plot_curves(results, out), *_plot_gradients(results, out))
    return Reproduction(table, tuple(results), markdown, plain, figures)


def to_markdown(table: PublishedTable, results: Sequence[RowResult], comparison: TableComparison) -> str:
    """Render the table as Markdown: our scores, then the published scores on each data set."""
    collection, reproduced = Path(results[0].evaluation.collection).name, by_row(results)
    published = table.published_columns
    head = [column.label for column in table.columns]
    head += [f"{column.label}, {dataset}" for dataset in table.datasets for column in published]
    lines = [f"| {collection} | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for row in _visible_rows(table, reproduced):
        seeds = reproduced.get(row.name, [])
        cells = [_our_cell(row, seeds, column, comparison) for column in table.columns]
        cells += [row.published_cell(dataset, column) for dataset in table.datasets for column in published]
        lines.append(f"| {_row_heading(row, seeds, table)} | {' | '.join(cells)} |")
    footer = [*_legend(table, comparison), *_signatures(table, results)]
    return "\n".join([f"# {table.title}", "", *lines, "", table.notes, "", *footer, *([""] if footer else [])])


def _visible_rows(table: PublishedTable, reproduced: Container[str]) -> list[PublishedRow]:
    """Return the rows with a result, and the rows without a recipe."""
    return [row for row in table.rows if row.recipe is None or row.name in reproduced]


def _row_heading(row: PublishedRow, seeds: Sequence[RowResult], table: PublishedTable) -> str:
    """The name of a row with its origin and its differences from the table's own recipe."""
    facts = ["other authors"] if row.other_authors else []
    for first in seeds[:1]:
        facts += [] if first.recipe_folder == table.recipes else [first.recipe_folder]
        for override in first.overrides:
            key, _, value = override.partition("=")
            facts.append(f"{key}={value if len(value) <= MAX_OVERRIDE_LENGTH else '…'}".replace("|", "\\|"))
        tables = first.recipe.get("features", {}).get("tables", [])
        facts += [f"features: {', '.join(tables)}"] if row.features and not set(tables) & set(row.features) else []
        facts += [f"initialised from {first.initialised_from.run}"] if first.initialised_from else []
        facts += [f"corpus {first.corpus.name}"] if first.corpus else []
        facts += [f"budget {first.budget:g}"] if first.budget != 1 else []
        facts += [f"{len(seeds)} seeds"] if len(seeds) > 1 else []
    return row.name + (f" ({'; '.join(facts)})" if facts else "")


def _our_cell(row: PublishedRow, seeds: Sequence[RowResult], column: TableColumn, comparison: TableComparison) -> str:
    score = mean_score(seeds, column.score)
    if score is None:
        return "–"
    std = "" if score.std is None else f" ± {column.format(score.std)}"
    return f"{column.format(score.value)}{std} {significance_marks(row, column.score, comparison)}".rstrip()


def _legend(table: PublishedTable, comparison: TableComparison) -> list[str]:
    """The meaning of the significance marks: one line for all rows with the same baselines."""
    rows_by_meaning: dict[str, list[str]] = {}
    for row in table.rows:
        compared = contrasts(row, comparison)
        meanings = [
            f"{mark} significantly better than {name}"
            for mark, name in zip(DAGGERS, row.baselines, strict=False)
            if name in compared
        ]
        if meanings:
            rows_by_meaning.setdefault(f"{', '.join(meanings)}, p < {row.level:g}", []).append(row.name)
    signatures = dict.fromkeys(pair.signature.removesuffix("|correction:none") for pair in comparison.pairs)
    correction = f"holm:{len(comparison.pairs)}" if len(comparison.pairs) > 1 else "correction:none"
    tests = [f"- test: `{signature}|{correction}`" for signature in signatures]
    return [*(f"- marks of {' / '.join(rows)}: {meaning}" for meaning, rows in rows_by_meaning.items()), *tests]


def _signatures(table: PublishedTable, results: Sequence[RowResult]) -> list[str]:
    """The signatures of the sentence metrics; a metric has several if they differ between the rows."""
    signatures = [
        (name, result.scores[name].signature) for name in table.metrics for result in results if name in result.scores
    ]
    return [f"- {name}: `{signature}`" for name, signature in dict.fromkeys(signatures)]


def _to_plain(table: PublishedTable, results: Sequence[RowResult], comparison: TableComparison) -> dict[str, Any]:
    reproduced, first = by_row(results), results[0].evaluation
    rows = []
    for row in _visible_rows(table, reproduced):
        ours = _plain_results(row, reproduced[row.name], comparison) if row.name in reproduced else {}
        printed = row.model_dump(include={"published", "published_marks"})
        rows.append({"row": row.name, "other_authors": row.other_authors, **ours, **printed})
    collection = Path(first.collection).name
    return {"table": table.name, "collection": collection, "fingerprint": first.fingerprint, "rows": rows}


def _plain_results(row: PublishedRow, seeds: Sequence[RowResult], comparison: TableComparison) -> dict[str, Any]:
    first = seeds[0]
    origin = {"run", "recipe_folder", "overrides", "image_control", "budget", "initialised_from", "corpus"}
    values = first.model_dump(include=origin)
    values["training_seconds"] = round(sum(result.seconds for result in seeds), 1)
    values["scores"] = [
        {"name": score.name, "value": mean.value, "std": mean.std, "signature": score.signature}
        for score in first.scores.values()
        if (mean := mean_score(seeds, score.name)) is not None
    ]
    values["seeds"] = []
    for result in seeds:
        scores = {name: score.value for name, score in result.scores.items()}
        values["seeds"].append({"seed": result.seed, "run": result.run, "scores": scores})
    compared = [contrast for group in contrasts(row, comparison).values() for contrast in group]
    level = {"level": row.level}
    values["contrasts"] = [contrast.model_dump(exclude={"system"}) | level for contrast in compared]
    return values


def _plot_curves(results: Iterable[RowResult], out: Path) -> list[Path]:
    """Plot the recall curves of the first seed of every row, one figure for each direction of retrieval."""
    paths = []
    for direction, title in RETRIEVAL_TITLES.items():
        curves: dict[str, tuple[Point, ...]] = {}
        chance: tuple[Point, ...] = ((0.0, 0.0), (1.0, 1.0))
        for row, seeds in by_row(results).items():
            retrieval = seeds[0].evaluation.retrieval
            if retrieval is not None and retrieval.match_curves is not None:
                curves[row] = getattr(retrieval.match_curves, direction)
                chance = getattr(retrieval.chance_curves, direction, chance)
        if curves:
            paths.append(figures.save_plot(figures.recall_curves(title, curves, chance), out / f"{direction}.png"))
    return paths


def _plot_gradients(results: Iterable[RowResult], out: Path) -> list[Path]:
    """Plot the norms of gradients of the first seed of every row that has them."""
    measured = {row: seeds[0].gradients for row, seeds in by_row(results).items()}
    curves = {norms.label(norms.curves[0], row): norms.curves[0].norms for row, norms in measured.items() if norms}
    return [figures.save_plot(figures.gradient_norms(curves), out / "gradients.png")] if curves else []
