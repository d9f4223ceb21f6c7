"""A complete translation system, whose results are plain records: the n best translations of a search.

Koehn et al. (2007); Huang and Chiang (2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from limner.compiled import compiled
from limner.process import usable_cores
from limner.smt import NUM_FEATURES, Floats, Ints
from limner.smt.containers import pop, push
from limner.smt.decoder import NONE, Stacks, search
from limner.smt.extraction import alignment_bit
from limner.smt.features import (
    BOS,
    Limits,
    PhraseOptions,
    Tables,
    add_end_features,
    add_order_features,
    add_phrase_features,
    copy_id,
)

_MULTIPLIER = 6364136223846793005  # of the 64-bit congruential generator of Knuth


@compiled
def _add_words(tables: Tables, options: PhraseOptions, option: int, code: int) -> int:
    """Extend the hash `code` of the words after an option by the words of the option."""
    if option == NONE:
        return code
    pair = options.pairs[option]
    if pair < 0:
        return int(code * _MULTIPLIER + pair)
    for position in range(tables.word_starts[pair + 1] - 1, tables.word_starts[pair] - 1, -1):
        code = code * _MULTIPLIER - 1 - tables.words[position]
    return int(code)


@compiled
def _path(places: Ints, item: int) -> Ints:
    """Return the options of an item and of the items that follow it in its path."""
    path = [0 for _ in range(0)]
    while item != NONE:
        if places[item, 1] != NONE:
            path.append(places[item, 1])
        item = places[item, 2]
    return np.array(path, dtype=np.int64)


@compiled
def best_paths(
    tables: Tables, options: PhraseOptions, lattice: Stacks, final: int, count: int, limit: int
) -> list[Ints]:
    """Find the best paths with distinct words, by A* from the node `final` of a lattice with exact scores.

    At most `limit` paths are read, including worse paths of equal words, which are left out. A path is its option ids
    in the order of the target; the best path is first.
    """
    capacity = 1024
    places = np.empty((capacity, 3), dtype=np.int64)  # node, option that follows it, and the item of that option
    suffixes, totals = np.empty(capacity), np.empty(capacity)
    heap, hashes = np.empty(capacity, dtype=np.int64), np.zeros(capacity, dtype=np.int64)  # of the words that follow
    places[0] = (final, NONE, NONE)
    suffixes[0], totals[0] = 0.0, lattice.scores[final]
    used, size, paths = 1, push(heap, totals, 0, 0), [np.empty(0, dtype=np.int64) for _ in range(0)]
    seen, read = np.empty(count, dtype=np.int64), 0
    while size and len(paths) < count and read < limit:
        item = heap[0]
        size = pop(heap, totals, size)
        if places[item, 0] == 0:
            read += 1
            if (seen[: len(paths)] == hashes[item]).any():
                continue
            seen[len(paths)] = hashes[item]
            paths.append(_path(places, item))
            continue
        arc = lattice.arcs[places[item, 0]]
        while arc != NONE:
            if used == capacity:
                places = np.concatenate((places, np.empty_like(places)))
                suffixes = np.concatenate((suffixes, np.empty_like(suffixes)))
                totals = np.concatenate((totals, np.empty_like(totals)))
                heap = np.concatenate((heap, np.empty_like(heap)))
                hashes = np.concatenate((hashes, np.empty_like(hashes)))
                capacity *= 2
            places[used] = (lattice.arc_from[arc], lattice.arc_options[arc], item)
            suffixes[used] = suffixes[item] + lattice.arc_scores[arc]
            totals[used] = suffixes[used] + lattice.scores[lattice.arc_from[arc]]
            hashes[used] = _add_words(tables, options, lattice.arc_options[arc], hashes[item])
            size = push(heap, totals, size, used)
            used += 1
            arc = lattice.arc_next[arc]
    return paths


@compiled
def path_features(tables: Tables, options: PhraseOptions, path: Ints, size: int) -> Floats:
    """Compute the features of a path, (NUM_FEATURES,)."""
    features = np.zeros(NUM_FEATURES)
    context = np.zeros(max(1, tables.lm_order - 1), dtype=np.int64)
    context[0] = BOS
    last = np.array([NONE, NONE, NONE, min(1, tables.lm_order - 1)])
    for option in path:
        start, end, pair = options.starts[option], options.ends[option], options.pairs[option]
        add_phrase_features(tables, pair, features)
        add_order_features(tables, last, start, end, pair, context, features)
    add_end_features(tables, last, size, context, features)
    return features


MAX_PATHS = 20
"""Most paths that are read for each requested translation, as in Moses: several paths give the same words."""


class ScoredTranslation(NamedTuple):
    """A translation of a sentence; phrases and points are positions of tokens, in the order of the target."""

    tokens: tuple[int, ...]
    score: float
    """Weighted sum of the features, which is no probability."""
    features: Floats
    phrases: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    """First token of each source phrase, the token after its last, and the same two positions of its translation."""
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
        """Translate a sentence of at least one word, best first, in different words; for `copies` see `search`."""
        words = np.array(source, dtype=np.int64)
        options, lattice, final = search(
            self.tables, words, np.array(copies, dtype=np.int64), self.weights, self.limits
        )
        translations = []
        for path in best_paths(self.tables, options, lattice, final, n_best, MAX_PATHS * n_best):
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
            tokens += [copy_id(pair)] if pair < 0 else self.tables.words[starts[pair] : starts[pair + 1]].tolist()
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
