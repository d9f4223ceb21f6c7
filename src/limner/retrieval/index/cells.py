"""Cells of vectors by k-means, and coordinates whose first few carry most of the inner products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
ITERATIONS = 10
SEED = 1
SAMPLED_PER_CELL = 64
"""Number of vectors of the sample for each cell."""
_BLOCK = 8192


def fit_centroids(vectors: Vectors, count: int, iterations: int = ITERATIONS) -> Vectors:
    """Compute C centroids (C, D) of vectors (N, D) on a sample by Lloyd's algorithm; no cell stays empty."""
    random = np.random.default_rng(SEED)
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


Floats = NDArray[np.float64]
_RIDGE = 1e-4
"""Share of the mean variance that is added to all variances, which bounds the condition of the coordinates."""

_ITERATIONS = 6


class Coordinates(NamedTuple):
    """A change of coordinates that keeps inner products: q z = (dual q) (primal z)."""

    primal: Floats  # (D, D), applied to image terms
    dual: Floats  # (D, D), applied to gradients


def balanced_coordinates(terms: Floats, gradients: Floats) -> Coordinates:
    """Compute the coordinates in which terms (N, D) and gradients (M, D), centred, have equal variances, descending.

    The inner product of the coordinates left out is then small in the mean, as in the balanced truncation of linear
    systems (Moore, 1981).
    """
    left, right = (_cholesky_factor(values) for values in (terms, gradients))
    _, scales, turned = np.linalg.svd(left.T @ right)
    primal = ((scales**-0.5)[:, None] * (turned @ right.T)).astype(np.float64, copy=False)
    dual = np.linalg.inv(primal).T.astype(np.float64, copy=False)
    return Coordinates(primal, dual)


def leading_directions(vectors: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Compute an orthonormal basis (D, K) of the directions of largest variance of (N, D), by subspace iteration."""
    basis = np.random.default_rng(SEED).standard_normal((vectors.shape[1], count), np.float32)
    for _ in range(_ITERATIONS):
        basis, _ = np.linalg.qr(vectors.T @ (vectors @ basis))
    return basis


def _cholesky_factor(values: Floats) -> Floats:
    """Compute the Cholesky factor of the second moments of some vectors, with a ridge."""
    moments = values.T @ values / len(values)
    ridge = _RIDGE * np.trace(moments) / len(moments) + 1e-12
    root = np.linalg.cholesky(moments + ridge * np.eye(len(moments)))
    return root.astype(np.float64, copy=False)
