"""Collections: folders with a Lance table of items, and feature tables next to it."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import compute

from limner.data.examples import Item, ItemSentence
from limner.data.items_table import SCHEMA, SPLITS_KEY, Changes, file_name, item_of_row, row_checksum
from limner.data.stored_items import CHUNK_ITEMS, ITEM_BYTES, ItemCache, Positions, StoredItems
from limner.errors import CollectionError, MediaError, did_you_mean, system_reason
from limner.files import read_bytes
from limner.files.structured import parse_json
from limner.process import without_cycle_collection
from limner.progress import Progress
from limner.storage.hashes import CHECKSUM
from limner.storage.places import damage_raised_as, is_remote, open_table, place, unreachable

ITEMS = "items.lance"
"""Folder of the items table in a collection."""
FEATURES = "features"
"""Folder of the feature tables in a collection."""
ITEMS_BUDGET = 256 << 20
"""Default memory for the items of a collection in bytes."""
MEDIA_COLUMNS = ("id", "split", "image", "video", "audio")
"""Columns that name an item and its file."""
SCANNED_ROWS = 65_536
"""Rows of one column that are read together."""


class Collection:
    """Snapshot of a collection at the time it was opened; later writes do not affect it.

    Lance does not support forked processes: read in threads, or start processes with the method 'spawn'.
    """

    def __init__(
        self,
        path: Path,
        dataset: Any,  # noqa: ANN401 (Lance has no types)
        splits: Mapping[str, str] | None = None,
        *,
        budget: int = ITEMS_BUDGET,
    ) -> None:
        self.path = path
        self.table = dataset
        """The Lance table of the items."""
        self._splits = splits
        self._budget = budget

    @classmethod
    def open(cls, path: Path | str, *, budget: int = ITEMS_BUDGET, version: int | None = None) -> Collection:
        """Open the newest or another version of the collection at `path`.

        The budget is the memory in bytes for items, see `items`.

        Raises:
            CollectionError: the folder is not a collection, or its items table is damaged.
        """
        path = place(path)
        with damage_raised_as(lambda reason: _damaged_table(path, reason), path):
            if not (path / ITEMS).is_dir():
                state = f"is not a collection (it has no {ITEMS})" if path.exists() else "does not exist"
                raise CollectionError(f"{path}: this folder {state}; create a collection with 'limner import'")
            dataset = open_table(path / ITEMS)
            if version not in (None, dataset.version):
                dataset = dataset.checkout_version(version)
        if absent := {*SCHEMA.names, CHECKSUM} - set(dataset.schema.names):
            raise CollectionError(f"{path / ITEMS}: no column '{min(absent)}'; remove it and import the source again")
        return cls(path, dataset, budget=budget)

    def with_splits(self, splits: Mapping[str, str]) -> Collection:
        """View of the items whose ids `splits` maps to their splits; nothing is written."""
        return Collection(self.path, self.table, splits, budget=self._budget)

    def __len__(self) -> int:
        return int(self.table.count_rows()) if self._splits is None else len(self._splits)

    def items(self, split: str | None = None) -> StoredItems:
        """Items of one split, or of the whole collection, in stored order.

        The items of a collection that fits into the budget are read and verified now, the items of a larger collection
        when they are used; at most the budget of them is in memory.

        Raises:
            CollectionError: the split has no items, or the table is damaged.
        """
        positions = self._positions_of_items(split)
        cache = ItemCache(self.take, positions, self._budget)
        items = StoredItems(cache, lambda rows: self._take(rows, [*MEDIA_COLUMNS]))
        if len(positions) * ITEM_BYTES <= self._budget:
            for _ in items:
                pass
        return items

    def iter_items(self, split: str | None = None, columns: Sequence[str] | None = None) -> Iterator[Item]:
        """Read the items of one split, or of the whole collection, once, in stored order, a chunk at a time.

        With `columns`, such as 'image' and 'sentences', only these are read besides the id and the split; the other
        fields of the items are empty, and the checksums of the rows are not verified.

        Raises:
            CollectionError: the split has no items, or the table is damaged.
        """
        return (item for _, item in self.numbered_items(split, columns))

    def numbered_items(
        self, split: str | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, Item]]:
        """Read items as `iter_items` does, each with its position in the table of this version."""
        positions = self._positions_of_items(split)
        for begin in range(0, len(positions), CHUNK_ITEMS):
            chunk = positions[begin : begin + CHUNK_ITEMS]
            yield from zip(map(int, chunk), self.take(chunk, columns), strict=True)

    @property
    def version(self) -> int:
        """Version of the items table that was opened."""
        return int(self.table.version)

    def require_split(self, split: str | None) -> None:
        """Check that a split, or with None any split, has items; CollectionError if not."""
        if split is None or split in (counts := self.splits()):
            return
        splits = ", ".join(f"'{name}' ({count})" for name, count in counts.items())
        raise CollectionError(
            f"{self.path}: no items in split '{split}'; the splits are {splits}: choose one of them (in a recipe "
            "data.train, data.val, data.test), or import with --split auto, which assigns items to train, val and "
            f"test{did_you_mean(split, counts)}"
        )

    def splits(self) -> dict[str, int]:
        """Number of items of each split, in stored order."""
        if self._splits is not None:
            return dict(Counter(self._splits.values()))
        counts: Counter[str] = Counter()
        for batch in self._scan("split"):
            for entry in batch.value_counts().to_pylist():
                counts[entry["values"]] += entry["counts"]
        return dict(counts)

    def image_path(self, item: Item) -> Path:
        """Path of the image file of an item; CollectionError if the item has none."""
        return self._file_path(item, item.image, "image")

    def absolute_image_path(self, item: Item) -> str | None:
        """Absolute path of the image or video file of an item as text, None if the item has none."""
        path = item.image or item.video
        return None if path is None else str((self.path / path).resolve())

    def media_file(self, item: Item) -> Path:
        """Path of the image or audio file that features are computed of; CollectionError if the item has none."""
        return self._file_path(item, item.media_path, "image and no audio file")

    def media_source(self, item: Item) -> Path | bytes:
        """Path of the file that features are computed of, or its contents if the collection is in an object store.

        Raises:
            CollectionError: the item has no file.
            MediaError: the file cannot be read from the store.
        """
        path = self.media_file(item)
        if not is_remote(path):
            return path
        try:
            return read_bytes(path)
        except Exception as error:
            if (lost := unreachable(self.path, error)) is not None:
                raise lost from None
            raise MediaError(f"{path}: cannot be read ({system_reason(error)}); restore the file") from None

    def features(self) -> tuple[str, ...]:
        """Names of the feature tables of the collection."""
        return tuple(sorted(table.stem for table in (self.path / FEATURES).glob("*.lance")))

    def fingerprint(self) -> str:
        """SHA-256 of the contents of the items in stored order.

        Image, audio and video files are represented by their file names only, so that the fingerprint does not depend
        on the folders of the files.
        """
        digest = hashlib.sha256()
        for item in self.iter_items():
            contents = (
                item.split,
                file_name(item.image),
                file_name(item.video),
                [_sentence_contents(sentence) for sentence in item.sentences],
                [region if region.entity or region.types else region[:2] for region in item.regions],
                item.label,
                *([file_name(item.audio)] if item.audio else []),
                *([item.track] if item.track else []),
                *([item.frame_labels] if item.frame_labels else []),
            )
            digest.update(json.dumps((item.id, *contents)).encode())
        return digest.hexdigest()

    def _file_path(self, item: Item, name: str | None, kind: str) -> Path:
        if name is None:
            raise CollectionError(f"{self.path}: item '{item.id}' has no {kind}")
        return _short_path(self.path / name)

    def _scan(self, column: str) -> Iterator[Any]:
        """Read one column in batches of Arrow."""
        with damage_raised_as(lambda reason: _damaged_table(self.path, reason), self.path):
            for batch in self.table.to_batches(columns=[column], batch_size=SCANNED_ROWS, batch_readahead=1):
                yield batch.column(0)

    def id_batches(self) -> Iterator[list[str]]:
        """Read the ids of the items in stored order, in batches."""
        for values in self._scan("id"):
            yield values.to_pylist()

    def take(self, positions: Positions, columns: Sequence[str] | None = None) -> list[Item]:
        """Read the items at ascending positions of the table; see `iter_items` for the columns."""
        with without_cycle_collection():
            return self._take(positions, [*SCHEMA.names, CHECKSUM] if columns is None else ["id", "split", *columns])

    def positions(self, split: str | None) -> Positions:
        """Positions of the items of a split, or of all items, in the table."""
        splits = self._splits
        if split is None and splits is None:
            with damage_raised_as(lambda reason: _damaged_table(self.path, reason), self.path):
                return range(self.table.count_rows())
        parts, begin = [np.empty(0, np.int64)], 0
        for values in self._scan("split" if splits is None else "id"):
            if splits is None:
                mask = compute.equal(values, split).to_numpy(zero_copy_only=False)
            else:
                mask = [value in splits and split in (None, splits[value]) for value in values.to_pylist()]
            parts.append(begin + np.flatnonzero(mask))
            begin += len(values)
        return np.concatenate(parts)

    def _positions_of_items(self, split: str | None) -> Positions:
        """Positions of the items of a split; CollectionError if their number is 0 or differs from the stored number."""
        positions = self.positions(split)
        self._check_count(len(positions), split)
        if not len(positions):
            self.require_split(split)
        return positions

    def _take(self, positions: Positions, columns: list[str]) -> list[Item]:
        """Read the items at some positions; verify their checksums if the columns include these."""
        with damage_raised_as(lambda reason: _damaged_table(self.path, reason), self.path):
            rows = self.table.take(list(map(int, positions)), columns=columns).to_pylist() if len(positions) else []
        if len(rows) != len(positions):
            raise _damaged_table(self.path, f"{len(rows):,} of {len(positions):,} rows can be read")
        if CHECKSUM in columns:
            for row in rows:
                if row.pop(CHECKSUM) != row_checksum(row):
                    raise _damaged_table(self.path, f"item '{row['id']}' does not have its checksum")
        if self._splits is not None:
            rows = [{**row, "split": self._splits[row["id"]]} for row in rows]
        return [item_of_row(row) for row in rows]

    def _check_count(self, count: int, split: str | None) -> None:
        """Compare a number of items with the stored number of a split, or of all splits."""
        if self._splits is not None:
            return
        counts = parse_json((self.table.schema.metadata or {}).get(SPLITS_KEY, b"null"))
        expected = None if counts is None else counts.get(split, 0) if split is not None else sum(counts.values())
        if expected not in (None, count):
            where = "" if split is None else f" of split '{split}'"
            raise _damaged_table(self.path, f"{count:,} of {expected:,} items{where} can be read")


def write_items(
    path: Path | str,
    items: Iterable[Item],
    *,
    files: Mapping[str, Path] | None = None,
    on_progress: Progress | None = None,
) -> Changes:
    """Add items to a collection atomically; existing items are merged with new items of the same id.

    Sentences are merged by (language, text, group), and their phrases united; regions are merged by all of their
    fields. A model-generated sentence is replaced by the same human-written sentence.

    Args:
        path: folder of the collection; created if it does not exist.
        items: items to add.
        files: files to copy into the collection first, by their path relative to the collection.
        on_progress: called with the numbers of copied files and of all files.

    Raises:
        SettingsError: a new collection would be a run, or inside of one.
        CollectionError: an item exists with another split, label or file; another process writes to the collection;
            the disk cannot be written. The collection is unchanged.
    """
    from limner.data.collection_writer import CollectionWriter  # which reads collections

    remaining = iter(items)
    with CollectionWriter(path) as writer:
        while chunk := list(islice(remaining, CHUNK_ITEMS)):
            writer.add(chunk)
        return writer.finish(files, on_progress)


def _sentence_contents(sentence: ItemSentence) -> tuple[object, ...]:
    """Fields of a sentence in the fingerprint; fields that are empty in most collections are omitted."""
    contents = sentence[:4] if sentence.generated_by else sentence[:3]
    return (*contents, sentence.phrases) if sentence.phrases else contents


def _short_path(path: Path) -> Path:
    """Remove `..` from a path if it names the same folder without; links to folders may give `..` another meaning."""
    if is_remote(path) or ".." not in path.parts:
        return path
    short = Path(os.path.normpath(path))
    try:
        return short if path.parent.samefile(short.parent) else path
    except OSError:
        return path


def _damaged_table(path: Path, reason: str) -> CollectionError:
    return CollectionError(f"{path / ITEMS}: damaged; remove it and import the source again ({reason})")
