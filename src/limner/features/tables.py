"""Form of a feature table in Lance: its columns, specification and checksums, and its place in a collection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from limner.data.collection import FEATURES
from limner.errors import FeatureError, SettingsError
from limner.features.spec import FeatureArray, FeatureSpec
from limner.files.structured import StructureError, parse_json
from limner.storage.checksums import CHECKSUM, infinite_rows, row_checksums
from limner.storage.lance_tables import damage_as, open_table
from limner.storage.outputs import require_name

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ["id", "values", CHECKSUM]
"""Columns of a feature table."""
_SPEC_KEY = b"limner.spec"
_CHUNK_ROWS = 512
_CHUNK_BYTES = 2**27
_REPAIR = "run 'limner features' again with the options of this table, which computes damaged rows anew"


class DamagedTableError(FeatureError):
    """A feature table cannot be read, or a row does not have its checksum; `limner features` repairs it."""


def table_path(collection: Path, name: str) -> Path:
    """Folder of a feature table; SettingsError if the name cannot be that of a file."""
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
    """Return the rows of a feature table, with their checksums.

    Args:
        spec: specification of the features.
        ids: ids of N items.
        values: their features, (N, *spec.shape).
    """
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
    """Open the Lance table of features at `path`.

    Raises:
        DamagedTableError: it cannot be opened.
    """
    with damage_as(lambda reason: damaged_table(path, reason), path):
        return open_table(path)


def damaged_table(path: Path, reason: str) -> DamagedTableError:
    """Return the error for a damaged table."""
    return DamagedTableError(f"{path}: damaged feature table ({reason}); {_REPAIR}")


def read_spec(path: Path, schema: pa.Schema) -> FeatureSpec:
    """Read the specification of the features from the schema of their table.

    Raises:
        DamagedTableError: the specification is missing or damaged, or the columns are not those of features.
        FeatureError: the table has another name than its folder.
    """
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
    """Return the indices of rows that do not have their checksum or contain NaN or infinity.

    Args:
        rows: N rows of a table.
        values: their features, (N, *shape).
        spec: specification of the table.
    """
    checksums = np.asarray(rows.column(CHECKSUM).fill_null(0))
    differs = row_checksums(rows.column("id").to_pylist(), values, spec.fingerprint) != checksums
    return sorted({*infinite_rows(values), *np.flatnonzero(differs).tolist()})
