"""Feature tables in Lance: columns, specification, checksums, place in a collection, and the writing of rows.

One process commits each chunk of rows; the fragments of several processes are one commit. A fragment that is not
committed belongs to no version of its table: readers do not see it. Fragments are written to a table in a folder that
all processes share, not in an object store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from limner.data.collection import FEATURES
from limner.errors import FeatureError, SettingsError
from limner.features.spec import FeatureArray, FeatureSpec
from limner.files.structured import StructureError, parse_json
from limner.storage.hashes import CHECKSUM, IdSet, infinite_rows, row_checksums
from limner.storage.json_text import to_json
from limner.storage.outputs import require_name
from limner.storage.places import damage_raised_as, is_remote, open_table, storage_options, write_errors_raised_as

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ["id", "values", CHECKSUM]
"""Columns of a feature table."""
_SPEC_KEY = b"limner.spec"
_CHUNK_ROWS = 512
_CHUNK_BYTES = 2**27
_RESUME = "features stored before are intact: free disk space and run the same command again"
_REPAIR = "run 'limner features' again with the options of this table, which computes damaged rows anew"


class DamagedTableError(FeatureError):
    """A feature table cannot be read, or a row does not have its checksum; `limner features` repairs it."""


def table_path(collection: Path, name: str) -> Path:
    """Folder of a feature table; SettingsError if the name cannot be the name of a file."""
    return collection / FEATURES / f"{require_name(name, 'feature table')}.lance"


def table_exists(path: Path) -> bool:
    """Whether a table has at least one commit; an extraction killed before its first commit leaves an empty folder."""
    return any(path.glob("_versions/*"))


def row_bytes(spec: FeatureSpec) -> int:
    """Bytes of the features of one item."""
    return 2 * int(np.prod(spec.shape))


def chunk_rows(spec: FeatureSpec) -> int:
    """Number of rows that are written together."""
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // row_bytes(spec)))


def arrow_table(spec: FeatureSpec, ids: Sequence[str], values: FeatureArray) -> pa.Table:
    """Return the rows of a feature table of N items (N, *spec.shape), with their checksums."""
    import pyarrow as pa

    rows = values.astype(np.float16, copy=False)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), int(np.prod(spec.shape)))
    checksums = pa.array(row_checksums(ids, rows, spec.fingerprint))
    return pa.Table.from_arrays([pa.array(ids), lists, checksums], schema=arrow_schema(spec))


def arrow_schema(spec: FeatureSpec) -> pa.Schema:
    """Return the columns of a feature table, with its specification."""
    import pyarrow as pa

    values = pa.list_(pa.float16(), int(np.prod(spec.shape)))
    return pa.schema(
        [pa.field("id", pa.string()), pa.field("values", values), pa.field(CHECKSUM, pa.uint64())],
        metadata={_SPEC_KEY: spec.model_dump_json()},
    )


def to_array(column: pa.Array | pa.ChunkedArray, shape: tuple[int, ...]) -> FeatureArray:
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    values: FeatureArray = column.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(-1, *shape)


def open_features_table(path: Path) -> Any:  # noqa: ANN401 (Lance has no types)
    """Open the Lance table of features at `path`; DamagedTableError if it cannot be opened."""
    with damage_raised_as(lambda reason: damaged_table(path, reason), path):
        return open_table(path)


def damaged_table(path: Path, reason: str) -> DamagedTableError:
    """Return the error for a damaged table."""
    return DamagedTableError(f"{path}: damaged feature table ({reason}); {_REPAIR}")


def read_spec(path: Path, schema: pa.Schema) -> FeatureSpec:
    """Read the specification of features from a table; DamagedTableError if damaged, FeatureError for another name."""
    if set(schema.names) != set(COLUMNS):
        raise damaged_table(path, f"expected the columns id, values and {CHECKSUM}, found {', '.join(schema.names)}")
    stored = (schema.metadata or {}).get(_SPEC_KEY)
    if stored is None:
        raise damaged_table(path, "a table without a specification")
    try:
        spec = FeatureSpec.parse(parse_json(stored))
    except (StructureError, SettingsError) as error:
        raise damaged_table(path, f"its specification: {error}") from None
    if spec.name != path.stem:
        raise FeatureError(
            f"{path}: expected the table '{path.stem}', found '{spec.name}', {spec}; rename the folder to "
            f"{spec.name}{path.suffix}, or restore the table that belongs here"
        )
    return spec


def damaged_rows(rows: pa.Table | pa.RecordBatch, values: FeatureArray, spec: FeatureSpec) -> list[int]:
    """Return the indices of N rows that do not have their checksum or whose values (N, *shape) are not finite."""
    checksums = np.asarray(rows.column(CHECKSUM).fill_null(0))
    differs = row_checksums(rows.column("id").to_pylist(), values, spec.fingerprint) != checksums
    return sorted({*infinite_rows(values), *np.flatnonzero(differs).tolist()})


Fragment = dict[str, Any]
"""Metadata of a fragment, as Lance writes them as JSON."""


class _ChunkWriter(ABC):
    """Collects rows of a table, and writes them in chunks.

    Attributes:
        path: folder of the table; it may be missing.
        spec: specification of the features.
    """

    def __init__(self, path: Path, spec: FeatureSpec) -> None:
        self.path, self.spec = path, spec
        self._ids: list[str] = []
        self._values: list[FeatureArray] = []

    def add(self, ids: Sequence[str], values: FeatureArray) -> None:
        """Add features, (N or more, *shape), of N items; rows beyond N are ignored."""
        self._ids.extend(ids)
        self._values.extend(values[: len(ids)])
        if len(self._ids) >= chunk_rows(self.spec):
            self.flush()

    def flush(self) -> None:
        """Write the rows since the last chunk; FeatureError if they cannot be written, and earlier chunks are kept."""
        if not self._ids:
            return
        table = arrow_table(self.spec, self._ids, np.stack(self._values))
        with write_errors_raised_as(FeatureError, self.path, _RESUME):
            if not is_remote(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write(table, "append" if table_exists(self.path) else "create")
        self._ids, self._values = [], []

    @abstractmethod
    def _write(self, table: pa.Table, mode: str) -> None:
        """Write a chunk to the table, which the mode 'create' makes."""


class TableWriter(_ChunkWriter):
    """Appends features to a table in chunks. Each chunk is one commit, so an interrupted run leaves whole chunks.

    Args:
        path: folder of the table; created by the first chunk.
        spec: specification of the features.
        stored_ids: ids of the items in the table; items already stored are ignored, and the ids of others are added.
    """

    def __init__(self, path: Path, spec: FeatureSpec, stored_ids: IdSet) -> None:
        super().__init__(path, spec)
        self._stored_ids = stored_ids

    def add(self, ids: Sequence[str], values: FeatureArray) -> None:
        new = [row for row, item_id in enumerate(ids) if self._stored_ids.add(item_id)]
        super().add([ids[row] for row in new], values[np.array(new, np.int64)])

    def _write(self, table: pa.Table, mode: str) -> None:
        import lance

        lance.write_dataset(table, str(self.path), mode=mode, storage_options=storage_options(self.path))


class FragmentWriter(_ChunkWriter):
    """Writes features as fragments of a table, without a commit.

    Attributes:
        fragments: the fragments that were written.
    """

    def __init__(self, path: Path, spec: FeatureSpec) -> None:
        super().__init__(path, spec)
        self.fragments: list[Fragment] = []

    def _write(self, table: pa.Table, mode: str) -> None:
        from lance.fragment import write_fragments

        written = write_fragments(table, str(self.path), schema=table.schema, mode=mode)
        self.fragments += [fragment.to_json() for fragment in written]


def commit_fragments(path: Path, spec: FeatureSpec, fragments: Iterable[Fragment]) -> int:
    """Add fragments that `FragmentWriter` has written to a table in one commit, which creates the table if it is
    missing.

    Fragments that the table has already, and fragments without their files, are left out.

    Returns:
        Number of rows whose files are missing.

    Raises:
        FeatureError: the table cannot be written; it is unchanged then.
    """
    import lance
    from lance.fragment import FragmentMetadata

    dataset = open_features_table(path) if table_exists(path) else None
    committed = set() if dataset is None else set(_committed_files(dataset))
    new, lost = [], 0
    for fragment in fragments:
        files = [file["path"] for file in fragment["files"]]
        if not all((path / "data" / file).is_file() for file in files):
            lost += fragment["physical_rows"]
        elif committed.isdisjoint(files):
            new.append(FragmentMetadata.from_json(to_json(fragment)))
    if not new:
        return lost
    with write_errors_raised_as(FeatureError, path, _RESUME):
        if dataset is None:
            lance.LanceDataset.commit(str(path), lance.LanceOperation.Overwrite(arrow_schema(spec), new))
        else:
            lance.LanceDataset.commit(str(path), lance.LanceOperation.Append(new), read_version=dataset.version)
    return lost


def data_files(path: Path) -> list[str]:
    """Names of all data files in the folder of a table, including incomplete files and files that no version uses."""
    return sorted(file.name for file in path.glob("data/*"))


def remove_uncommitted(path: Path, earlier: Iterable[str]) -> None:
    """Remove the files of a table that are neither committed nor in `earlier`; the caller holds its lock."""
    keep = set(earlier)
    if table_exists(path):
        keep.update(_committed_files(open_features_table(path)))
    for name in set(data_files(path)) - keep:
        (path / "data" / name).unlink(missing_ok=True)


def _committed_files(dataset: Any) -> Iterable[str]:  # noqa: ANN401 (Lance has no types)
    return (file.path for fragment in dataset.get_fragments() for file in fragment.data_files())
