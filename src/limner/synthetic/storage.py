"""Storage of generated collections with a record of their settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from limner.data.collection import Collection, write_items
from limner.data.examples import Item
from limner.errors import CollectionError
from limner.files import read_bytes
from limner.process import require_memory, require_space
from limner.progress import Progress

ITEM_BYTES = 2048
"""Memory in bytes of an item with its sentences while a collection is made, rather too low than too high."""


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
        stored = read_bytes(path / record_name).decode()
    except (OSError, UnicodeDecodeError):
        stored = ""
    if stored != record:
        kind = Path(record_name).stem
        content = f"{kind} of other settings" if stored else f"files that are not a collection of generated {kind}"
        raise CollectionError(f"{path}: has {content}; choose another folder, or remove this one first")
    return True


def require_room(path: Path, count: int, file_bytes: float) -> None:
    """Check that a collection of generated items fits into the memory and on the disk, before the first is made.

    Args:
        path: folder of the collection.
        count: number of items.
        file_bytes: typical size of the file of an item, rather too low than too high.

    Raises:
        ResourceError: it does not.
    """
    purpose, remedy = f"a collection of {count:,} items", "lower the numbers of items (--train, --val, --test)"
    require_memory(count * ITEM_BYTES, purpose, remedy)
    require_space(path, round(count * file_bytes), purpose, remedy)
    if file_bytes:
        require_space(Path(gettempdir()), round(count * file_bytes), purpose, f"{remedy}, or set TMPDIR")


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


def draw_collection(
    path: Path,
    jobs: Sequence[Callable[[Path], Item]],
    record_name: str,
    record: str,
    on_progress: Progress | None = None,
) -> Collection:
    """Draw the items of a collection in threads, because Pillow and encoders release Python's lock, and write them.

    Args:
        path: folder of the collection.
        jobs: functions that store the file of one item below a folder and return the item.
        record_name: file name of the record.
        record: settings of the collection as text.
        on_progress: called with the number of items drawn and their total number.

    Raises:
        CollectionError: the drawings or the collection cannot be stored.
    """
    with TemporaryDirectory(prefix="limner-drawings-") as temporary:
        folder = Path(temporary)
        items: list[Item] = []
        try:
            for name in ("images", "videos"):
                (folder / name).mkdir()
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                for item in threads.map(lambda job: job(folder), jobs):
                    items.append(item)
                    if on_progress:
                        on_progress(len(items), len(jobs))
        except OSError as error:
            raise CollectionError(
                f"{temporary}: cannot store the drawings: {error}; free disk space, or set TMPDIR to another folder"
            ) from error
        stored = [item.media_path for item in items if item.media_path]
        files = {file: folder / file for file in stored}
        return write_collection(path, items, files, folder / record_name, record)
