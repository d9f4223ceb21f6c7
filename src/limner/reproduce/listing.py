"""List of the published tables, and the collection that a table needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from limner.data.collection import Collection
from limner.errors import CollectionError, SettingsError, counted
from limner.report.provenance import duration
from limner.reproduce import PROPERTY_TABLES, TABLES, find_table
from limner.reproduce.book.record import MEASURED, RowRecord, read_records
from limner.reproduce.figures import FIGURES, PublishedFigure
from limner.reproduce.properties import PropertyRow, PropertyTable
from limner.reproduce.required_data import required_data
from limner.reproduce.tables import PublishedRow, PublishedTable, TableColumn
from limner.runs.recipe import load_recipe

EPOCHS = "training.epochs="
HEADINGS = {
    (True, False): "rows",
    (True, True): "rows, systems of other authors",
    (False, False): "published only: the authors' own, without a recipe",
    (False, True): "published only: systems of other authors",
}
"""Headings of rows by whether they have a recipe, and whether they are of other authors."""


class TableList(NamedTuple):
    """Published tables, and figures."""

    tables: tuple[PublishedTable | PropertyTable, ...]
    figures: tuple[PublishedFigure, ...] = ()

    def to_markdown(self) -> str:
        """Render the tables with their data, rows, published scores and training times, then the figures."""
        lines = [line for entry in self.to_plain()["tables"] for line in _lines(entry)]
        return "\n".join([*lines, *(line for figure in self.figures for line in _figure_lines(figure))])

    def to_plain(self) -> dict[str, Any]:
        """Return the tables and figures as plain values for JSON."""
        return {
            "tables": [_entry(table) for table in self.tables],
            "figures": [figure._asdict() for figure in self.figures],
        }


class TrainingTime(NamedTuple):
    """Measured training time of a row."""

    row: str
    seconds: float
    """Mean over the seeds."""
    collection: str
    """Collection that it was trained on."""
    settings: tuple[str, ...]
    """Folder of recipes, if it is not that of the table; number of epochs, budget and initial run, if they differ from
    the recipe of the paper."""


def list_tables(name: str | None) -> TableList:
    """List all tables and figures, or the table of a name.

    Raises:
        SettingsError: there is no such table.
    """
    if name is None:
        everything: dict[str, PublishedTable | PropertyTable] = {**TABLES, **PROPERTY_TABLES}
        return TableList(tuple(everything[one] for one in sorted(everything)), FIGURES)
    return TableList((PROPERTY_TABLES[name] if name in PROPERTY_TABLES else find_table(name),))


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


def _entry(table: PublishedTable | PropertyTable) -> dict[str, Any]:
    """A table as plain values: its rows with their published scores, and the training times of the book."""
    if isinstance(table, PropertyTable):
        columns: list[str] = list(table.columns)
        rows = [_row(row, [], {"": list(row.published)}) | {"trained": False} for row in table.rows]
        return {"table": table.name, "title": table.title, "data": "no collection", "columns": columns, "rows": rows}
    shown = [column for column in table.columns if any(column.score in _scores(row) for row in table.rows)]
    times = {time.row: time for time in _times(table)}
    return {
        "table": table.name,
        "title": table.title,
        "data": required_data(table),
        "columns": [column.label for column in shown],
        "rows": [_row(row, _needs(row, table), _published(row, shown), times.get(row.name)) for row in table.rows],
    }


def _times(table: PublishedTable) -> Iterator[TrainingTime]:
    """Training times of the book; of several for a row, the last is that on the data of the paper, if there is one."""
    records = [record for record in read_records(MEASURED) if record.table == table.name]
    for record in sorted(records, key=lambda record: record.dataset in table.datasets):
        for row in record.rows:
            seconds = sum(seed.seconds for seed in row.seeds) / len(row.seeds)
            yield TrainingTime(row.row, seconds, record.collection, tuple(_settings(row, table)))


def _settings(row: RowRecord, table: PublishedTable) -> Iterator[str]:
    """What a training time cannot be read without."""
    if (folder := row.recipe.rpartition("/")[0]) != table.recipes:
        yield folder
    for difference in row.differences:
        if difference.startswith(EPOCHS):
            yield counted(int(difference.removeprefix(EPOCHS)), "epoch")
        elif difference.startswith(("budget ", "initialised from ")):
            yield difference.partition(" (")[0]  # without the command of the run


def _row(
    row: PublishedRow | PropertyRow, needs: list[str], published: dict[str, list[str]], time: TrainingTime | None = None
) -> dict[str, Any]:
    """A row as plain values."""
    return {
        "row": row.name,
        "other_authors": row.other_authors,
        "recipe": row.recipe,
        "trained": row.recipe is not None,
        "needs": needs,
        "published": published,
        "seconds_of_a_seed": None if time is None else round(time.seconds, 1),
        "measured_on": None if time is None else time.collection,
        "measured_with": [] if time is None else list(time.settings),
    }


def _needs(row: PublishedRow, table: PublishedTable) -> list[str]:
    """Languages, corpus and feature tables that a row needs; none if it is not trained."""
    if row.recipe is None:
        return []
    names = [row.recipe.format(dataset=dataset.key) for dataset in table.trained_on] or [row.recipe]
    recipes = [load_recipe(f"{table.recipes}/{name}", list(row.changes)) for name in names]
    data, own = recipes[0].data, dict.fromkeys(name for recipe in recipes for name in recipe.features.tables)
    languages = [] if data.source_lang is None else [f"{data.source_lang} to {data.lang}"]
    corpus = [] if row.corpus is None else ["sentence pairs of --corpus"]
    if table.trained_on and row.features:  # any of them, or those of the recipe for the data set
        return [*languages, *corpus, f"features {' or '.join(dict.fromkeys((*row.features, *own)))}"]
    return [*languages, *corpus, *(f"features {name}" for name in (row.features or own))]


def _scores(row: PublishedRow) -> set[str]:
    return {score for values in row.published.values() for score in values}


def _published(row: PublishedRow, columns: Sequence[TableColumn]) -> dict[str, list[str]]:
    """Published scores of a row with the digits of the columns, '–' where there is none, by data set."""
    return {dataset: [row.published_cell(dataset, column) for column in columns] for dataset in row.published}


def _lines(entry: dict[str, Any]) -> list[str]:
    """Lines about a table: a row a line, because names contain commas."""
    columns = ", ".join(entry["columns"]) or "none published"
    lines = [f"{entry['table']}: {entry['title']}", f"  data: {entry['data']}", f"  published scores: {columns}"]
    for kind, heading in HEADINGS.items():
        rows = [row for row in entry["rows"] if (row["recipe"] is not None, row["other_authors"]) == kind]
        lines += [f"  {heading}:", *(f"    {_line(row)}" for row in rows)] if rows else []
    return lines


def _figure_lines(figure: PublishedFigure) -> list[str]:
    """Lines about a figure: the commands that make it, or why there are none."""
    note = [f"  {figure.note}"] if figure.note else []
    return [f"{figure.paper}, {figure.heading}", *(f"    {command}" for command in figure.commands), *note]


def _line(row: dict[str, Any]) -> str:
    scores = [f"{' '.join(values)}{f' ({dataset})' if dataset else ''}" for dataset, values in row["published"].items()]
    return " | ".join([row["row"], *row["needs"], *scores, *([_time(row)] if row["trained"] else [])])


def _time(row: dict[str, Any]) -> str:
    if row["seconds_of_a_seed"] is None:
        return "time not measured"
    settings = f" ({', '.join(row['measured_with'])})" if row["measured_with"] else ""
    return f"{duration(row['seconds_of_a_seed'])} a seed on {row['measured_on']}{settings}"
