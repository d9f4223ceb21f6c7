"""Storage of generated collections with a record of their settings."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import ClassVar

from limner.bounds import CountOrNone, Seed
from limner.data.collection import Collection, write_items
from limner.data.examples import Item
from limner.errors import CollectionError
from limner.files import read_bytes
from limner.media.modality import MODALITIES
from limner.process import require_memory, require_space
from limner.progress import Progress
from limner.settings import Settings
from limner.storage.json_text import to_json

logger = logging.getLogger(__name__)

ITEM_BYTES = 2048
"""Memory in bytes of an item with its sentences while a collection is made, rather too low than too high."""


class GeneratedSettings(Settings, ABC):
    """Seed, size and contents of a generated collection."""

    seed: Seed = 0
    """Random seed."""
    train: CountOrNone
    """Number of items in the split 'train'."""
    val: CountOrNone
    """Number of items in the split 'val'."""
    test: CountOrNone
    """Number of items in the split 'test'."""
    kind: ClassVar[str]
    """Plural name of the items."""
    edition: ClassVar[int] = 1
    """Version of the generated files, increased when the same settings give other items."""

    @property
    def file_bytes(self) -> float:
        """Typical size of the file of an item, rather too low than too high; 0 for text alone."""
        return 0

    @abstractmethod
    def make_item(self, split: str, index: int, folder: Path) -> Item:
        """Store the file of an item below a folder and return the item, a function of the seed and these arguments."""


def matches_record(path: Path, record_name: str, record: str) -> bool:
    """Whether a folder has a collection with this record; false for an empty or missing folder."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return False
    try:
        stored = read_bytes(path / record_name).decode()
    except (OSError, UnicodeDecodeError):
        stored = ""
    if stored != record:
        kind = Path(record_name).stem
        content = f"{kind} of other settings" if stored else f"files that are not a collection of generated {kind}"
        raise CollectionError(f"{path}: has {content}; choose another folder, or remove the folder first")
    return True


def generate_collection(
    path: Path | str, settings: GeneratedSettings, on_progress: Progress | None = None
) -> Collection:
    """Generate a collection atomically; an existing collection of the same settings is opened unchanged.

    Items are made in threads, because Pillow and encoders release Python's lock. The settings are with the edition the
    record of the collection, `KIND.json`. `on_progress` is called with the number of items made and their total number.
    """
    path, kind = Path(path), settings.kind
    name = f"{kind.replace(' ', '_')}.json"
    record = to_json({"edition": settings.edition, **settings.model_dump()}, indent=1)
    if matches_record(path, name, record):
        logger.info("%s: exists with the same settings", path)
        return Collection.open(path)
    jobs = [(split, index) for split in ("train", "val", "test") for index in range(getattr(settings, split))]
    if not jobs:
        raise CollectionError(f"{path}: the settings specify no {kind}; set train, val or test")
    purpose, remedy = f"a collection of {len(jobs):,} items", "lower the numbers of items (--train, --val, --test)"
    require_memory(len(jobs) * ITEM_BYTES, purpose, remedy)
    if file_bytes := round(len(jobs) * settings.file_bytes):
        require_space(path, file_bytes, purpose, remedy)
        require_space(Path(gettempdir()), file_bytes, purpose, f"{remedy}, or set TMPDIR")
    with TemporaryDirectory(prefix="limner-generated-") as temporary:
        folder, items = Path(temporary), list[Item]()
        try:
            for modality in MODALITIES.values():
                (folder / modality.folder).mkdir()
            (folder / name).write_text(record, encoding="utf-8")
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                for item in threads.map(lambda job: settings.make_item(job[0], job[1], folder), jobs):
                    items.append(item)
                    if on_progress:
                        on_progress(len(items), len(jobs))
        except (OSError, RuntimeError) as error:  # RuntimeError of libsndfile
            raise CollectionError(
                f"{temporary}: cannot store the {kind}: {error}; free disk space, or set TMPDIR to another folder"
            ) from error
        with suppress(OSError):
            path.rmdir()  # an existing empty folder
        paths = [name, *(item.media_path for item in items if item.media_path)]
        write_items(path, items, files={file: folder / file for file in paths})
    return Collection.open(path)
