"""Data sets of published tables, and their recognition in a collection."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from limner.data.collection import Collection

RECOGNISED_SHARE = 0.9
"""Minimum share of the items whose ids have the form of a data set."""


class DataSet(NamedTuple):
    """A data set that rows of a table are trained on."""

    name: str
    """Name as printed in the paper."""
    key: str
    """Name in options, and in the names of recipes in place of '{dataset}'."""
    ids: str
    """Regular expression of the item ids, the file names of the images without folders and suffix."""
    command: str
    """Command that imports it."""
    has_plain_numbers: bool = False
    """Whether the ids are numbers as other collections have: items without images are then not of this data set."""


FLICKR8K = DataSet("Flickr8k", "flickr8k", r"\d+_[0-9a-f]{10}", "flickr SOURCE COLLECTION")
FLICKR30K = DataSet("Flickr30k", "flickr30k", r"\d{8,10}", "karpathy dataset_flickr30k.json COLLECTION")
COCO = DataSet("MS COCO", "coco", r"(COCO_[a-z]+\d{4}_)?\d{12}", "karpathy dataset_coco.json COLLECTION")
IAPR = DataSet("IAPR TC-12", "iapr", r"\d{1,5}", "iapr SOURCE COLLECTION", True)
VISUAL_GENOME = DataSet("Visual Genome", "visual-genome", r"\d{1,7}", "visual-genome SOURCE COLLECTION", True)
DATA_SETS = (FLICKR8K, FLICKR30K, COCO, IAPR, VISUAL_GENOME)
"""All data sets; a form of ids that contains another one comes after it."""
MULTI30K = "Multi30k"
MULTI30K_TEST = "3561ef20c1ce29ad8138e655ad5a6239d8c6bf191c41b495786d9b3a46d895aa"
"""SHA-256 of the sorted ids of the images of test 2016 of Multi30k, one a line. The forms of the ids are those of
Flickr30k, so that other splits of the same images have other sums."""


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


def evaluated_data_set(ids: Sequence[str]) -> str | None:
    """Return the name of the data set whose test items have these ids; None if it is not known.

    Numbers, as IAPR TC-12 and Visual Genome have them, are no evidence. A part of Multi30k other than test 2016 is not
    the data of the papers, and has no name.
    """
    if hashlib.sha256("\n".join(sorted(set(ids))).encode()).hexdigest() == MULTI30K_TEST:
        return MULTI30K
    recognised = recognise_ids(ids, have_images=False)
    return None if recognised is None else recognised.name
