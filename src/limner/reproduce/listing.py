"""List of the published tables, and the collection that a table needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from limner.data.collection import Collection
from limner.errors import CollectionError, SettingsError
from limner.metrics.base import format_value
from limner.report.provenance import duration
from limner.reproduce import PROPERTY_TABLES, TABLES, find_table
from limner.reproduce.book.record import MEASURED, read_records
from limner.reproduce.figures import FIGURES, PublishedFigure
from limner.reproduce.properties import PropertyTable
from limner.reproduce.tables import PublishedRow, PublishedTable, TableColumn
from limner.runs.recipe import load_recipe


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
        raise SettingsError(f"{table.name}: expected --collection, the folder of {table.needs}")
    try:
        return Collection.open(path)
    except CollectionError as error:
        raise CollectionError(f"{error}; {table.name} needs {table.needs}") from None


def _entry(table: PublishedTable | PropertyTable) -> dict[str, Any]:
    """A table as plain values: its rows with their published scores, and the training times of the book."""
    if isinstance(table, PropertyTable):
        columns: list[str] = list(table.columns)
        rows = [_row(row.name, None if row.recipe is None else [], {"": list(row.published)}) for row in table.rows]
        return {"table": table.name, "title": table.title, "data": "no collection", "columns": columns, "rows": rows}
    shown = [column for column in table.columns if any(column.score in _scores(row) for row in table.rows)]
    times = {time.row: time for time in _times(table)}
    return {
        "table": table.name,
        "title": table.title,
        "data": table.needs,
        "columns": [column.label for column in shown],
        "rows": [_row(row.name, _needs(row, table), _figures(row, shown), times.get(row.name)) for row in table.rows],
    }


def _times(table: PublishedTable) -> Iterator[TrainingTime]:
    """Training times of the book; of several for a row, the last is that on the data of the paper, if there is one."""
    records = [record for record in read_records(MEASURED) if record.table == table.name]
    for record in sorted(records, key=lambda record: record.dataset in table.datasets):
        for row in record.rows:
            yield TrainingTime(row.row, sum(seed.seconds for seed in row.seeds) / len(row.seeds), record.collection)


def _row(
    name: str, needs: list[str] | None, published: dict[str, list[str]], time: TrainingTime | None = None
) -> dict[str, Any]:
    """A row as plain values; `needs` is None for a system that is not trained."""
    return {
        "row": name,
        "trained": needs is not None,
        "needs": needs or [],
        "published": published,
        "seconds_of_a_seed": None if time is None else round(time.seconds, 1),
        "measured_on": None if time is None else time.collection,
    }


def _needs(row: PublishedRow, table: PublishedTable) -> list[str] | None:
    """Languages, corpus and feature tables that a row needs; None if it is not trained."""
    if row.recipe is None:
        return None
    if "{" in row.recipe:  # the recipe depends on the data set
        return [f"features {' or '.join(row.features)} or of the recipe"] if row.features else []
    recipe = load_recipe(f"{table.recipes}/{row.recipe}", list(row.changes))
    languages = [] if recipe.data.source_lang is None else [f"{recipe.data.source_lang} to {recipe.data.lang}"]
    corpus = [] if row.corpus is None else ["sentence pairs of --corpus"]
    return [*languages, *corpus, *(f"features {name}" for name in (row.features or recipe.features.tables))]


def _scores(row: PublishedRow) -> set[str]:
    return {score for values in row.published.values() for score in values}


def _figures(row: PublishedRow, columns: Sequence[TableColumn]) -> dict[str, list[str]]:
    """Published scores of a row as printed, '–' where there is none, by data set."""
    return {
        dataset: [
            format_value(values[column.score] * column.scale, column.digits) + marks.get(column.score, "")
            if column.score in values
            else "–"
            for column in columns
        ]
        for dataset, values in row.published.items()
        for marks in [row.published_marks.get(dataset, {})]
    }


def _lines(entry: dict[str, Any]) -> list[str]:
    """Lines about a table: a row a line, because names contain commas."""
    columns = ", ".join(entry["columns"]) or "none published"
    lines = [f"{entry['table']}: {entry['title']}", f"  data: {entry['data']}", f"  published scores: {columns}"]
    for heading, trained in (("rows", True), ("published only, of other authors or not implemented", False)):
        rows = [row for row in entry["rows"] if row["trained"] == trained]
        lines += [f"  {heading}:", *(f"    {_line(row)}" for row in rows)] if rows else []
    return lines


def _figure_lines(figure: PublishedFigure) -> list[str]:
    """Lines about a figure: the commands that make it, or why there are none."""
    note = [f"  {figure.note}"] if figure.note else []
    return [f"{figure.paper}, {figure.heading}", *(f"    {command}" for command in figure.commands), *note]


def _line(row: dict[str, Any]) -> str:
    figures = [
        f"{' '.join(scores)}{f' ({dataset})' if dataset else ''}" for dataset, scores in row["published"].items()
    ]
    time = row["seconds_of_a_seed"]
    measured = [] if time is None else [f"{duration(time)} a seed on {row['measured_on']}"]
    return " | ".join([row["row"], *row["needs"], *figures, *measured])
