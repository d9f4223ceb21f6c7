"""A complete translation system: tables, weights and limits, with its results as plain records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class Segment(NamedTuple):
    """A phrase pair of a translation."""

    source: tuple[int, int]
    """First source word, and the one after the last."""
    target: tuple[int, int]
    """First target word, and the one after the last."""
    points: tuple[tuple[int, int], ...]
    """Aligned source and target words, by their positions in the sentences."""


class PhrasalTranslation(NamedTuple):
    """A translation."""

    tokens: tuple[int, ...]
    score: float
    """Weighted sum of the features."""
    features: Floats
    segments: tuple[Segment, ...]
    """Phrase pairs in the order of the target."""


class System(NamedTuple):
    """Tables and weights of a log-linear model, and the limits of its search."""

    tables: Tables
    alignments: Ints
    """Aligned words of each phrase pair; see `limner.smt.extraction.Instances`."""
    weights: Floats
    limits: Limits

    def translate(self, source: Sequence[int], copies: Sequence[int], n_best: int = 1) -> list[PhrasalTranslation]:
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
        found = []
        for path in best_paths(self.tables, options, lattice, n_best, MAX_PATHS * n_best):
            features = path_features(self.tables, options, path, len(words))
            tokens, score = self._tokens(options, path), float(features @ self.weights)
            found.append(PhrasalTranslation(tokens, score, features, self._segments(options, path)))
        return found

    def translate_all(
        self,
        sources: Sequence[Sequence[int]],
        copies: Sequence[Sequence[int]],
        n_best: int = 1,
        on_done: Callable[[int], None] | None = None,
    ) -> list[list[PhrasalTranslation]]:
        """Translate sentences on all cores; `on_done` is called with the number of sentences done."""
        result = []
        with ThreadPoolExecutor(usable_cores()) as pool:  # the compiled code runs without the lock
            translations = pool.map(lambda source, copied: self.translate(source, copied, n_best), sources, copies)
            for done, candidates in enumerate(translations, 1):
                result.append(candidates)
                if on_done is not None:
                    on_done(done)
        return result

    def _target(self, pair: int) -> list[int]:
        """Return the target words of a phrase pair."""
        if pair < 0:
            return [copying(pair)]
        starts = self.tables.word_starts
        words: list[int] = self.tables.words[starts[pair] : starts[pair + 1]].tolist()
        return words

    def _tokens(self, options: PhraseOptions, path: Ints) -> tuple[int, ...]:
        return tuple(token for pair in options.pairs[path].tolist() for token in self._target(pair))

    def _segments(self, options: PhraseOptions, path: Ints) -> tuple[Segment, ...]:
        segments, position = [], 0
        for option in path.tolist():
            pair, start, end = int(options.pairs[option]), int(options.starts[option]), int(options.ends[option]) + 1
            length = len(self._target(pair))
            bits = 1 if pair < 0 else int(self.alignments[pair])
            points = tuple(
                (start + i, position + j)
                for i in range(end - start)
                for j in range(length)
                if bits & alignment_bit(i, j)
            )
            segments.append(Segment((start, end), (position, position + length), points))
            position += length
        return tuple(segments)
