"""Rendering of a reproduced table as Markdown, as JSON and as plots of its recall curves."""

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
from limner.apps.reproduce.tables import PublishedRow, PublishedTable, TableColumn
from limner.evaluation.comparison import DAGGERS
from limner.files import write_text
from limner.plots import figures
from limner.progress import StageProgress
from limner.runs.records import Point
from limner.storage.json_text import to_json

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
    """The rows with a result, and those without a recipe."""
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
    return {
        "table": table.name,
        "collection": Path(first.collection).name,
        "fingerprint": first.fingerprint,
        "rows": [
            {
                "row": row.name,
                "other_authors": row.other_authors,
                **(_plain_results(row, reproduced[row.name], comparison) if row.name in reproduced else {}),
                "published": {dataset: dict(values) for dataset, values in row.published.items()},
                "published_marks": {dataset: dict(marks) for dataset, marks in row.published_marks.items()},
            }
            for row in _visible_rows(table, reproduced)
        ],
    }


def _plain_results(row: PublishedRow, seeds: Sequence[RowResult], comparison: TableComparison) -> dict[str, Any]:
    first = seeds[0]
    return {
        "run": first.run,
        "recipe_folder": first.recipe_folder,
        "overrides": first.overrides,
        "image_control": first.image_control,
        "budget": first.budget,
        "initialised_from": None if first.initialised_from is None else first.initialised_from.model_dump(),
        "corpus": None if first.corpus is None else first.corpus.model_dump(),
        "training_seconds": round(sum(result.seconds for result in seeds), 1),
        "scores": [
            {"name": score.name, "value": mean.value, "std": mean.std, "signature": score.signature}
            for score in first.scores.values()
            if (mean := mean_score(seeds, score.name)) is not None
        ],
        "seeds": [
            {
                "seed": result.seed,
                "run": result.run,
                "scores": {name: score.value for name, score in result.scores.items()},
            }
            for result in seeds
        ],
        "contrasts": [
            {**contrast.model_dump(exclude={"system"}), "level": row.level}
            for of_baseline in contrasts(row, comparison).values()
            for contrast in of_baseline
        ],
    }


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
