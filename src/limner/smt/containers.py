"""Containers for compiled code: a hash table of integers, the edges of tries, and a binary heap of numbered items."""

from __future__ import annotations

import numpy as np

from limner.compiled import compiled
from limner.smt import Floats, Ints

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
        stored = table[slot, 0]
        if stored == key:
            return int(table[slot, 1])
        if stored == NOT_FOUND:
            return NOT_FOUND
        slot = (slot + 1) & mask


@compiled
def push(heap: Ints, values: Floats, size: int, item: int) -> int:
    """Add an item to a heap by its value, the largest first; return the new size."""
    position = size
    while position > 0:
        parent = (position - 1) >> 1
        if values[heap[parent]] >= values[item]:
            break
        heap[position] = heap[parent]
        position = parent
    heap[position] = item
    return size + 1


@compiled
def pop(heap: Ints, values: Floats, size: int) -> int:
    """Remove heap[0], the first of `size` items of a heap; return the new size."""
    size -= 1
    item, position = heap[size], 0
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        if child + 1 < size and values[heap[child + 1]] > values[heap[child]]:
            child += 1
        if values[item] >= values[heap[child]]:
            break
        heap[position] = heap[child]
        position = child
    heap[position] = item
    return size
