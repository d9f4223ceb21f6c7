"""Variations of real feature vectors, for collections of any size whose features are distributed like real ones.

A variation of a vector x_a, with three of its neighbours b, c and d by cosine similarity, is

    max(0, m x_a + (1 - m) x_b + s (x_c - x_d)),    m uniform between 0 and 1,

a convex mixture of two similar images and a difference of two others in a local direction, which keeps the variances
and the distances of neighbours near the distances of the real vectors; independent noise of each value would not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NEIGHBOURS = 50
"""Number of neighbours that b, c and d are drawn from."""
SPREAD = 0.75
"""Factor s of the difference of two neighbours."""
BLOCK = 1024
"""Number of variations that are drawn with the same random numbers, so that any part of them can be made again."""


class FeatureVariations:
    """Endless sequence of variations of N real vectors; the same seed gives the same values."""

    def __init__(self, features: NDArray[np.floating], seed: int = 0) -> None:
        """Find the neighbours of the real vectors.

        Args:
            features: real vectors without negative values, (N, D), at least two.
            seed: random seed.
        """
        self._features, self._seed = features.astype(np.float32), seed
        unit = self._features / np.maximum(np.linalg.norm(self._features, axis=1, keepdims=True), 1e-12)
        similarity = unit @ unit.T
        np.fill_diagonal(similarity, -np.inf)
        count = min(NEIGHBOURS, len(features) - 1)
        self._neighbours = np.argpartition(-similarity, count - 1, axis=1)[:, :count]

    def rows(self, begin: int, end: int) -> NDArray[np.float16]:
        """Return the variations `begin` to `end - 1`, (end - begin, D)."""
        first = begin // BLOCK
        blocks = [self._block(block) for block in range(first, -(-end // BLOCK))]
        return np.concatenate(blocks)[begin - first * BLOCK : end - first * BLOCK]

    def _block(self, block: int) -> NDArray[np.float16]:
        random = np.random.default_rng([self._seed, block])
        own = random.integers(len(self._features), size=BLOCK)
        other, plus, minus = self._neighbours[own, random.integers(self._neighbours.shape[1], size=(3, BLOCK))]
        share = random.random((BLOCK, 1), dtype=np.float32)
        features = self._features
        mixture = share * features[own] + (1 - share) * features[other]
        values: NDArray[np.float16] = np.maximum(mixture + SPREAD * (features[plus] - features[minus]), 0).astype("<f2")
        return values
