"""Binary heap of numbered items in an array, for compiled code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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
    """Remove the first item of a heap of `size` items, which is heap[0] before; return the new size."""
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
