"""The Lance tables of an index: files with their digests, and what is known of the contents of each digest.

Rows have checksums. A change is one commit of Lance, after which the record is written with the new state of the table:
an update that is killed leaves whole batches, of which the record misses at most the last one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
import xxhash

from limner.errors import FolderError, WriteError, system_reason
from limner.features.spec import FeatureArray
from limner.files import read_bytes
from limner.folders.record import RECORD, IndexRecord, TableState, damaged
from limner.storage.checksums import CHECKSUM, checksum
from limner.storage.json_text import to_json
from limner.storage.lance_tables import WRITE_ERRORS, damage_as, open_table

FILES, IMAGES = "files.lance", "images.lance"
"""Tables of an index: one row for each path, and one for each digest."""
DETAILS_CHECKSUM = "details_checksum"
"""Checksum of the caption and the thumbnail; `CHECKSUM` is that of the annotations and the vector."""
KEPT_VERSIONS = timedelta(hours=1)
"""Age up to which replaced versions are kept for programs that still read them."""
MAX_FRAGMENTS = 100
"""Parts of a table above which they are merged."""
_DELETED_TOGETHER = 500
_FILES_SCHEMA = pa.schema(
    [
        pa.field("path", pa.binary()),  # not text: a name may have bytes that are not UTF-8
        pa.field("size", pa.int64()),
        pa.field("modified", pa.int64()),
        pa.field("digest", pa.binary()),
        pa.field("error", pa.string()),
        pa.field(CHECKSUM, pa.uint64()),
    ]
)


class FileRow(NamedTuple):
    """State of a file at the last update."""

    path: str
    """Path relative to the folder."""
    size: int
    modified: int
    digest: bytes
    error: str
    """Why the file cannot be read; empty if it can."""


class ImageRow(NamedTuple):
    """What is stored of the contents of one digest."""

    digest: bytes
    caption: str
    log_prob: float
    confidence: float | None
    """Calibrated confidence of the caption; None for models without."""
    tags: tuple[str, ...]
    thumbnail: bytes
    """JPEG file."""


class IndexParts(NamedTuple):
    """An index whose parts belong together."""

    record: IndexRecord
    files: dict[str, FileRow]
    """State of each file at the last update."""
    images: ImageTable


def has_index(index: Path) -> bool:
    """Whether a folder has a part of an index."""
    return any((index / name).exists() for name in (RECORD, FILES, IMAGES))


def open_index(index: Path) -> IndexParts:
    """Open the newest state of an index, also while another process updates it.

    Raises:
        FolderError: a part is missing or damaged, or not in the state that the record has of it; or the record is of
            another version of Limner.
    """
    if not (index / RECORD).exists() and has_index(index):
        raise damaged(index, f"{RECORD} is gone")
    while True:
        record = IndexRecord.load(index)
        try:
            with damage_as(lambda reason: damaged(index, reason)):
                return _open(index, record)
        except FolderError:
            if IndexRecord.load(index) == record:
                raise
            # Another process has written a batch meanwhile.


def _open(index: Path, record: IndexRecord) -> IndexParts:
    files, images = (_open_table(index, name, record) for name in (FILES, IMAGES))
    rows, table = _read_files(index, files), ImageTable(index, record, images)
    if not {row.digest for row in rows.values() if not row.error} <= table.rows.keys():
        raise damaged(index, f"{IMAGES} is older than {FILES}")
    return IndexParts(record, rows, table)


def _open_table(index: Path, name: str, record: IndexRecord) -> Any:  # noqa: ANN401  (Lance has no types)
    """Open the newest version of a table if it is the recorded one, or may follow it; None for none."""
    recorded = record.tables.get(name)
    if not exists(index / name):
        if recorded is None:
            return None
        raise damaged(index, f"{name} is gone")
    dataset = open_table(index / name)
    follows = record.updating and (recorded is None or dataset.version > recorded.version)
    if not follows and (recorded is None or dataset.version != recorded.version):
        found = f"version {dataset.version}, and the record names {recorded.version if recorded else 'none'}"
        raise damaged(index, f"{name} is of another state than {RECORD}: {found}")
    if recorded is not None and _manifest_digest(index / name, recorded.version) != recorded.digest:
        raise damaged(index, f"{name} is not the table that {RECORD} names")
    for fragment in dataset.get_fragments():
        for part in fragment.data_files():
            _require_size(index, Path(name, "data", part.path), part.file_size_bytes)
        if fragment.deletion_file() is not None:
            _require_size(index, Path(name, fragment.deletion_file()), None)
    return dataset


def _require_size(index: Path, part: Path, size: int | None) -> None:
    try:
        stored = (index / part).stat().st_size
    except OSError as error:
        raise damaged(index, f"{part}: {system_reason(error)}") from None
    if size is not None and stored != size:
        raise damaged(index, f"{part}: expected {size:,} bytes, found {stored:,}")


def _manifest_digest(table: Path, version: int) -> str:
    """Compute the digest of the manifest of a version; empty if there is none."""
    for name in (f"{2**64 - 1 - version:020}", f"{version}"):  # of the two layouts of Lance
        if (file := table / "_versions" / f"{name}.manifest").exists():
            return xxhash.xxh3_128_hexdigest(read_bytes(file))
    return ""


def save_states(index: Path, record: IndexRecord, *, updating: bool) -> IndexRecord:
    """Write the record with the states of the tables.

    Raises:
        WriteError: the record cannot be written.
    """
    states = {}
    with write_errors(index):
        for name in (FILES, IMAGES):
            if exists(index / name):
                version = open_table(index / name).version
                states[name] = TableState(version=version, digest=_manifest_digest(index / name, version))
    record = record.model_copy(update={"tables": states, "updating": updating})
    record.save(index)
    return record


def _read_files(index: Path, dataset: Any) -> dict[str, FileRow]:  # noqa: ANN401  (Lance has no types)
    """Read the state of all files; the last row of a path is valid."""
    rows: dict[str, FileRow] = {}
    if dataset is None:
        return rows
    table = dataset.to_table().to_pydict()
    columns = [table[name] for name in _FILES_SCHEMA.names]
    for path, size, modified, digest, error, stored in zip(*columns, strict=True):
        if stored != _file_checksum(path, size, modified, digest, error):
            raise damaged(index, f"a row of {FILES} does not have its checksum")
        name = os.fsdecode(path)
        rows[name] = FileRow(name, size, modified, digest, error)
    return rows


def write_files(index: Path, rows: Iterable[FileRow], mode: str) -> None:
    """Append the state of files, or replace the table with mode 'overwrite'.

    Raises:
        WriteError: the table cannot be written; it is unchanged.
    """
    plain = [(os.fsencode(row.path), *row[1:]) for row in rows]
    columns = list(zip(*((*row, _file_checksum(*row)) for row in plain), strict=True)) or [()] * len(_FILES_SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _FILES_SCHEMA, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=_FILES_SCHEMA)
    with write_errors(index):
        mode = mode if exists(index / FILES) else "create"
        lance.write_dataset(table, str(index / FILES), mode=mode)


def append_images(
    index: Path, record: IndexRecord, rows: Sequence[ImageRow], annotations: FeatureArray, vectors: FeatureArray
) -> None:
    """Append what is known of new contents.

    Args:
        index: folder of the index.
        record: what the index is made with.
        rows: captions and thumbnails of N images.
        annotations: their annotations, (N, *shape).
        vectors: their vectors, (N, D).

    Raises:
        WriteError: the table cannot be written; it is unchanged.
    """
    flat = annotations.reshape(len(rows), -1)
    values = [pa.array(column, type_) for column, type_ in zip(zip(*rows, strict=True), _DETAIL_TYPES, strict=True)]
    arrays = [
        *values,
        pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1]),
        pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1]),
        pa.array(_row_checksums([row.digest for row in rows], flat, vectors, record), pa.uint64()),
        pa.array([details_checksum(row) for row in rows], pa.uint64()),
    ]
    table = pa.Table.from_arrays(arrays, schema=_images_schema(record))
    with write_errors(index):
        lance.write_dataset(table, str(index / IMAGES), mode="append" if exists(index / IMAGES) else "create")


_DETAIL_TYPES = (pa.binary(), pa.string(), pa.float64(), pa.float64(), pa.list_(pa.string()), pa.binary())


def _images_schema(record: IndexRecord) -> pa.Schema:
    fields = [pa.field(name, type_) for name, type_ in zip(ImageRow._fields, _DETAIL_TYPES, strict=True)]
    for name, size in (("annotations", int(np.prod(record.shape))), ("vector", record.vector_dim)):
        fields.append(pa.field(name, pa.list_(pa.float16(), size)))
    return pa.schema([*fields, pa.field(CHECKSUM, pa.uint64()), pa.field(DETAILS_CHECKSUM, pa.uint64())])


class ImageTable:
    """One version of the table of contents; rows are numbered in stored order."""

    def __init__(self, index: Path, record: IndexRecord, dataset: Any) -> None:  # noqa: ANN401  (Lance has no types)
        """Read the digests of a version of the table; None for a table that was never written."""
        self._index, self._record, self._dataset = index, record, dataset
        self.rows: dict[bytes, int] = {}
        """Number of the row of each digest."""
        if dataset is not None:
            digests = dataset.to_table(columns=["digest"]).column("digest").to_pylist()
            self.rows = {digest: row for row, digest in enumerate(digests)}

    def features(self) -> tuple[FeatureArray, FeatureArray]:
        """Read the annotations (N, *shape) and the vectors (N, D) of all rows.

        Raises:
            FolderError: the table is damaged.
        """
        record = self._record
        if self._dataset is None:
            return np.empty((0, *record.shape), np.float16), np.empty((0, record.vector_dim), np.float16)
        with damage_as(self._damaged):
            table = self._dataset.to_table(columns=["digest", "annotations", "vector", CHECKSUM])
            annotations, vectors = (_to_array(table.column(name)) for name in ("annotations", "vector"))
            sums = _row_checksums(table.column("digest").to_pylist(), annotations, vectors, record)
            if sums != table.column(CHECKSUM).to_pylist():
                raise self._damaged(f"a row of {IMAGES} does not have its checksum")
        return annotations.reshape(-1, *record.shape), vectors

    def texts(self) -> list[str]:
        """Read the caption and the tags of all rows; FolderError if the table is damaged."""
        if self._dataset is None:
            return []
        with damage_as(self._damaged):
            table = self._dataset.to_table(columns=["caption", "tags"]).to_pydict()
        return [" ".join((caption, *(tags or ()))) for caption, tags in zip(*table.values(), strict=True)]

    def details(self, rows: Sequence[int]) -> list[ImageRow]:
        """Read the captions and the thumbnails of some rows; FolderError if the table is damaged."""
        details: list[ImageRow] = []
        if not rows:
            return details
        with damage_as(self._damaged):
            table = self._dataset.take(list(rows), columns=[*ImageRow._fields, DETAILS_CHECKSUM])
            for values in table.to_pylist():
                stored = values.pop(DETAILS_CHECKSUM)
                row = ImageRow(**{**values, "tags": tuple(values["tags"] or ())})
                if details_checksum(row) != stored:
                    raise self._damaged(f"a row of {IMAGES} does not have its checksum")
                details.append(row)
        return details

    def _damaged(self, reason: str) -> FolderError:
        return damaged(self._index, reason)


def delete_images(index: Path, digests: Sequence[bytes]) -> None:
    """Remove what is known of contents that no file has any more.

    Raises:
        WriteError: the table cannot be written.
    """
    with write_errors(index):
        dataset = open_table(index / IMAGES)
        for begin in range(0, len(digests), _DELETED_TOGETHER):
            names = ", ".join(f"X'{digest.hex()}'" for digest in digests[begin : begin + _DELETED_TOGETHER])
            dataset.delete(f"digest IN ({names})")


def compact(index: Path) -> None:
    """Merge the parts that batches have left where there are many."""
    with write_errors(index):
        for name in (FILES, IMAGES):
            if exists(index / name):
                dataset = open_table(index / name)
                fragments = dataset.get_fragments()
                deleted = sum(fragment.num_deletions for fragment in fragments)
                if len(fragments) > MAX_FRAGMENTS or 2 * deleted > dataset.count_rows():
                    dataset.optimize.compact_files()


def remove_old_versions(index: Path) -> None:
    """Remove versions that are no longer read; the newest ones are in the record already."""
    with write_errors(index):
        for name in (FILES, IMAGES):
            if exists(index / name):
                open_table(index / name).cleanup_old_versions(older_than=KEPT_VERSIONS, delete_unverified=True)


def exists(table: Path) -> bool:
    """Whether a table has at least one commit."""
    return any(table.glob("_versions/*"))


@contextmanager
def write_errors(index: Path) -> Iterator[None]:
    """Convert the errors of Lance for tables that cannot be written to WriteError."""
    try:
        yield
    except WRITE_ERRORS as error:
        raise WriteError(
            f"{index}: the index cannot be written ({system_reason(error)}); what was written before is kept: free "
            "disk space, and repeat the command"
        ) from None


def _file_checksum(path: bytes, size: int, modified: int, digest: bytes, error: str) -> int:
    return checksum(b"\0".join((path, f"{size} {modified}".encode(), digest, error.encode())))


def details_checksum(row: ImageRow) -> int:
    """Compute the checksum of the caption and the thumbnail of an image."""
    text = to_json([row.caption, row.log_prob, row.confidence, list(row.tags)])
    return checksum(row.digest + text.encode(errors="surrogatepass") + row.thumbnail)


def _row_checksums(
    digests: Sequence[bytes], annotations: FeatureArray, vectors: FeatureArray, record: IndexRecord
) -> list[int]:
    seed = checksum(record.fingerprint.encode())
    sums = []
    for digest, flat, vector in zip(digests, annotations, vectors, strict=True):
        hashed = xxhash.xxh3_64(digest, seed=seed)
        hashed.update(np.ascontiguousarray(flat).data)
        hashed.update(np.ascontiguousarray(vector).data)
        sums.append(hashed.intdigest())
    return sums


def _to_array(column: Any) -> FeatureArray:  # noqa: ANN401  (Arrow has no types)
    combined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values: FeatureArray = combined.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1)
