"""Reproduction of published tables: train and evaluate every row, and print it beside the published scores."""

from __future__ import annotations

from limner.apps.reproduce.plan import ReproductionSettings
from limner.apps.reproduce.results import Reproduction, RowResult
from limner.apps.reproduce.run import reproduce_table
from limner.apps.reproduce.tables import PublishedRow, PublishedTable, TableColumn, find_table, published_tables

__all__ = [
    "PublishedRow",
    "PublishedTable",
    "Reproduction",
    "ReproductionSettings",
    "RowResult",
    "TableColumn",
    "find_table",
    "published_tables",
    "reproduce_table",
]
