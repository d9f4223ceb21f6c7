"""Maintenance of the tables of a collection: repair before an extraction, and compaction.

Each change is one atomic commit of Lance, before which nothing changes for readers. A repair removes damaged rows and
no intact rows; a compaction writes few large files in place of many small files, and removes old versions.
Interrupted commands can be repeated; a process that is killed leaves files that the next compaction removes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from limner.data.collection import FEATURES, ITEMS, Collection
from limner.errors import CollectionError, FeatureError
from limner.features.spec import FeatureSpec, require_compatible
from limner.features.tables import (
    COLUMNS,
    DamagedTableError,
    chunk_rows,
    damaged_rows,
    damaged_table,
    open_features_table,
    read_spec,
    table_exists,
    to_array,
)
from limner.files import LOCK_FILE, locked
from limner.progress import Progress
from limner.storage.hashes import IdSet
from limner.storage.places import damage_raised_as, is_remote, open_table, place

logger = logging.getLogger(__name__)

_MAX_DELETED = 10_000  # rows in one condition


class IntactRows(NamedTuple):
    """Rows of a table that need not be computed."""

    ids: IdSet
    damaged: int
    """Number of rows that were removed because they are damaged or repeat an earlier row."""


def repair_table(path: Path, spec: FeatureSpec, on_progress: Progress | None = None) -> IntactRows:
    """Remove the damaged rows of a table, if it exists; FeatureError if it is another table, or cannot be opened."""
    if not table_exists(path):
        return IntactRows(IdSet(), 0)
    for file in () if is_remote(path) else path.rglob("*"):
        if not os.access(file, os.R_OK):
            raise FeatureError(f"{file}: cannot be read; check its permissions")
    try:
        dataset = open_features_table(path)
        stored = read_spec(path, dataset.schema)
    except DamagedTableError as error:
        reason = str(error).partition("; ")[0]
        raise FeatureError(f"{reason}; remove this folder and run the command again, which computes all rows") from None
    remedy = "use the same settings, or another name for the new features"
    require_compatible(stored, spec, str(path), remedy)
    if stored.frames != spec.frames:
        raise FeatureError(f"{path}: expected {_describe(spec)}, got {_describe(stored)}; {remedy}")
    return _remove_damaged(path, dataset, stored, on_progress)


def _describe(spec: FeatureSpec) -> str:
    """Name the frames of a specification in messages."""
    if spec.frames is None:
        return "features of images"
    every = "" if spec.frames.every is None else f", every {spec.frames.every}"
    return f"the mean over {spec.frames.count} frames{every}"


def _remove_damaged(
    path: Path,
    dataset: Any,  # noqa: ANN401 (Lance has no types)
    spec: FeatureSpec,
    on_progress: Progress | None,
) -> IntactRows:
    import lance

    ids = IdSet()
    bad_rows: list[int] = []
    bad_fragments: list[int] = []
    damaged = done = 0
    total = dataset.count_rows()

    def on_rows(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, total)

    for fragment in dataset.get_fragments():
        try:
            with damage_raised_as(lambda reason: damaged_table(path, reason), path):
                intact, bad = _check_fragment(fragment, spec, ids, on_rows)
        except DamagedTableError:
            bad_fragments.append(fragment.fragment_id)
            damaged += fragment.metadata.num_rows
            continue
        ids.update(intact)
        bad_rows.extend(bad)
    if bad_fragments:
        operation = lance.LanceOperation.Delete([], bad_fragments, "damaged")
        dataset = lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    for start in range(0, len(bad_rows), _MAX_DELETED):
        dataset.delete(f"_rowid in ({', '.join(map(str, bad_rows[start : start + _MAX_DELETED]))})")
    damaged += len(bad_rows)
    if damaged:
        logger.warning("%s: %d damaged rows, which are computed anew", path, damaged)
    return IntactRows(ids, damaged)


def _check_fragment(
    fragment: Any,  # noqa: ANN401
    spec: FeatureSpec,
    earlier: IdSet,
    on_rows: Callable[[int], None],
) -> tuple[IdSet, list[int]]:
    """Return the ids of the intact rows of a fragment, and the numbers of its damaged and repeated rows."""
    intact = IdSet()
    bad: list[int] = []
    for batch in fragment.to_batches(columns=COLUMNS, batch_size=chunk_rows(spec), with_row_id=True):
        if not len(batch):
            continue
        damaged = set(damaged_rows(batch, to_array(batch.column("values"), spec.shape), spec))
        numbers = batch.column("_rowid").to_pylist()
        for row, item_id in enumerate(batch.column("id").to_pylist()):
            if row in damaged or item_id in earlier or not intact.add(item_id):
                bad.append(numbers[row])
        on_rows(len(batch))
    return intact, bad


INDEXED_ROWS = 10_000
"""Minimum number of rows of a table with an index of its ids."""


class CompactedTable(NamedTuple):
    """Size of a table before and after its compaction."""

    name: str
    """Name of the table; 'items' for the table of items."""
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

    with damage_raised_as(error, path):
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
