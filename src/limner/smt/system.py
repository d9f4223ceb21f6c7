"""A complete translation system: tables, weights and limits, with its results as plain records."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.process import usable_cores
from limner.smt.decoder import search
from limner.smt.extraction import alignment_bit
from limner.smt.lattice import best_paths, path_features
from limner.smt.options import Limits, PhraseOptions
from limner.smt.tables import Tables, copying

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_PATHS = 20
"""Most paths that are read for each requested translation, as in Moses: several paths give the same words."""


class ScoredTranslation(NamedTuple):
    """A translation of a sentence; phrases and points are positions of tokens, in the order of the target."""

    tokens: tuple[int, ...]
    score: float
    """Weighted sum of the features, which is no probability."""
    features: Floats
    phrases: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    """First token of each source phrase and the one after its last, and the same of its translation."""
    alignment: tuple[tuple[int, int], ...]
    """Aligned source and target tokens."""


class System(NamedTuple):
    """Tables and weights of a log-linear model, and the limits of its search."""

    tables: Tables
    alignments: Ints
    """Aligned words of each phrase pair; see `limner.smt.extraction.Instances`."""
    weights: Floats
    limits: Limits

    def translate(self, source: Sequence[int], copies: Sequence[int], n_best: int = 1) -> list[ScoredTranslation]:
        """Translate a sentence of at least one word.

        Args:
            source: token ids.
            copies: target word of each source word if it is copied; from the size of the vocabulary on, the language
                model scores it as unknown.
            n_best: largest number of translations, of different words.

        Returns:
            Translations, the best first.
        """
        words = np.array(source, dtype=np.int64)
        options, lattice = search(self.tables, words, np.array(copies, dtype=np.int64), self.weights, self.limits)
        translations = []
        for path in best_paths(self.tables, options, lattice, n_best, MAX_PATHS * n_best):
            features = path_features(self.tables, options, path, len(words))
            translations.append(self._translation(options, path, features))
        return translations

    def translate_all(
        self, sources: Sequence[Sequence[int]], copies: Sequence[Sequence[int]], n_best: int = 1
    ) -> list[list[ScoredTranslation]]:
        """Translate sentences on all cores."""
        with ThreadPoolExecutor(usable_cores()) as pool:  # the compiled code runs without the lock
            return list(pool.map(lambda source, copied: self.translate(source, copied, n_best), sources, copies))

    def _translation(self, options: PhraseOptions, path: Ints, features: Floats) -> ScoredTranslation:
        tokens: list[int] = []
        phrases, points = [], []
        for option in path.tolist():
            pair, start, end = int(options.pairs[option]), int(options.starts[option]), int(options.ends[option]) + 1
            first, starts = len(tokens), self.tables.word_starts
            tokens += [copying(pair)] if pair < 0 else self.tables.words[starts[pair] : starts[pair + 1]].tolist()
            bits = 1 if pair < 0 else int(self.alignments[pair])
            phrases.append(((start, end), (first, len(tokens))))
            points += [
                (start + i, first + j)
                for i in range(end - start)
                for j in range(len(tokens) - first)
                if bits & alignment_bit(i, j)
            ]
        score = float(features @ self.weights)
        return ScoredTranslation(tuple(tokens), score, features, tuple(phrases), tuple(points))
