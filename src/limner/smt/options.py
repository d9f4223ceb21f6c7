"""Phrase pairs that translate spans of a sentence, and estimates of future costs: Koehn et al. (2003), section 2.3."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled
from limner.smt.containers import NOT_FOUND, find
from limner.smt.features import LANGUAGE_MODEL, add_phrase_features, weighted
from limner.smt.layout import NUM_FEATURES
from limner.smt.tables import Tables, copying, lm_phrase

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Limits(NamedTuple):
    """Limits of the search."""

    stack_size: int
    """Pop limit of cube pruning: number of hypotheses that are made for a stack, those that are recombined included."""
    distortion_limit: int
    """Maximum distance in words from the first untranslated source word to the end of the next phrase. A phrase that
    begins at that word is always allowed."""
    max_length: int
    """Number of words of a source phrase."""


class PhraseOptions(NamedTuple):
    """Phrase pairs that translate spans of a sentence, those of a span together, best first."""

    starts: Ints  # (O,): first source word
    ends: Ints  # (O,): last source word
    pairs: Ints  # (O,): phrase pair; below 0 for a copied word
    fixed: Floats  # (O,): weighted features that do not depend on other phrases, without the language model
    estimates: Floats  # (O,): `fixed` and the language model's score of the words without context
    spans: Ints  # (S, max_length + 1): options of the span of n words from i are spans[i, n - 1] … spans[i, n] - 1


@compiled
def _fixed(tables: Tables, pair: int, weights: Floats, features: Floats) -> float:
    """Weigh the features of a phrase pair that do not depend on other phrases; `features` is overwritten."""
    features[:] = 0
    add_phrase_features(tables, pair, features)
    return float(weighted(weights, features))


@compiled
def find_options(tables: Tables, source: Ints, copies: Ints, weights: Floats, limits: Limits) -> PhraseOptions:
    """Find the phrase pairs of all spans; a word that no pair translates by itself can be copied."""
    size, longest = len(source), limits.max_length
    starts, ends, pairs = [0 for _ in range(0)], [0 for _ in range(0)], [0 for _ in range(0)]
    fixed, estimates = [0.0 for _ in range(0)], [0.0 for _ in range(0)]
    spans = np.zeros((size, longest + 1), dtype=np.int64)
    context, features = np.zeros(max(1, tables.lm_order - 1), dtype=np.int64), np.empty(NUM_FEATURES)
    for start in range(size):
        node = 0
        spans[start, 0] = len(starts)
        for length in range(1, longest + 1):
            end = start + length - 1
            if end < size and node != NOT_FOUND:
                node = find(tables.edges, node * tables.source_size + source[end])
                low, high = (0, 0) if node == NOT_FOUND else (tables.first[node], tables.first[node + 1])
                count = high - low
                inner, whole = np.empty(count), np.empty(count)
                for k in range(count):
                    inner[k] = _fixed(tables, low + k, weights, features)
                    whole[k] = inner[k] + weights[LANGUAGE_MODEL] * lm_phrase(tables, context, 0, low + k)[0]
                for k in np.argsort(-whole, kind="mergesort"):
                    starts.append(start)
                    ends.append(end)
                    pairs.append(low + k)
                    fixed.append(inner[k])
                    estimates.append(whole[k])
                if length == 1 and count == 0:
                    starts.append(start)
                    ends.append(end)
                    pairs.append(copying(copies[start]))
                    fixed.append(_fixed(tables, pairs[-1], weights, features))
                    estimates.append(fixed[-1] + weights[LANGUAGE_MODEL] * lm_phrase(tables, context, 0, pairs[-1])[0])
            spans[start, length] = len(starts)
    return PhraseOptions(np.array(starts), np.array(ends), np.array(pairs), np.array(fixed), np.array(estimates), spans)


@compiled
def future_scores(options: PhraseOptions, size: int) -> Floats:
    """Compute the best sum of estimates that translates the words i … j - 1, (S + 1, S + 1)."""
    best = np.full((size + 1, size + 1), -np.inf)
    for start in range(size + 1):
        best[start, start] = 0.0
    for option in range(len(options.starts)):
        start, end = options.starts[option], options.ends[option] + 1
        best[start, end] = max(best[start, end], options.estimates[option])
    for length in range(2, size + 1):
        for start in range(size - length + 1):
            end = start + length
            for middle in range(start + 1, end):
                best[start, end] = max(best[start, end], best[start, middle] + best[middle, end])
    return best
