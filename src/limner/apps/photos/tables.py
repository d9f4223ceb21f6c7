"""The Lance tables of an index: files with their digests, and caption, thumbnail and features of each digest.

Rows have checksums. A change is one commit of Lance: an update that is killed leaves whole batches. At the end of an
update the state of both tables is recorded, so that a missing, older or foreign part is detected.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
import xxhash

from limner.apps.photos.record import RECORD, IndexRecord, damaged_error
from limner.errors import DamagedIndexError, FolderError, WriteError, system_reason
from limner.features.spec import FeatureArray
from limner.storage.hashes import CHECKSUM
from limner.storage.json_text import to_json
from limner.storage.places import damage_raised_as, open_table, state_of, write_errors_raised_as

FILES, IMAGES = "files.lance", "images.lance"
"""Tables of an index: one row for each path, and one for each digest."""
DETAILS_CHECKSUM = "details_checksum"
"""Checksum of the caption and the thumbnail; `CHECKSUM` covers the vector."""
MAX_VERSION_AGE = timedelta(hours=1)
"""Age of replaced versions at which they are removed; until then other programs may read them."""
MAX_FRAGMENTS = 100
"""Parts of a table above which they are merged."""
_DELETED_TOGETHER = 500


class FileRow(NamedTuple):
    """State of a file at the last update."""

    path: str  # path relative to the folder
    size: int
    modified: int  # time of the last change in nanoseconds; -1 if the file may still have been changing
    digest: bytes  # XXH3 of the contents, 128 bits; empty for a file that cannot be read
    error: str  # why the file cannot be read; empty if it can


class ImageRow(NamedTuple):
    """Caption, tags and thumbnail of the contents of one digest."""

    digest: bytes
    caption: str  # caption of the image; empty where the captioner has withheld it
    log_prob: float
    confidence: float | None  # calibrated confidence of the caption; None for models without
    tags: tuple[str, ...]
    thumbnail: bytes  # JPEG file


_FILES_SCHEMA = pa.schema(
    {
        "path": pa.binary(),  # not text: a name may have bytes that are not UTF-8
        "size": pa.int64(),
        "modified": pa.int64(),
        "digest": pa.binary(),
        "error": pa.string(),
        CHECKSUM: pa.uint64(),
    }
)
_DETAILS_SCHEMA = pa.schema(
    {
        "digest": pa.binary(),
        "caption": pa.string(),
        "log_prob": pa.float64(),
        "confidence": pa.float64(),
        "tags": pa.list_(pa.string()),
        "thumbnail": pa.binary(),
        DETAILS_CHECKSUM: pa.uint64(),
    }
)


def _images_schema(record: IndexRecord) -> pa.Schema:
    vector = pa.field("vector", pa.list_(pa.float16(), record.vector_dim))
    return _DETAILS_SCHEMA.append(vector).append(pa.field(CHECKSUM, pa.uint64()))


class IndexParts:
    """An index whose parts belong together, opened at one time.

    Attributes: record: record of the index. files: state of each file at the last update, by path. rows: number of the
        row of each digest in the table of contents.
    """

    def __init__(self, index: Path) -> None:
        """Read the record and the rows of both tables; FolderError for a missing, damaged or outdated part."""
        self._index, self.record = index, IndexRecord.load(index)
        with damage_raised_as(self._damaged):
            files, self._images = (_open_table(index, name) for name in (FILES, IMAGES))
            if self.record.state not in ("", _state_of_tables(files, self._images)):
                raise self._damaged(f"{FILES} or {IMAGES} is of another state than {RECORD}")
            self.files = {row.path: row for row in map(self._file_row, files.to_table().to_pylist())}  # the last counts
            digests = self._images.to_table(columns=["digest"]).column("digest").to_pylist()
            self.rows: dict[bytes, int] = {digest: row for row, digest in enumerate(digests)}
            if not {row.digest for row in self.files.values() if not row.error} <= self.rows.keys():
                raise self._damaged(f"{IMAGES} is older than {FILES}")

    def vectors(self) -> FeatureArray:
        """Read the pooled features (N, D) of all rows; FolderError if they are damaged."""
        with damage_raised_as(self._damaged):
            table = self._images.to_table(columns=["digest", "vector", CHECKSUM])
            values = table.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
            vectors: FeatureArray = values.reshape(-1, self.record.vector_dim)
            sums = map(_checksum, table.column("digest").to_pylist(), vectors, repeat(self.record.features))
            self._require(list(sums) == table.column(CHECKSUM).to_pylist(), IMAGES)
        return vectors

    def details(self, rows: Sequence[int]) -> list[ImageRow]:
        """Read the captions and the thumbnails of some rows; FolderError if the table is damaged."""
        with damage_raised_as(self._damaged):
            table = self._images.take(list(rows), columns=_DETAILS_SCHEMA.names).to_pylist() if rows else []
            checksums = [values.pop(DETAILS_CHECKSUM) for values in table]
            details = [ImageRow(**{**values, "tags": tuple(values["tags"] or ())}) for values in table]
            self._require([_checksum(*row) for row in details] == checksums, IMAGES)
        return details

    def _file_row(self, values: dict[str, Any]) -> FileRow:
        self._require(values.pop(CHECKSUM) == _checksum(*values.values()), FILES)
        return FileRow(**{**values, "path": os.fsdecode(values["path"])})

    def _require(self, is_intact: bool, table: str) -> None:
        if not is_intact:
            raise self._damaged(f"a row of {table} does not have its checksum")

    def _damaged(self, reason: str) -> DamagedIndexError:
        return damaged_error(self._index, reason)


def open_index(index: Path) -> IndexParts:
    """Open the newest state of an index, also while another process updates it.

    FolderError for a part that is missing, damaged or of another state, or a record of another version of Limner.
    """
    if not (index / RECORD).exists() and has_index(index):
        raise damaged_error(index, f"{RECORD} is gone")
    while True:
        state = state_of_index(index)
        try:
            return IndexParts(index)
        except FolderError:
            if state_of_index(index) == state:
                raise
            # Another process has written a batch meanwhile.


def has_index(index: Path) -> bool:
    """Whether a folder has a part of an index, except empty tables from an interrupted creation."""
    tables = [index / name for name in (FILES, IMAGES) if (index / name).exists()]
    return (index / RECORD).exists() or not all(map(_is_empty, tables))


def _is_empty(table: Path) -> bool:
    try:
        with damage_raised_as(FolderError):
            return not exists(table) or not open_table(table).count_rows()
    except FolderError:
        return False


def exists(table: Path) -> bool:
    """Whether a table has at least one commit."""
    return any(table.glob("_versions/*"))


def create_index(index: Path, record: IndexRecord) -> None:
    """Write an index without rows: its tables, then its record; WriteError if they cannot be written."""
    with write_errors(index):
        for name, schema in ((FILES, _FILES_SCHEMA), (IMAGES, _images_schema(record))):
            mode = "overwrite" if exists(index / name) else "create"
            lance.write_dataset(schema.empty_table(), str(index / name), mode=mode)
    record.save(index)


def state_of_index(index: Path) -> tuple[str, ...]:
    """Return values that change with each write to a part of the index."""
    record = index / RECORD
    return *map(state_of, (index / FILES, index / IMAGES)), str(record.stat().st_mtime_ns if record.exists() else 0)


def _open_table(index: Path, name: str) -> Any:  # noqa: ANN401  (Lance has no types)
    """Open the newest version of a table, and check the sizes of its files."""
    if not exists(index / name):
        raise damaged_error(index, f"{name} is gone")
    table = open_table(index / name)
    for fragment in table.get_fragments():
        for part in fragment.data_files():
            _require_size(index, Path(name, "data", part.path), part.file_size_bytes)
        if fragment.deletion_file() is not None:
            _require_size(index, Path(name, fragment.deletion_file()), None)
    return table


def _require_size(index: Path, part: Path, size: int | None) -> None:
    try:
        stored = (index / part).stat().st_size
    except OSError as error:
        raise damaged_error(index, f"{part}: {system_reason(error)}") from None
    if size is not None and stored != size:
        raise damaged_error(index, f"{part}: expected {size:,} bytes, found {stored:,}")


def _state_of_tables(*tables: Any) -> str:  # noqa: ANN401
    """Compute a digest of the names and sizes of the files of tables."""
    parts = [str(fragment.metadata.to_json()) for table in tables for fragment in table.get_fragments()]
    return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())


def begin_update(index: Path, record: IndexRecord) -> IndexRecord:
    """Record that the tables change from now on; WriteError if the record cannot be written."""
    if not record.updating:
        record = record.model_copy(update={"state": ""})
        record.save(index)
    return record


def end_update(index: Path, record: IndexRecord) -> None:
    """Merge small parts of the tables, remove replaced versions, and record the state; may raise WriteError."""
    with write_errors(index):
        tables = [open_table(index / name) for name in (FILES, IMAGES)]
        for table in tables:
            fragments = table.get_fragments()
            deleted = sum(fragment.num_deletions for fragment in fragments)
            if len(fragments) > MAX_FRAGMENTS or 2 * deleted > table.count_rows():
                table.optimize.compact_files()
            table.cleanup_old_versions(older_than=MAX_VERSION_AGE, delete_unverified=True)
        state = _state_of_tables(*(open_table(index / name) for name in (FILES, IMAGES)))
    record.model_copy(update={"state": state}).save(index)


def write_files(index: Path, rows: Iterable[FileRow], mode: str) -> None:
    """Append the state of files, or replace the table with mode 'overwrite'; after a WriteError it is unchanged."""
    plain = [{**row._asdict(), "path": os.fsencode(row.path)} for row in rows]
    table = pa.Table.from_pylist([{**row, CHECKSUM: _checksum(*row.values())} for row in plain], _FILES_SCHEMA)
    with write_errors(index):
        lance.write_dataset(table, str(index / FILES), mode=mode)


def append_images(index: Path, record: IndexRecord, rows: Sequence[ImageRow], vectors: FeatureArray) -> None:
    """Append N new contents with their pooled features (N, D); after a WriteError the table is unchanged."""
    values = [{**row._asdict(), DETAILS_CHECKSUM: _checksum(*row)} for row in rows]
    columns = [
        *pa.Table.from_pylist(values, _DETAILS_SCHEMA).columns,
        pa.FixedSizeListArray.from_arrays(vectors.reshape(-1), vectors.shape[1]),
        pa.array(map(_checksum, (row.digest for row in rows), vectors, repeat(record.features)), pa.uint64()),
    ]
    with write_errors(index):
        table = pa.Table.from_arrays(columns, schema=_images_schema(record))
        lance.write_dataset(table, str(index / IMAGES), mode="append")


def delete_images(index: Path, digests: Sequence[bytes]) -> None:
    """Remove the rows of contents without a file; WriteError if the table cannot be written."""
    with write_errors(index):
        table = open_table(index / IMAGES)
        for begin in range(0, len(digests), _DELETED_TOGETHER):
            names = ", ".join(f"X'{digest.hex()}'" for digest in digests[begin : begin + _DELETED_TOGETHER])
            table.delete(f"digest IN ({names})")


def write_errors(index: Path) -> AbstractContextManager[None]:
    """Convert the errors of Lance for tables that cannot be written to WriteError."""
    remedy = "what was written before is kept: free disk space, and repeat the command"
    return write_errors_raised_as(WriteError, index, remedy)


def _checksum(*values: object) -> int:
    """Compute the checksum of a row: bytes and arrays as they are, other values as JSON."""
    digest = xxhash.xxh3_64()
    for value in values:
        if isinstance(value, np.ndarray):
            value = np.ascontiguousarray(value).tobytes()
        part = value if isinstance(value, bytes) else to_json(value).encode(errors="surrogatepass")
        digest.update(f"{len(part)} ".encode() + part)
    return digest.intdigest()
