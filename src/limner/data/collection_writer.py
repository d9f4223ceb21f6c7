"""Adding items to a collection: they are spooled to disk, merged in chunks, and committed together.

Writes are atomic: a new collection is built in a temporary folder next to its path and renamed, an existing one
changes by one Lance commit. An interrupted write leaves at most a temporary folder, which the next write or
`remove_interrupted_writes` removes, and data files that no version names, which `limner compact` removes.
"""

from __future__ import annotations

import glob
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self
from uuid import uuid4

import numpy as np
from lance.commit import CommitConflictError
from numpy.typing import NDArray

from limner.data.collection import ITEMS, Collection
from limner.data.examples import Item
from limner.data.items_table import WRITER_KEY, Changes, merge_all, stored_batch
from limner.data.stored_items import CHUNK_ITEMS
from limner.data.table_writing import ItemSpool, append_rows, create_table, overwrite_rows
from limner.errors import CollectionError
from limner.files import LOCK_FILE, is_file, locked, open_file
from limner.progress import Progress
from limner.storage.hashes import RowsById
from limner.storage.outputs import require_name, require_outside
from limner.storage.places import is_remote, place, remove_unfinished, this_writer, unfinished, write_errors_raised_as

logger = logging.getLogger(__name__)

PART = 8 << 20
"""Bytes of a file that are in memory while it is copied."""
ATTEMPTS = 5
"""Maximum number of merges with a collection in an object store while other processes write to it."""
_REPEAT = (
    "check the place, its permissions and the free disk space, then repeat the command, which adds what is missing"
)


