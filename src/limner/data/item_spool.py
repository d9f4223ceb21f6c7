"""New items of a collection on disk, before they are merged into it: memory holds a chunk of them and their ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from limner.data.examples import Item
from limner.data.items_table import STORED_SCHEMA, item_of_row, stored_batch
from limner.data.merging import normalised
from limner.data.stored_items import CHUNK_ITEMS
from limner.storage.checksums import CHECKSUM
from limner.storage.ids import hashes


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
        while chunk := [normalised(item) for item in islice(remaining, CHUNK_ITEMS)]:
            self._writer.write_batch(stored_batch(chunk))
            self._hashes.append(hashes(item.id for item in chunk))
            self._begins.append(self._begins[-1] + len(chunk))

    def close(self) -> None:
        """End the file, which can be read from now on."""
        self._writer.close()
        self._sink.close()
        self._reader = pa.ipc.open_file(pa.OSFile(str(self._path), "rb"))

    def __len__(self) -> int:
        return self._begins[-1]

    @property
    def hashes(self) -> NDArray[np.bytes_]:
        """Hash of the id of each item."""
        return np.concatenate(self._hashes)

    def batches(self, rows: NDArray[np.int64] | None = None) -> Iterator[Any]:
        """Read some rows, which ascend, or all of them, in batches of Arrow."""
        for number in range(len(self._begins) - 1):
            begin, end = self._begins[number], self._begins[number + 1]
            if rows is None:
                yield self._batch(number)
            elif len(own := rows[np.searchsorted(rows, begin) : np.searchsorted(rows, end)]):
                yield self._batch(number).take(pa.array(own - begin))

    def read(self, rows: Sequence[int]) -> list[Item]:
        """Read the items of some rows, in their order."""
        items = []
        for row in rows:
            number = int(np.searchsorted(self._begins, row, side="right")) - 1
            (values,) = self._batch(number).slice(row - self._begins[number], 1).to_pylist()
            items.append(item_of_row({name: value for name, value in values.items() if name != CHECKSUM}))
        return items

    def splits(self) -> Counter[str]:
        """Number of items of each split."""
        counts: Counter[str] = Counter()
        for batch in self.batches():
            counts.update(batch.column("split").to_pylist())
        return counts

    def _batch(self, number: int) -> Any:  # noqa: ANN401
        if self._last[0] != number:
            self._last = (number, self._reader.get_batch(number))
        return self._last[1]
