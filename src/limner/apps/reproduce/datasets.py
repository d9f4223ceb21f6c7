"""Data sets of published tables, their recognition in a collection, and what a table can be trained on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from limner.data.collection import Collection
from limner.runs.recipe import load_recipe

if TYPE_CHECKING:
    from limner.apps.reproduce.tables import PublishedTable

RECOGNISED_SHARE = 0.9
"""Minimum share of the items whose ids have the form of a data set."""


class DataSet(NamedTuple):
    """A data set that rows of a table are trained on."""

    name: str
    """Name as printed in the paper."""
    key: str
    """Name in options and tables, and in the names of recipes in place of '{dataset}'."""
    ids: str
    """Regular expression of the item ids, the file names of the images without folders and suffix."""
    command: str
    """Command that imports it."""
    has_plain_numbers: bool = False
    """Whether the ids are numbers as other collections have: items without images are then not of this data set."""


DATA_SETS = (
    DataSet("Flickr8k", "flickr8k", r"\d+_[0-9a-f]{10}", "flickr SOURCE COLLECTION"),
    DataSet("Flickr30k", "flickr30k", r"\d{8,10}", "karpathy dataset_flickr30k.json COLLECTION"),
    DataSet("MS COCO", "coco", r"(COCO_[a-z]+\d{4}_)?\d{12}", "karpathy dataset_coco.json COLLECTION"),
    DataSet("IAPR TC-12", "iapr", r"\d{1,5}", "iapr SOURCE COLLECTION", True),
    DataSet("Visual Genome", "visual-genome", r"\d{1,7}", "visual-genome SOURCE COLLECTION", True),
)
"""All data sets; a form of ids that contains another one comes after it."""
DATA_OF_PAPERS = {
    "Attributes": "Attributes (no reader)",
    "IAPR TC-12": "IAPR TC-12 ('limner import iapr SOURCE COLLECTION --descriptions whole')",
    "Multi30k": "Multi30k ('limner import multi30k SOURCE COLLECTION')",
}
"""Data sets, and the commands that import them, of tables whose rows have the same recipe for any collection."""
LANGUAGES = {"de": "German", "en": "English"}
"""Names of the languages of the recipes."""


def recognise(collection: Collection) -> DataSet | None:
    """Return the data set of a collection by the form of its item ids; None if it is none of `DATA_SETS`."""
    items = [(item.id, item.image is not None) for item in collection.items()]
    return recognise_ids([id_ for id_, _ in items], any(has_image for _, has_image in items))


def recognise_ids(ids: Sequence[str], have_images: bool) -> DataSet | None:
    """Return the data set whose form at least `RECOGNISED_SHARE` of the ids have."""
    for dataset in DATA_SETS:
        if dataset.has_plain_numbers and not have_images:
            continue
        matching = sum(re.fullmatch(dataset.ids, id_) is not None for id_ in ids)
        if ids and matching >= RECOGNISED_SHARE * len(ids):
            return dataset
    return None


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
