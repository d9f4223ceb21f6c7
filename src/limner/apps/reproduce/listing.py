"""List of the published tables and figures, and the data that a table needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from limner.apps.reproduce.tables import (
    PAPERS,
    PropertyRow,
    PropertyTable,
    PublishedRow,
    PublishedTable,
    find_table,
    property_tables,
    published_tables,
    read_paper,
)
from limner.data.collection import Collection
from limner.errors import CollectionError, SettingsError
from limner.models.mrnn import MRNNSettings
from limner.models.show_and_tell import ShowAndTellSettings
from limner.runs.recipe import load_recipe

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
"""Names of the languages of the recipes."""


def list_tables(name: str | None) -> dict[str, Any]:
    """List all tables and figures, or the table of a name, as plain values for JSON.

    Raises:
        SettingsError: there is no such table.
    """
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
    """Open the collection of a table.

    Raises:
        SettingsError: no collection is given.
        CollectionError: it cannot be opened; names the data that the table needs.
    """
    if path is None:
        raise SettingsError(f"{table.name}: expected --collection, the folder of {required_data(table)}")
    try:
        return Collection.open(path)
    except CollectionError as error:
        raise CollectionError(f"{error}; {table.name} needs {required_data(table)}") from None


def required_data(table: PublishedTable) -> str:
    """The data of the paper with the commands that import it, and what else the rows can be trained on."""
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
    """Render the properties of our recipes beside the published ones as Markdown."""
    head = [*table.columns, *(f"{column}, published" for column in table.columns)]
    lines = [f"| | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for row in table.rows:
        name = f"{row.name} (other authors)" if row.other_authors else row.name
        lines.append(f"| {' | '.join((name, *_properties_of(row), *row.published))} |")
    return "\n".join([f"# {table.title}", "", *lines, "", table.notes, ""])


def properties_plain(table: PropertyTable) -> dict[str, Any]:
    """Return the properties of our recipes and the published ones as plain values for JSON."""
    rows = [
        {
            "row": row.name,
            "other_authors": row.other_authors,
            "recipe": row.recipe,
            "properties": list(_properties_of(row)),
            "published": list(row.published),
        }
        for row in table.rows
    ]
    return {"table": table.name, "columns": list(table.columns), "rows": rows}


def _properties_of(row: PropertyRow) -> tuple[str, str]:
    """Size of the recurrent layer of the row's recipe, and whether it is an LSTM."""
    if row.recipe is None:
        return "–", "–"
    model = load_recipe(row.recipe, []).model
    assert isinstance(model, MRNNSettings | ShowAndTellSettings), "rows with a recipe are of these models"
    return str(model.hidden_dim), "Yes" if model.cell is not None and model.cell.name == "lstm" else "No"


def _entry(table: PublishedTable | PropertyTable) -> dict[str, Any]:
    """A table as plain values: its rows with what they need and their published scores."""
    if isinstance(table, PropertyTable):
        columns: list[str] = list(table.columns)
        rows = [_row(row, [], {"": list(row.published)}) for row in table.rows]
        return {"table": table.name, "title": table.title, "data": "no collection", "columns": columns, "rows": rows}
    shown = table.published_columns
    rows = [
        _row(
            row,
            _needs(row, table),
            {dataset: [row.published_cell(dataset, column) for column in shown] for dataset in row.published},
        )
        for row in table.rows
    ]
    labels = [column.label for column in shown]
    return {"table": table.name, "title": table.title, "data": required_data(table), "columns": labels, "rows": rows}


def _row(row: PublishedRow | PropertyRow, needs: list[str], published: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "row": row.name,
        "other_authors": row.other_authors,
        "recipe": row.recipe,
        "needs": needs,
        "published": published,
    }


def _needs(row: PublishedRow, table: PublishedTable) -> list[str]:
    """Languages, corpus and feature tables that a row needs; none if it is not trained."""
    if row.recipe is None:
        return []
    names = [row.recipe.format(dataset=dataset.key) for dataset in table.trained_on] or [row.recipe]
    recipes = [load_recipe(f"{table.recipes}/{name}", list(row.changes)) for name in names]
    data, of_recipes = recipes[0].data, dict.fromkeys(name for recipe in recipes for name in recipe.features.tables)
    needs = [] if data.source_lang is None else [f"{data.source_lang} to {data.lang}"]
    needs += [] if row.corpus is None else ["sentence pairs of --corpus"]
    if table.trained_on and row.features:  # any of them, or those of the recipe for the data set
        return [*needs, f"features {' or '.join(dict.fromkeys((*row.features, *of_recipes)))}"]
    return [*needs, *(f"features {name}" for name in (row.features or of_recipes))]


def _line(row: dict[str, Any]) -> str:
    """A row on a line of its own, because names contain commas."""
    scores = [f"{' '.join(values)}{f' ({dataset})' if dataset else ''}" for dataset, values in row["published"].items()]
    return " | ".join([row["row"], *row["needs"], *scores])
