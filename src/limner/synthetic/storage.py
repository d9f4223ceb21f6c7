"""Storage of generated collections with a record of their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from limner.data.collection import Collection, write_items
from limner.data.examples import Item
from limner.errors import CollectionError


def matches_record(path: Path, record_name: str, record: str) -> bool:
    """Whether a folder has a collection generated with the given settings; false for an empty or missing folder.

    Args:
        path: folder of the collection.
        record_name: file name of the record.
        record: settings of the collection as text.

    Raises:
        CollectionError: the folder has a collection generated with other settings, or other files.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return False
    try:
        stored = (path / record_name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        stored = ""
    if stored != record:
        kind = Path(record_name).stem
        content = f"{kind} of other settings" if stored else f"files that are not a collection of generated {kind}"
        raise CollectionError(f"{path}: has {content}; choose another folder, or remove this one first")
    return True


def write_collection(
    path: Path, items: Sequence[Item], files: Mapping[str, Path], record_file: Path, record: str
) -> Collection:
    """Write a generated collection and its record atomically.

    Args:
        path: folder of the collection.
        items: items of the collection.
        files: files of the items, by their path relative to the collection.
        record_file: temporary path of the record; the file name is kept.
        record: settings of the collection as text.
    """
    record_file.write_text(record, encoding="utf-8")
    with suppress(OSError):
        path.rmdir()  # an existing empty folder
    write_items(path, items, files={**files, record_file.name: record_file})
    return Collection.open(path)
