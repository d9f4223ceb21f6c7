"""Reproduction of published tables: train and evaluate every row, and print it beside the published scores."""

from __future__ import annotations

from limner.errors import SettingsError, did_you_mean
from limner.reproduce import calixto2016, calixto2017, johnson2016, kiros2014, lecture, mao2015, vinyals2015, xu2015
from limner.reproduce.plan import ReproductionSettings
from limner.reproduce.properties import MAO2015_TABLE_6, PropertyTable
from limner.reproduce.run import reproduce_table
from limner.reproduce.tables import PublishedRow, PublishedTable, Reproduction, RowResult

__all__ = [
    "PROPERTY_TABLES",
    "TABLES",
    "PropertyTable",
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
    for table in (
        kiros2014.TABLE_1,
        *mao2015.TABLES,
        *vinyals2015.TABLES,
        xu2015.TABLE_1,
        calixto2016.TABLE_1,
        calixto2017.TABLE_1,
        calixto2017.TABLE_2,
        johnson2016.TABLE_1,
        lecture.CELLS,
    )
}
"""Published tables of scores by name."""
PROPERTY_TABLES = {MAO2015_TABLE_6.name: MAO2015_TABLE_6}
"""Published tables of properties of models by name."""


def find_table(name: str) -> PublishedTable:
    """Return a published table of scores by its name, 'paper/table'.

    Raises:
        SettingsError: there is no such table.
    """
    if name not in TABLES:
        raise SettingsError(f"table '{name}': expected one of {', '.join(TABLES)}{did_you_mean(name, TABLES)}")
    return TABLES[name]
