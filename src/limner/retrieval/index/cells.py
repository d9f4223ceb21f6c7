"""Cells of vectors: k-means on a sample, and the cell of every vector."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
ITERATIONS = 10
SAMPLED_PER_CELL = 64
"""Number of vectors of the sample for each cell."""
_BLOCK = 8192


def fit_centroids(vectors: Vectors, count: int, seed: int = 1, iterations: int = ITERATIONS) -> Vectors:
    """Compute centroids by Lloyd's algorithm on a sample; a cell that becomes empty gets a vector of the sample.

    Args:
        vectors: N vectors, (N, D), may be stored in a file.
        count: number C of cells; at most N.
        seed: random seed of the sample.
        iterations: iterations of the algorithm.

    Returns:
        Centroids, (C, D).
    """
    random = np.random.default_rng(seed)
    size = min(len(vectors), max(count * SAMPLED_PER_CELL, count))
    sample = np.asarray(vectors[np.sort(random.choice(len(vectors), size, replace=False))])
    centroids = sample[np.sort(random.choice(size, count, replace=False))].copy()
    for _ in range(iterations):
        nearest = nearest_centroids(sample, centroids)
        sums = (nearest == np.arange(count)[:, None]).astype(np.float32) @ sample  # faster than np.add.at
        sizes = np.bincount(nearest, minlength=count)
        filled = sizes > 0
        centroids[filled] = (sums[filled] / sizes[filled, None]).astype(np.float32)
        centroids[~filled] = sample[random.choice(size, int((~filled).sum()), replace=False)]
    return centroids


def nearest_centroids(vectors: Vectors, centroids: Vectors) -> NDArray[np.int64]:
    """Return the index of the nearest centroid of each vector, (N,)."""
    nearest = np.empty(len(vectors), np.int64)
    half = 0.5 * (centroids**2).sum(1)
    for rows in blocks(len(vectors)):
        nearest[rows] = (np.asarray(vectors[rows]) @ centroids.T - half).argmax(1)
    return nearest


def blocks(count: int, size: int = _BLOCK) -> Iterator[slice]:
    """Generate slices of at most `size` rows."""
    for begin in range(0, count, size):
        yield slice(begin, min(begin + size, count))
