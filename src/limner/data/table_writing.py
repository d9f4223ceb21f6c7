"""New items of a collection on disk, and the writing of rows to its Lance table: each change is one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.commit import CommitConflictError
from lance.fragment import write_fragments
from numpy.typing import NDArray

from limner.data.examples import Item
from limner.data.items_table import SPLITS_KEY, STORED_SCHEMA, WRITER_KEY, item_of_row, merge, stored_batch
from limner.data.stored_items import CHUNK_ITEMS
from limner.storage.hashes import CHECKSUM, hashes
from limner.storage.json_text import to_json
from limner.storage.places import is_remote, place, storage_options, this_writer


def create_table(path: Path, batches: Iterator[Any], splits: Mapping[str, int]) -> None:
    """Create a table of batches of Arrow, with the number of rows of each split.

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
    """Add rows to the newest version of a table, and change the numbers of all rows of each split, in one commit."""
    old = [fragment.metadata for fragment in table.get_fragments()]
    with _removed_on_failure(table):
        new = write_fragments(_reader(batches), table, mode="append")
        for number, fragment in enumerate(new, start=1 + max((old_fragment.id for old_fragment in old), default=-1)):
            fragment.id = number
        schema = lance.schema.LanceSchema.from_pyarrow(
            table.schema.with_metadata(_schema(splits, place(table.uri)).metadata)
        )
        _commit(table, lance.LanceOperation.Merge([*old, *new], schema))


def overwrite_rows(table: Any, batches: Iterator[Any], splits: Mapping[str, int]) -> None:  # noqa: ANN401
    """Replace all rows of a table in one commit; see `append_rows` for the arguments."""
    with _removed_on_failure(table):
        new = write_fragments(_reader(batches), table, schema=STORED_SCHEMA, mode="overwrite")
        _commit(table, lance.LanceOperation.Overwrite(_schema(splits, place(table.uri)), new))


def _commit(table: Any, operation: Any) -> None:  # noqa: ANN401
    lance.LanceDataset.commit(table, operation, read_version=table.version, max_retries=0)


def _schema(splits: Mapping[str, int], path: Path) -> Any:  # noqa: ANN401
    """Schema with the number of items of each split and, in a store that others write to, the name of the writer."""
    writer = {WRITER_KEY: this_writer()} if is_remote(path) else {}
    return STORED_SCHEMA.with_metadata({SPLITS_KEY: to_json(splits), **writer})


def _reader(batches: Iterator[Any]) -> Any:  # noqa: ANN401
    return pa.RecordBatchReader.from_batches(STORED_SCHEMA, batches)


@contextmanager
def _removed_on_failure(table: Any) -> Iterator[None]:  # noqa: ANN401
    """Context that removes the files written to a table if it fails; nothing else writes to the table."""
    if is_remote(place(table.uri)):  # where others write as well; `limner compact` removes unused files
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


class ItemSpool:
    """Items in an Arrow file, in the order in which they were added; an id may occur several times."""

    def __init__(self, path: Path) -> None:
        """Create the file at `path`."""
        self._path = path
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, STORED_SCHEMA)
        self._hashes: list[NDArray[np.bytes_]] = []
        self._begins = [0]
        self._reader: Any = None
        self._last: tuple[int, Any] = (-1, None)

    def add(self, items: Iterable[Item]) -> None:
        """Append items."""
        remaining = iter(items)
        while chunk := [merge(item, item) for item in islice(remaining, CHUNK_ITEMS)]:  # without repetitions
            self._writer.write_batch(stored_batch(chunk))
            self._hashes.append(hashes(item.id for item in chunk))
            self._begins.append(self._begins[-1] + len(chunk))

    def close(self) -> None:
        """End the file, which can be read from now on."""
        self._writer.close()
        self._sink.close()
        self._reader = pa.ipc.open_file(pa.OSFile(str(self._path), "rb"))

    @property
    def hashes(self) -> NDArray[np.bytes_]:
        """Hash of the id of each item."""
        return np.concatenate(self._hashes)

    def batches(self, rows: NDArray[np.int64] | None = None) -> Iterator[Any]:
        """Read all rows, or the rows at ascending positions, in Arrow record batches."""
        for number in range(len(self._begins) - 1):
            begin, end = self._begins[number], self._begins[number + 1]
            if rows is None:
                yield self._batch(number)
            elif len(in_batch := rows[np.searchsorted(rows, begin) : np.searchsorted(rows, end)]):
                yield self._batch(number).take(pa.array(in_batch - begin))

    def read(self, rows: Sequence[int]) -> list[Item]:
        """Read the items of some rows, in their order."""
        items = []
        for row in rows:
            number = int(np.searchsorted(self._begins, row, side="right")) - 1
            (values,) = self._batch(number).slice(row - self._begins[number], 1).to_pylist()
            items.append(item_of_row({name: value for name, value in values.items() if name != CHECKSUM}))
        return items

    def _batch(self, number: int) -> Any:  # noqa: ANN401
        if self._last[0] != number:
            self._last = (number, self._reader.get_batch(number))
        return self._last[1]
