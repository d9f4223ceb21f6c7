"""Writing rows to the Lance table of the items in batches: each change is one commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.commit import CommitConflictError
from lance.fragment import write_fragments

from limner.data.items_table import STORED_SCHEMA, WRITER_KEY, table_schema
from limner.storage.places import is_remote, place, storage_options, this_writer


def create_table(path: Path, batches: Iterator[Any], splits: Mapping[str, int]) -> None:
    """Create a table.

    Args:
        path: folder of the table.
        batches: rows in batches of Arrow.
        splits: number of rows of each split.

    Raises:
        CommitConflictError: another process has created the table in an object store.
    """
    options = storage_options(path)
    try:
        fragments = write_fragments(
            _reader(batches), str(path), schema=STORED_SCHEMA, mode="create", storage_options=options
        )
    except OSError as error:
        if is_remote(path) and "already exists" in str(error):
            raise CommitConflictError(str(error)) from None
        raise
    operation = lance.LanceOperation.Overwrite(_schema(splits, path), fragments)
    lance.LanceDataset.commit(str(path), operation, storage_options=options, max_retries=0)


def append_rows(table: Any, batches: Iterator[Any], splits: Mapping[str, int]) -> None:  # noqa: ANN401
    """Add rows to a table, and change the number of rows of each split, in one commit; arguments as of `create_table`.

    Args:
        table: newest version of the table, which has all columns.
        batches: further rows.
        splits: number of all rows of each split.
    """
    old = [fragment.metadata for fragment in table.get_fragments()]
    with _uncommitted(table):
        new = write_fragments(_reader(batches), table, mode="append")
        for number, fragment in enumerate(new, start=1 + max((one.id for one in old), default=-1)):
            fragment.id = number
        schema = lance.schema.LanceSchema.from_pyarrow(
            table.schema.with_metadata(_schema(splits, place(table.uri)).metadata)
        )
        _commit(table, lance.LanceOperation.Merge([*old, *new], schema))


def overwrite_rows(table: Any, batches: Iterator[Any], splits: Mapping[str, int]) -> None:  # noqa: ANN401
    """Replace all rows of a table in one commit; arguments are those of `append_rows`."""
    with _uncommitted(table):
        new = write_fragments(_reader(batches), table, schema=STORED_SCHEMA, mode="overwrite")
        _commit(table, lance.LanceOperation.Overwrite(_schema(splits, place(table.uri)), new))


def _commit(table: Any, operation: Any) -> None:  # noqa: ANN401
    lance.LanceDataset.commit(table, operation, read_version=table.version, max_retries=0)


def _schema(splits: Mapping[str, int], path: Path) -> Any:  # noqa: ANN401
    """Schema with the number of items of each split and, in a store that others write to, the name of the writer."""
    schema = table_schema(splits)
    return schema.with_metadata({**schema.metadata, WRITER_KEY: this_writer()}) if is_remote(path) else schema


def _reader(batches: Iterator[Any]) -> Any:  # noqa: ANN401
    return pa.RecordBatchReader.from_batches(STORED_SCHEMA, batches)


@contextmanager
def _uncommitted(table: Any) -> Iterator[None]:  # noqa: ANN401
    """Remove the files that a block wrote to a table if it fails; nothing else writes to the table."""
    if is_remote(place(table.uri)):  # where others write as well; `limner compact` removes what no version names
        yield
        return
    data = Path(table.uri) / "data"
    before = set(data.glob("*"))
    try:
        yield
    except BaseException:
        for file in set(data.glob("*")) - before:
            with suppress(OSError):
                file.unlink()
        raise
