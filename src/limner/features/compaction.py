"""Compaction of a collection: few large files in place of many small ones, without old versions.

Each table is compacted in one commit of Lance, before which nothing changes for its readers; a process that is killed
leaves files that the next compaction removes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from limner.data.collection import FEATURES, ITEMS, Collection
from limner.errors import CollectionError
from limner.files import LOCK_FILE, locked
from limner.storage.lance_tables import damage_as, open_table
from limner.storage.places import is_remote, place

INDEXED_ROWS = 10_000
"""Number of rows from which on a table gets an index of its ids."""


class CompactedTable(NamedTuple):
    """Size of a table before and after its compaction."""

    name: str
    """Name of the table; 'items' for that of the items."""
    fragments_before: int
    fragments_after: int
    bytes_before: int
    bytes_after: int
    versions_removed: int
    """Number of old versions that were removed."""


def compact(path: Path | str, older_than: timedelta) -> Iterator[CompactedTable]:
    """Compact the tables of a collection one by one, index their ids, and remove old versions.

    Args:
        path: folder or URI of the collection.
        older_than: age of the versions that are removed; a process that opened a younger one can still read it.

    Yields:
        The sizes of each table, when it is compacted.

    Raises:
        CollectionError: there is no collection, another process writes to it, or it cannot be written; each table is
            as it was, or compacted.
    """
    collection = Collection.open(path)
    places = {"items": collection.path / ITEMS}
    places |= {name: collection.path / FEATURES / f"{name}.lance" for name in collection.features()}
    with ExitStack() as locks:
        if not is_remote(collection.path):
            locks.enter_context(locked(collection.path, CollectionError))
        for name, table in places.items():
            with ExitStack() as lock:
                if name != "items":
                    lock_file = collection.path / f".features-{name}{LOCK_FILE}"
                    lock.enter_context(locked(table, CollectionError, lock_file))
                yield _compact(name, table, older_than)


def _compact(name: str, path: Path, older_than: timedelta) -> CompactedTable:
    def error(reason: str) -> CollectionError:
        return CollectionError(
            f"{path}: cannot be compacted ({reason}); restore a damaged file from a copy, or import the collection "
            "again; check the permissions and the free disk space"
        )

    with damage_as(error, path):
        table = open_table(path)
        before, size = len(table.get_fragments()), _size(path)
        indexed = any(index.field_names == ["id"] for index in table.describe_indices())
        if indexed:
            table.optimize.optimize_indices()  # first: files with and without an index are not joined
        table.optimize.compact_files()
        if not indexed and table.count_rows() >= INDEXED_ROWS:
            table.create_scalar_index("id", "BTREE")
        # Files of writers that were killed have no version; in an object store another process may be writing them.
        removed = table.cleanup_old_versions(older_than, delete_unverified=not is_remote(path))
    return CompactedTable(name, before, len(table.get_fragments()), size, _size(path), removed.old_versions)


def _size(path: Path) -> int:
    """Sum of the sizes of the files of a table."""
    path = place(path)
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
