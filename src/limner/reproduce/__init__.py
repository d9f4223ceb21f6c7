"""Published tables, row by row: train, measure, and print beside what the papers printed."""

from __future__ import annotations

from limner.errors import SettingsError
from limner.reproduce import calixto2016, calixto2017, kiros2014
from limner.reproduce.run import reproduce
from limner.reproduce.tables import Outcome, Reproduction, Row, Table

__all__ = ["TABLES", "Outcome", "Reproduction", "Row", "Table", "find_table", "reproduce"]

TABLES = {
    table.name: table for table in (kiros2014.TABLE_1, calixto2016.TABLE_1, calixto2017.TABLE_1, calixto2017.TABLE_2)
}


def find_table(name: str) -> Table:
    """A table by its name, 'paper/table'; SettingsError lists those there are."""
    if name not in TABLES:
        raise SettingsError(f"no table '{name}'; there are: {', '.join(TABLES)}")
    return TABLES[name]
