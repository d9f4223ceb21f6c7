"""Checksums and finiteness of stored values, checksums of files by blocks, and sets of ids.

Checksums are XXH3, which is as fast as memory: they detect damage, not forgery.
Large files are verified by a sample of their blocks, in bounded time. Sets of ids and rows by id hold 128-bit hashes: a
million ids take megabytes, two of a billion have the same hash with a probability of 10⁻²¹, and they cannot be listed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from limner.bounds import Total
from limner.files import open_file
from limner.settings import Settings

CHECKSUM = "checksum"
"""Column of Lance tables with the checksum of each row."""
BLOCK = 1 << 22
"""Bytes of a block."""
SAMPLE = 16
"""Number of blocks in a sample of a file; a file of up to 64 MiB is read as a whole."""
_DIGITS = 16
_FIRST_INFINITE = 0x7C00  # of the positive float16 values as integers; NaNs follow
_FIRST_NEGATIVE_INFINITE = 0xFC00


def checksum(data: bytes) -> int:
    """Compute the checksum of bytes, 64 bits."""
    return xxhash.xxh3_64_intdigest(data)


def row_checksums(ids: Sequence[str], values: NDArray[np.float16], salt: str) -> NDArray[np.uint64]:
    """Compute the checksum of each row (N, ...) of a feature table from its id, its values and a text of the table."""
    rows = np.ascontiguousarray(values).reshape(len(ids), values[:1].size)
    digests = (
        xxhash.xxh3_64_intdigest(row.data, seed=checksum(f"{salt} {item_id}".encode()))
        for item_id, row in zip(ids, rows, strict=True)
    )
    return np.fromiter(digests, np.uint64, count=len(ids))


def infinite_rows(values: NDArray[Any]) -> list[int]:
    """Return the indices of the rows, (N, ...), that contain NaN or infinity."""
    if values.dtype == np.float16 and values.size and values.flags.c_contiguous:
        # Comparing the bits as integers is 40 times as fast as isfinite.
        bits = values.view(np.int16).max(), values.view(np.uint16).max()
        if bits[0] < _FIRST_INFINITE and bits[1] < _FIRST_NEGATIVE_INFINITE:
            return []
    return [row for row, value in enumerate(values) if not np.isfinite(value).all()]


class FileBlocks(Settings):
    """Size of a file and the checksums of its blocks."""

    size: Total
    """Size in bytes."""
    checksums: str
    """Checksums of the blocks, one after the other, of 16 hexadecimal digits each."""

    @classmethod
    def read(cls, path: Path) -> FileBlocks:
        """Read a file; OSError if it cannot be read."""
        size, checksums = 0, []
        with open_file(path) as stream:
            while block := stream.read(BLOCK):
                size += len(block)
                checksums.append(xxhash.xxh3_64_hexdigest(block))
        return cls(size=size, checksums="".join(checksums))

    def holds(self, path: Path, every: bool) -> bool:
        """Whether all blocks of a file, or a `SAMPLE` of its blocks, are unchanged; OSError if it cannot be read."""
        with open_file(path) as stream:
            if stream.seek(0, 2) != self.size or len(self.checksums) != _DIGITS * -(-self.size // BLOCK):
                return False
            for number in self._chosen(every):
                stream.seek(number * BLOCK)
                expected = self.checksums[number * _DIGITS : (number + 1) * _DIGITS]
                if xxhash.xxh3_64_hexdigest(stream.read(BLOCK)) != expected:
                    return False
        return True

    def _chosen(self, every: bool) -> Iterator[int]:
        count = len(self.checksums) // _DIGITS
        if every or count <= SAMPLE:
            yield from range(count)
            return
        yield from (0, count - 1, *random.sample(range(1, count - 1), SAMPLE - 2))


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
        parts = (self._sorted, np.array([*self._recent], _HASH), other._sorted, np.array([*other._recent], _HASH))
        self._sorted, self._recent = np.unique(np.concatenate(parts)), set()

    def _has(self, key: bytes) -> bool:
        if key in self._recent:
            return True
        row = int(np.searchsorted(self._sorted, np.array(key, _HASH)))
        return row < len(self._sorted) and bool(self._sorted[row] == key)


class RowsById:
    """Row numbers of a table by the ids of its rows in order; of equal ids the last row counts."""

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
        """Row of each id, given by its hash, (N,); -1 for an id without a row."""
        if not len(self):
            return np.full(len(keys), -1)
        last = np.searchsorted(self._hashes, keys, side="right") - 1
        return np.where((last >= 0) & (self._hashes[last] == keys), self._order[last], -1)
