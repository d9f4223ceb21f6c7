"""Writing rows to the Lance table of the items in batches: each change is one commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from limner.data.items_table import STORED_SCHEMA, table_schema


def create_table(path: Path, batches: Iterator[Any], splits: Mapping[str, int]) -> None:
    """Create a table.

    Args:
        path: folder of the table.
        batches: rows in batches of Arrow.
        splits: number of rows of each split.
    """
    fragments = write_fragments(_reader(batches), str(path), schema=STORED_SCHEMA, mode="create")
    lance.LanceDataset.commit(str(path), lance.LanceOperation.Overwrite(table_schema(splits), fragments))


def append_rows(table: Any, batches: Iterator[Any], splits: Mapping[str, int]) -> None:  # noqa: ANN401
    """Add rows to a table, and change the number of rows of each split, in one commit; arguments as of `create_table`.

    Args:
        table: newest version of the table, which has all columns.
        batches: further rows.
        splits: number of all rows of each split.
    """
    old = [fragment.metadata for fragment in table.get_fragments()]
    with _uncommitted(table):
        new = write_fragments(_reader(batches), table.uri, mode="append")
        for number, fragment in enumerate(new, start=1 + max((one.id for one in old), default=-1)):
            fragment.id = number
        schema = lance.schema.LanceSchema.from_pyarrow(table.schema.with_metadata(table_schema(splits).metadata))
        _commit(table, lance.LanceOperation.Merge([*old, *new], schema))


def overwrite_rows(table: Any, batches: Iterator[Any], splits: Mapping[str, int]) -> None:  # noqa: ANN401
    """Replace all rows of a table in one commit; arguments are those of `append_rows`."""
    with _uncommitted(table):
        new = write_fragments(_reader(batches), table.uri, schema=STORED_SCHEMA, mode="overwrite")
        _commit(table, lance.LanceOperation.Overwrite(table_schema(splits), new))


def _commit(table: Any, operation: Any) -> None:  # noqa: ANN401
    lance.LanceDataset.commit(table.uri, operation, read_version=table.version, max_retries=0)


def _reader(batches: Iterator[Any]) -> Any:  # noqa: ANN401
    return pa.RecordBatchReader.from_batches(STORED_SCHEMA, batches)


@contextmanager
def _uncommitted(table: Any) -> Iterator[None]:  # noqa: ANN401
    """Remove the files that a block wrote to a table if it fails; nothing else writes to the table."""
    data = Path(table.uri) / "data"
    before = set(data.glob("*"))
    try:
        yield
    except BaseException:
        for file in set(data.glob("*")) - before:
            with suppress(OSError):
                file.unlink()
        raise
