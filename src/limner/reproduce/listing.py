"""List of the published tables, and the collection that a table needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from limner.data.collection import Collection
from limner.errors import CollectionError, SettingsError
from limner.reproduce import PROPERTY_TABLES, TABLES, find_table
from limner.reproduce.properties import PropertyTable
from limner.reproduce.tables import PublishedTable


class TableList(NamedTuple):
    """Published tables."""

    tables: tuple[PublishedTable | PropertyTable, ...]

    def to_markdown(self) -> str:
        """Render the title, the data and the rows of each table."""
        return "\n".join(line for entry in self.to_plain()["tables"] for line in _lines(entry))

    def to_plain(self) -> dict[str, Any]:
        """Return the tables as plain values for JSON."""
        return {"tables": [_entry(table) for table in self.tables]}


def list_tables(name: str | None) -> TableList:
    """List all tables, or the one of a name.

    Raises:
        SettingsError: there is no such table.
    """
    if name is None:
        everything: dict[str, PublishedTable | PropertyTable] = {**TABLES, **PROPERTY_TABLES}
        return TableList(tuple(everything[one] for one in sorted(everything)))
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
    made = [row.name for row in table.rows if row.recipe is not None]
    published = [row.name for row in table.rows if row.recipe is None]
    data = "no collection" if isinstance(table, PropertyTable) else table.needs
    return {"table": table.name, "title": table.title, "data": data, "made": made, "published": published}


def _lines(entry: dict[str, Any]) -> list[str]:
    lines = [f"{entry['table']}: {entry['title']}", f"  data: {entry['data']}", "  rows:"]
    lines += [f"    {name}" for name in entry["made"]]  # one per line: names contain commas
    if entry["published"]:
        lines += ["  published only:", *(f"    {name}" for name in entry["published"])]
    return lines
