"""The data that a published table can be trained on, for the list of tables, the book and messages."""

from __future__ import annotations

from limner.reproduce.tables import PublishedTable
from limner.runs.recipe import load_recipe

LANGUAGES = {"de": "German", "en": "English"}
"""Names of the languages of the recipes."""
DATA_OF_PAPERS = {
    "Attributes": "Attributes (no reader)",
    "IAPR TC-12": "IAPR TC-12 ('limner import iapr SOURCE COLLECTION --descriptions whole')",
    "Multi30k": "Multi30k ('limner import multi30k SOURCE COLLECTION')",
}
"""Data sets, and the commands that import them, of tables whose rows have the same recipe for any collection."""
TASKS = ("COLLECTION')", "COLLECTION', both tasks for rows with M30kC)")
"""End of the command of Multi30k, and that of tables with rows that are trained with back-translation."""


def required_data(table: PublishedTable) -> str:
    """The data of the paper with the commands that import it, and what else the rows can be trained on."""
    if table.trained_on:
        paper = " or ".join(f"{one.name} ('limner import {one.command}')" for one in table.trained_on)
        return f"{paper}; or any other collection with --dataset {' or '.join(one.key for one in table.trained_on)}"
    paper = " or ".join(DATA_OF_PAPERS.get(name, name) for name in table.datasets)
    if table.reverse is not None:
        paper = paper.replace(*TASKS)
    return (
        f"{paper}; or any other collection with {_sentences(table)}"
        if paper
        else f"a collection with {_sentences(table)}"
    )


def _sentences(table: PublishedTable) -> str:
    """The sentences and images that the recipes of a table read."""
    row = next(row for row in table.rows if row.recipe is not None)
    data = load_recipe(f"{table.recipes}/{row.recipe}", list(row.changes)).data
    languages = sorted(LANGUAGES.get(lang, lang) for lang in (data.source_lang, data.lang) if lang is not None)
    if data.source_lang is None:
        return f"images and {languages[0]} sentences"
    return f"{' and '.join(languages)} sentence pairs, and images for rows with features"
