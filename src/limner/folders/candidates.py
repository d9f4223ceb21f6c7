"""Candidates of a search in a large index: images that share words with the query, and images similar to those."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from limner.features.spec import FeatureArray

SEEDS = 50
"""Number of the best images by words whose mean is the vector that further candidates are similar to."""


class WordIndex:
    """The words of the caption and the tags of each image, weighted by their rarity."""

    def __init__(self, texts: Iterable[Sequence[str]]) -> None:
        """Count words.

        Args:
            texts: the words of each of N images.
        """
        self._images: dict[str, list[int]] = {}
        self._count = 0
        for row, words in enumerate(texts):
            self._count += 1
            for word in set(words):
                self._images.setdefault(word, []).append(row)

    def scores(self, query: Sequence[str]) -> NDArray[np.float32]:
        """Sum log(N / n) over the words of a query that each image has, where n images have the word, (N,)."""
        scores = np.zeros(self._count, dtype=np.float32)
        for word in set(query):
            if images := self._images.get(word):
                scores[images] += math.log((1 + self._count) / len(images))
        return scores


def find_candidates(scores: NDArray[np.float32], vectors: FeatureArray, count: int) -> NDArray[np.int64]:
    """Return the images that a query is compared with: half of them by words, the others by similarity to the best.

    Args:
        scores: score of each image by words, (N,); an image with 0 shares none.
        vectors: vectors of unit length of the images, (N, D).
        count: number of candidates, less than N.

    Returns:
        Indices of the images, (count,); all images where none shares a word with the query.
    """
    order = np.argsort(-scores, kind="stable")
    shared = order[: min(count // 2, int((scores > 0).sum()))]
    if not len(shared):
        return order
    seeds = shared[:SEEDS]
    mean = (scores[seeds, None] * vectors[seeds].astype(np.float32)).sum(0)
    similarity = vectors.astype(np.float32) @ mean
    similarity[shared] = np.inf
    return np.argsort(-similarity, kind="stable")[:count]