class CollectionWriter:
    """Adds items to a collection, new or existing, in parts; nothing changes before `finish`.

    It holds the lock of the collection from the first items on, until the block ends.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = _absolute(path)
        self._stack = ExitStack()
        self._folder = self.path
        self._spool: ItemSpool | None = None
        self._names: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, items: Sequence[Item]) -> None:
        """Add items, which are stored on disk until `finish`.

        Raises:
            SettingsError: a new collection would be a run, or inside of one.
            CollectionError: the name of a split is impossible; another process writes to the collection; the disk
                cannot be written.
        """
        for split in {item.split for item in items} - self._names:
            self._names.add(require_name(split, f"{self.path}: the split", CollectionError))
        if items:
            with write_errors_raised_as(CollectionError, self.path, _REPEAT):
                if self._spool is None:
                    self._spool = self._open()
                self._spool.add(items)

    def write_file(self, name: str, data: bytes) -> None:
        """Write a file that becomes part of the collection with its items, at a path relative to its folder.

        Raises:
            SettingsError: a new collection would be a run, or inside of one.
            CollectionError: the path leaves the folder; another process writes to the collection; the disk cannot be
                written.
        """
        self._require_inside(name)
        with write_errors_raised_as(CollectionError, self.path, _REPEAT):
            if self._spool is None:
                self._spool = self._open()
            file = self._folder / "written" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    def finish(self, files: Mapping[str, Path] | None = None, on_progress: Progress | None = None) -> Changes:
        """Copy files, merge the items into the collection and commit them; see `write_items` for the arguments.

        Raises:
            CollectionError: there are no items; an item exists with another split, label or file; the disk cannot be
                written. The collection is unchanged.
        """
        for name in files or {}:
            self._require_inside(name)
        if self._spool is None:
            raise CollectionError(f"{self.path}: there are no items to write")
        with write_errors_raised_as(CollectionError, self.path, _REPEAT):
            self._spool.close()
            for _ in range(ATTEMPTS):
                try:
                    if (self.path / ITEMS).is_dir():
                        return self._extend(files or {}, on_progress)
                    return self._create(files or {}, on_progress)
                except CommitConflictError:
                    logger.info("%s: another process wrote to it; the items are merged again", self.path)
        table = Collection.open(self.path).table
        other = (table.schema.metadata or {}).get(WRITER_KEY, b"another process").decode(errors="replace")
        raise CollectionError(
            f"{self.path}: {this_writer()} could not add its items, as {other} wrote version {table.version} and "
            "others before; nothing of these items was added: repeat the command when it has ended"
        )

    def _require_inside(self, name: str) -> None:
        if os.path.isabs(name) or ".." in Path(name).parts:
            raise CollectionError(f"{self.path}: '{name}': expected a path inside of the collection for a file")

    def _open(self) -> ItemSpool:
        """Lock the collection and create the spool in a temporary folder; object stores have no locks."""
        if is_remote(self.path):
            self._folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="limner-")))
            return ItemSpool(self._folder / ".spool.arrow")
        if not (self.path / ITEMS).is_dir():
            require_outside(self.path, f"collection {self.path}", can_force=False, runs_only=True)
        creation_lock = self.path.with_name(f".{self.path.name}{LOCK_FILE}")
        while True:
            if exists := self.path.is_dir():
                self._stack.enter_context(locked(self.path, CollectionError))
                creation_lock.unlink(missing_ok=True)  # of a process killed after the new folder was renamed
                _remove_leftovers(self.path)
                break
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._stack.enter_context(locked(self.path, CollectionError, creation_lock))
            if not self.path.is_dir():
                break
            self._stack.close()  # another process has just created it
        place = self.path / "files" if exists else self.path
        self._folder = self._stack.enter_context(_temporary_folder(place))
        return ItemSpool(self._folder / ".spool.arrow")

    def _create(self, files: Mapping[str, Path], on_progress: Progress | None) -> Changes:
        """Build the first table of a collection in a temporary folder, and move it to its path."""
        assert self._spool is not None
        plan = _plan(self._spool, RowsById([]))
        target = self.path if is_remote(self.path) or self.path.is_dir() else self._folder / "new"
        self._store_files(files, target, on_progress)
        table = (self.path if is_remote(self.path) else self._folder) / ITEMS
        create_table(table, _new_batches(self._spool, plan), _splits(self._spool, plan))
        if target != self.path:
            target.mkdir(exist_ok=True)
            os.rename(table, target / ITEMS)
            os.rename(target, self.path)
        elif not is_remote(self.path):
            os.rename(table, self.path / ITEMS)
        return Changes(len(plan.fresh), 0, 0)

    def _extend(self, files: Mapping[str, Path], on_progress: Progress | None) -> Changes:
        """Add the items to the table of a collection; it is rewritten if stored items change."""
        assert self._spool is not None
        remove_unfinished(self.path / ITEMS)
        old = Collection.open(self.path)
        plan = _plan(self._spool, RowsById(old.id_batches()))
        updated = sum(before != after for before, after in _merged(old, self._spool, plan))
        self._store_files(files, self.path, on_progress)
        splits = Counter(old.splits()) + _splits(self._spool, plan)
        new = _new_batches(self._spool, plan)
        if updated:
            overwrite_rows(old.table, _all_batches(old, self._spool, plan), splits)
        elif len(plan.fresh):
            append_rows(old.table, new, splits)
        return Changes(len(plan.fresh), updated, len(plan.changed) - updated)

    def _store_files(self, files: Mapping[str, Path], target: Path, on_progress: Progress | None) -> None:
        """Copy files to their paths in `target`, and move files written by the reader; existing files are kept."""
        for done, (name, source) in enumerate(files.items(), start=1):
            self._store_file(source, target / name, self._folder / name, "import without copying")
            if on_progress:
                on_progress(done, len(files))
        written = self._folder / "written"
        for file in filter(is_file, written.rglob("*")):
            self._store_file(file, target / file.relative_to(written).as_posix(), file, "use another collection")

    @staticmethod
    def _store_file(source: Path, path: Path, temporary: Path, remedy: str) -> None:
        """Move the copy of a file at a temporary path to its path, or copy it to an object store in parts."""
        if path.exists():
            if not _same_contents(source, path):
                raise CollectionError(f"{path}: exists and differs from {source}; {remedy}")
        elif is_remote(path):
            with open_file(source) as stream, path.open("wb") as stored:
                shutil.copyfileobj(stream, stored, PART)
        else:
            for folder in (temporary.parent, path.parent):
                folder.mkdir(parents=True, exist_ok=True)
            if temporary != source:
                shutil.copy2(source, temporary)
            os.replace(temporary, path)


def remove_interrupted_writes(path: Path | str) -> None:
    """Remove the remains of interrupted writes from a collection, for a command that has nothing more to write.

    A process can be killed after its items are committed and before its temporary folder is removed. Files that another
    process is writing, and files that cannot be removed, stay.
    """
    path = _absolute(path)
    if is_remote(path):  # it uses the temporary folders of the operating system
        return
    if not (_leftovers(path) or _leftovers(path / "files") or unfinished(path / ITEMS)):
        return
    with suppress(CollectionError), locked(path, CollectionError):
        _remove_leftovers(path)
        _remove_leftovers(path / "files")
        remove_unfinished(path / ITEMS)


def _absolute(path: Path | str) -> Path:
    path = place(path)
    return path if is_remote(path) else Path(os.path.abspath(path))


class _Plan(NamedTuple):
    """Division of the rows of a spool into new items and versions of items."""

    fresh: NDArray[np.int64]
    """Rows of the spool whose id the collection does not have, the first of each id."""
    changed: NDArray[np.int64]
    """Rows of the collection whose id the spool has, ascending."""
    keys: NDArray[np.int64]
    """Item of each of `versions`, ascending: its row in the collection, or -1 minus its first row in the spool."""
    versions: NDArray[np.int64]
    """Rows of the spool whose id the collection or an earlier row of the spool has."""

    def versions_of(self, key: int) -> list[int]:
        """Return the rows of the spool that are versions of an item, in their order."""
        begin, end = np.searchsorted(self.keys, [key, key + 1])
        return list(map(int, self.versions[begin:end]))


def _plan(spool: ItemSpool, stored: RowsById) -> _Plan:
    hashes = spool.hashes
    stored_rows = stored.find_hashes(hashes)
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    leaders, rows = first[group], np.arange(len(hashes))
    keys = np.where(stored_rows >= 0, stored_rows, -1 - leaders)
    further = np.flatnonzero((stored_rows >= 0) | (leaders != rows))
    further = further[np.argsort(keys[further], kind="stable")]
    fresh = rows[(stored_rows < 0) & (leaders == rows)]
    return _Plan(fresh, np.unique(stored_rows[stored_rows >= 0]), keys[further], further)


def _splits(spool: ItemSpool, plan: _Plan) -> Counter[str]:
    """Number of new items of each split."""
    counts: Counter[str] = Counter()
    for batch in spool.batches(plan.fresh):
        counts.update(batch.column("split").to_pylist())
    return counts


def _merged(old: Collection, spool: ItemSpool, plan: _Plan) -> Iterator[tuple[Item, Item]]:
    """Stored items with new versions in the spool, each before and after the merge."""
    for begin in range(0, len(plan.changed), CHUNK_ITEMS):
        rows = plan.changed[begin : begin + CHUNK_ITEMS]
        for row, item in zip(rows.tolist(), old.take(rows), strict=True):
            yield item, merge_all(item, spool.read(plan.versions_of(row)))


def _new_batches(spool: ItemSpool, plan: _Plan) -> Iterator[Any]:
    """Rows of the new items in batches of Arrow, merged where an id occurs several times in the spool."""
    repeated = -1 - plan.keys[plan.keys < 0]
    for begin in range(0, len(plan.fresh), CHUNK_ITEMS):
        rows = plan.fresh[begin : begin + CHUNK_ITEMS]
        if not np.isin(rows, repeated).any():
            yield from spool.batches(rows)
            continue
        versions = ([row, *plan.versions_of(-1 - row)] for row in rows.tolist())
        yield stored_batch([merge_all(None, spool.read(group)) for group in versions])


def _all_batches(old: Collection, spool: ItemSpool, plan: _Plan) -> Iterator[Any]:
    """Rows of all items in batches of Arrow: the stored items in their order, then the new items."""
    for begin in range(0, len(old), CHUNK_ITEMS):
        rows = np.arange(begin, min(begin + CHUNK_ITEMS, len(old)))
        items = old.take(rows)
        for number, row in enumerate(rows.tolist()):
            if versions := plan.versions_of(row):
                items[number] = merge_all(items[number], spool.read(versions))
        yield stored_batch(items)
    yield from _new_batches(spool, plan)


def _same_contents(file: Path, path: Path) -> bool:
    """Whether two files have the same contents; the second may be in an object store. Both are read in parts."""
    if file.stat().st_size != path.stat().st_size:
        return False
    with open_file(file) as first, open_file(path) as second:
        while part := first.read(PART):
            if part != second.read(len(part)):
                return False
    return True


@contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    """Create a hidden folder next to `path`, to be renamed to it; it is removed if it still exists at the end.

    Temporary folders of interrupted writes are removed first: the caller holds the lock of `path`.
    """
    _remove_leftovers(path)
    folder = path.parent / f"{_prefix(path)}{uuid4().hex[:8]}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(path: Path) -> str:
    return f".{path.name}.partial-"


def _leftovers(path: Path) -> list[Path]:
    """Return the temporary folders of writes to `path`, which are next to it."""
    return list(path.parent.glob(f"{glob.escape(_prefix(path))}*"))


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary folders of interrupted writes next to `path`, whose lock the caller holds."""
    for leftover in _leftovers(path):
        logger.info("%s: removing the temporary folder of an interrupted write", leftover)
        shutil.rmtree(leftover, ignore_errors=True)
