"""Hash table from pairs of integers to integers, for compiled code: the edges of tries."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled

Ints = NDArray[np.int64]

NOT_FOUND = -1
_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)  # Knuth's multiplicative hashing, golden ratio of 64 bits


@compiled
def _slot(key: int, mask: int) -> int:
    return int(((key * _MULTIPLIER) >> 20) & mask)


@compiled
def _fill(keys: Ints, values: Ints, table: Ints) -> None:
    mask = len(table) - 1
    for key, value in zip(keys, values):  # noqa: B905  (Numba has no `strict`)
        slot = _slot(key, mask)
        while table[slot, 0] != NOT_FOUND:
            slot = (slot + 1) & mask
        table[slot, 0] = key
        table[slot, 1] = value


def build_table(keys: Ints, values: Ints) -> Ints:
    """Build a table of distinct keys that are not negative, (size, 2): a key and its value in each row, or -1."""
    size = 1 << max(4, int(2 * len(keys)).bit_length())
    table = np.full((size, 2), NOT_FOUND, dtype=np.int64)
    _fill(keys, values, table)
    return table


@compiled
def find(table: Ints, key: int) -> int:
    """Return the value of a key, or `NOT_FOUND`."""
    mask = len(table) - 1
    slot = _slot(key, mask)
    while True:
        found = table[slot, 0]
        if found == key:
            return int(table[slot, 1])
        if found == NOT_FOUND:
            return NOT_FOUND
        slot = (slot + 1) & mask
