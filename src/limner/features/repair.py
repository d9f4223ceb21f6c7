"""Repair of damaged feature tables before an extraction: damaged rows are removed, intact rows are never lost.

Each change is one atomic commit of Lance, so that an interrupted repair leaves a table that can be repaired again.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from limner.errors import FeatureError
from limner.features.spec import FeatureSpec, require_compatible
from limner.features.tables import (
    COLUMNS,
    DamagedTableError,
    TableWriter,
    chunk_rows,
    damaged_rows,
    damaged_table,
    open_features_table,
    read_spec,
    table_exists,
    to_array,
)
from limner.progress import Progress
from limner.storage.ids import IdSet
from limner.storage.lance_tables import damage_as
from limner.storage.places import is_remote

logger = logging.getLogger(__name__)

_MAX_DELETED = 10_000  # rows in one condition


class IntactRows(NamedTuple):
    """Rows of a table that need not be computed."""

    ids: IdSet
    damaged: int
    """Number of rows that were removed because they are damaged or repeat an earlier row."""


def repair_table(path: Path, spec: FeatureSpec, on_progress: Progress | None = None) -> IntactRows:
    """Remove the damaged rows of a table.

    A table that cannot be opened is moved to a hidden folder beside it, and replaced by a new one with the rows that
    can still be read; `discard_unreadable` removes that folder when the new table is complete.

    Args:
        path: folder of the table; it may be missing.
        spec: specification of the features that the table is to hold.
        on_progress: called with the number of rows verified and their total.

    Raises:
        FeatureError: the table has another name, was computed in another way, or cannot be read by this user.
    """
    if not table_exists(path):
        return IntactRows(_salvage(path, spec, IdSet()), 0)
    for file in () if is_remote(path) else path.rglob("*"):
        if not os.access(file, os.R_OK):
            raise FeatureError(f"{file}: cannot be read; check its permissions")
    try:
        dataset = open_features_table(path)
        stored = read_spec(path, dataset.schema)
    except DamagedTableError as error:
        if is_remote(path):
            raise
        logger.warning("%s; its rows are computed anew", str(error).partition("; ")[0])
        discard_unreadable(path)
        os.rename(path, _unreadable(path))
        return IntactRows(_salvage(path, spec, IdSet()), 0)
    _require_same(path, stored, spec)
    intact = _remove_damaged(path, dataset, stored, on_progress)
    return intact._replace(ids=_salvage(path, spec, intact.ids))


def _require_same(path: Path, stored: FeatureSpec, spec: FeatureSpec) -> None:
    remedy = "use the same settings, or another name for the new features"
    require_compatible(stored, spec, str(path), remedy)
    if stored.frames != spec.frames:
        raise FeatureError(f"{path}: expected {_describe(spec)}, got {_describe(stored)}; {remedy}")


def _describe(spec: FeatureSpec) -> str:
    """Name the frames of a specification in messages."""
    if spec.frames is None:
        return "features of images"
    every = "" if spec.frames.every is None else f", every {spec.frames.every}"
    return f"the mean over {spec.frames.count} frames{every}"


def discard_unreadable(path: Path) -> None:
    """Remove the folder to which `repair_table` moved an unreadable table."""
    if not is_remote(path):
        shutil.rmtree(_unreadable(path), ignore_errors=True)


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
            with damage_as(lambda reason: damaged_table(path, reason), path):
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


def _salvage(path: Path, spec: FeatureSpec, ids: IdSet) -> IdSet:
    """Copy rows with a valid checksum from the files of a table that was moved aside.

    Args:
        path: folder of the table.
        spec: specification of the table.
        ids: ids of the rows that the table has already.

    Returns:
        Ids of all rows of the table.
    """
    kept = len(ids)
    writer = TableWriter(path, spec, ids)
    for batch in _readable_batches(_unreadable(path), spec):
        ids_read, values = batch.column("id").to_pylist(), to_array(batch.column("values"), spec.shape)
        intact = sorted(set(range(len(ids_read))) - set(damaged_rows(batch, values, spec)))
        writer.add([ids_read[row] for row in intact], values[np.array(intact, np.int64)])
    writer.flush()
    if len(ids) > kept:
        logger.warning("%s: %d intact rows kept", path, len(ids) - kept)
    return ids


def _readable_batches(folder: Path, spec: FeatureSpec) -> Iterator[Any]:
    """Read the data files of a table without its versions, except files that cannot be read or have no checksums."""
    from lance.file import LanceFileReader

    for file in [] if is_remote(folder) else sorted(folder.glob("data/*.lance")):
        try:
            with damage_as(lambda reason: damaged_table(folder, reason)):
                for batch in LanceFileReader(str(file)).read_all(batch_size=chunk_rows(spec)).to_batches():
                    if set(batch.schema.names) == set(COLUMNS):
                        yield batch
        except DamagedTableError as error:
            logger.info("%s", error)


def _unreadable(path: Path) -> Path:
    return path.with_name(f".{path.name}.unreadable")
