"""The reproduction book: a page for each paper, rendered from the records of reproduced tables.

A record holds what a page shows of one table on one collection: the scores of every row and seed, their differences
from the baselines, the settings that differ from the recipe, the time and the machine. Pages have no other source.
"""

from __future__ import annotations

from limner.reproduce.book.pages import page_names, render_pages, write_book
from limner.reproduce.book.record import MEASURED, TableRecord, collect, merged, read_records

__all__ = ["MEASURED", "TableRecord", "collect", "merged", "page_names", "read_records", "render_pages", "write_book"]
