"""What all generated collections share: a record of their settings, by which one is known again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from limner.data.collection import Collection, write_items
from limner.data.examples import Item
from limner.errors import CollectionError


def is_there(path: Path, record_file: str, record: str) -> bool:
    """Whether a folder holds the collection that this record tells of; false where it holds nothing.

    Raises:
        CollectionError: it holds one made by other settings, or something else.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return False
    try:
        found = (path / record_file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        found = ""
    if found != record:
        kind = Path(record_file).stem
        what = f"{kind} made by other settings" if found else f"something that is not a collection of generated {kind}"
        raise CollectionError(f"{path}: holds {what}; choose another folder, or remove this one first")
    return True


def store(path: Path, items: Sequence[Item], files: Mapping[str, Path], record_file: Path, record: str) -> Collection:
    """Make the collection, its record among its files; it appears whole.

    Args:
        path: folder of the collection.
        items: what it holds.
        files: those of the items, by the path they get within it.
        record_file: where the record can be written before it is copied; its name is kept.
        record: the settings everything was made by.
    """
    record_file.write_text(record, encoding="utf-8")
    with suppress(OSError):
        path.rmdir()  # an empty folder gives way
    write_items(path, items, files={**files, record_file.name: record_file})
    return Collection.open(path)
