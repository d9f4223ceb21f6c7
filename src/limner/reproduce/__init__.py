"""Reproduction of published tables: train and evaluate every row, and print it beside the published figures."""

from __future__ import annotations

from limner.errors import SettingsError
from limner.reproduce import calixto2016, calixto2017, kiros2014, lecture
from limner.reproduce.plan import ReproductionSettings
from limner.reproduce.run import reproduce_table
from limner.reproduce.tables import PublishedRow, PublishedTable, Reproduction, RowResult

__all__ = [
    "TABLES",
    "PublishedRow",
    "PublishedTable",
    "Reproduction",
    "ReproductionSettings",
    "RowResult",
    "find_table",
    "reproduce_table",
]

TABLES = {
    table.name: table
    for table in (kiros2014.TABLE_1, calixto2016.TABLE_1, calixto2017.TABLE_1, calixto2017.TABLE_2, lecture.CELLS)
}
"""Published tables by name."""


def find_table(name: str) -> PublishedTable:
    """Return a published table by its name, 'paper/table'.

    Raises:
        SettingsError: there is no such table.
    """
    if name not in TABLES:
        raise SettingsError(f"table '{name}': expected one of {', '.join(TABLES)}")
    return TABLES[name]
