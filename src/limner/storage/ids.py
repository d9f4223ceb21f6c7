"""Sets of ids and rows by id in 16 to 24 bytes an id, by 128-bit hashes: a million ids take megabytes.

Two of a billion ids have the same hash with a probability of 10⁻²¹; ids are not stored and cannot be listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

_HASH = np.dtype("S16")
_RECENT = 1 << 16


def _hash(item_id: str) -> bytes:
    return xxhash.xxh3_128_digest(item_id.encode(errors="surrogatepass")).rstrip(b"\0")  # as NumPy returns bytes


def hashes(ids: Iterable[str]) -> NDArray[np.bytes_]:
    """Hash of each id, (N,)."""
    return np.array([_hash(item_id) for item_id in ids], _HASH)


class IdSet:
    """Set of ids that only grows."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._sorted = np.empty(0, _HASH)
        self._recent: set[bytes] = set()
        for item_id in ids:
            self.add(item_id)

    def __len__(self) -> int:
        return len(self._sorted) + len(self._recent)

    def __contains__(self, item_id: str) -> bool:
        return self._has(_hash(item_id))

    def add(self, item_id: str) -> bool:
        """Add an id; return whether it is new."""
        if self._has(key := _hash(item_id)):
            return False
        self._recent.add(key)
        if len(self._recent) >= _RECENT:
            self._sorted = np.sort(np.concatenate([self._sorted, np.array([*self._recent], _HASH)]))
            self._recent = set()
        return True

    def update(self, other: IdSet) -> None:
        """Add the ids of another set."""
        own = (self._sorted, np.array([*self._recent], _HASH), other._sorted, np.array([*other._recent], _HASH))
        self._sorted, self._recent = np.unique(np.concatenate(own)), set()

    def _has(self, key: bytes) -> bool:
        if key in self._recent:
            return True
        row = int(np.searchsorted(self._sorted, np.array(key, _HASH)))
        return row < len(self._sorted) and bool(self._sorted[row] == key)


class RowsById:
    """Row numbers of a table by the ids of its rows; of equal ids the last row counts.

    Args:
        batches: ids of the rows in order, in parts of any size.
    """

    def __init__(self, batches: Iterable[Sequence[str]]) -> None:
        keys = np.concatenate([np.empty(0, _HASH), *(hashes(batch) for batch in batches)])
        order = np.argsort(keys, kind="stable")
        self._hashes, self._order = keys[order], order.astype(np.int64)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, item_id: str) -> bool:
        return bool(self.find([item_id])[0] >= 0)

    def find(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Row of each id, (N,); -1 for an id without a row."""
        return self.find_hashes(hashes(ids))

    def find_hashes(self, keys: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """Row of each id whose hash is given, (N,); -1 for an id without a row."""
        if not len(self):
            return np.full(len(keys), -1)
        last = np.searchsorted(self._hashes, keys, side="right") - 1
        return np.where((last >= 0) & (self._hashes[last] == keys), self._order[last], -1)
