"""Items of a collection as a sequence that reads them from disk as they are needed, within a memory budget."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from threading import Lock
from typing import overload

import numpy as np
from numpy.typing import NDArray

from limner.data.examples import Item

CHUNK_ITEMS = 1024
"""Number of items that are read together."""
ITEM_BYTES = 1 << 10
"""Typical memory of an item with a few sentences, for the choice whether all items are read at once."""
Positions = NDArray[np.int64] | range
"""Positions of rows in a table, in the order of the items."""


class ItemCache:
    """Chunks of consecutive items at some positions of the table that were read last.

    The budget in bytes bounds their memory, as far as it can be estimated; one chunk is always held.
    """

    def __init__(self, read: Callable[[Positions], list[Item]], positions: Positions, budget: int) -> None:
        self._read, self.positions, self._budget = read, positions, budget
        self._chunks: OrderedDict[int, list[Item]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()  # batches are made in a thread of their own

    def chunk(self, number: int) -> list[Item]:
        """Return the items from position `number * CHUNK_ITEMS` on."""
        with self._lock:
            if (known := self._chunks.get(number)) is not None:
                self._chunks.move_to_end(number)
                return known
        items = self._read(self.positions[number * CHUNK_ITEMS : (number + 1) * CHUNK_ITEMS])
        with self._lock:
            if number not in self._chunks:
                self._chunks[number] = items
                self._bytes += sum(map(item_bytes, items))
            while self._bytes > self._budget and len(self._chunks) > 1:
                _, dropped = self._chunks.popitem(last=False)
                self._bytes -= sum(map(item_bytes, dropped))
        return items

    def holds(self, number: int) -> bool:
        """Whether a chunk is in memory."""
        return number in self._chunks


class StoredItems(Sequence[Item]):
    """Items of a collection, or of one split, in stored order.

    Iteration and access by index read chunks of items and hold the latest chunks, within the budget of
    the collection: a small collection is read once, a large one as often as it is used. Selections share the chunks.
    """

    def __init__(
        self, cache: ItemCache, read_media: Callable[[Positions], list[Item]], selected: NDArray[np.int64] | None = None
    ) -> None:
        """Make a sequence of all items of a cache, or of the items at some indices."""
        self._cache, self._read_media, self._selected = cache, read_media, selected

    def __len__(self) -> int:
        return len(self._cache.positions if self._selected is None else self._selected)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        row = index % len(self)
        chunk, place = divmod(row if self._selected is None else int(self._selected[row]), CHUNK_ITEMS)
        return self._cache.chunk(chunk)[place]

    def __iter__(self) -> Iterator[Item]:
        if self._selected is not None:
            yield from (self[row] for row in range(len(self)))
            return
        for number in range(-(-len(self) // CHUNK_ITEMS)):
            yield from self._cache.chunk(number)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(item == expected for item, expected in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        more = ", ..." if len(self) > 3 else ""
        return f"[{', '.join(map(repr, islice(self, 3)))}{more}]"

    def select(self, condition: Callable[[Item], object]) -> StoredItems:
        """Return the items that meet a condition; other items do not stay in memory."""
        rows = np.fromiter((row for row, item in enumerate(self) if condition(item)), np.int64)
        return StoredItems(self._cache, self._read_media, rows if self._selected is None else self._selected[rows])

    def media(self, rows: Sequence[int]) -> list[Item]:
        """Return the items at some indices; items that are not in memory have only their ids, splits and files."""
        selected = np.asarray(rows, np.int64)
        indices = selected if self._selected is None else self._selected[selected]
        if all(self._cache.holds(number) for number in np.unique(indices // CHUNK_ITEMS).tolist()):
            return [self[row] for row in rows]
        unique, inverse = np.unique(indices, return_inverse=True)
        read = self._read_media(np.asarray(self._cache.positions)[unique] if unique.size else unique)
        return [read[row] for row in inverse.tolist()]


def item_bytes(item: Item) -> int:
    """Estimate the memory of an item."""
    texts = sum(250 + 2 * len(sentence.text) + 300 * len(sentence.phrases) for sentence in item.sentences)
    steps = 100 * (len(item.track) + len(item.frame_labels))
    return 400 + texts + steps + sum(400 + 2 * len(region.text) for region in item.regions)
