"""Collections that a reproduction derives in the table's folder, with a record of their origin."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from limner.data.collection import FEATURES, write_items
from limner.data.examples import Item
from limner.files import write_error
from limner.runs.records import Record
from limner.storage.places import is_remote

RECORD = "derived.json"
"""File of the record in the folder of a derived collection."""


def write_derived(folder: Path, items: Iterable[Item], record: Record, features_of: Path | None = None) -> None:
    """Write a derived collection; its record is written last, and a folder without one is replaced.

    Args:
        folder: folder of the derived collection.
        items: its items.
        record: what it is made from.
        features_of: folder of a collection whose features it links to; None for no features.

    Raises:
        LimnerError: the collection cannot be written, or `items` raises one.
    """
    try:
        if folder.exists():
            shutil.rmtree(folder)  # an interrupted copy, which has no record
        write_items(folder, items)
        if features_of and not is_remote(features_of) and (features := features_of / FEATURES).exists():
            (folder / FEATURES).symlink_to(features.resolve(), target_is_directory=True)
    except OSError as error:
        raise write_error(folder, error) from None
    record.save(folder / RECORD)
