"""Features of the log-linear model and their weights: Koehn et al. (2003, 2007).

The only place that knows the position of each feature: the search adds up weighted features, and the n-best lists have
the features themselves, both by the functions below.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled
from limner.smt.layout import DISCONTINUOUS, MONOTONE, NUM_FEATURES, NUM_ORIENTATIONS, SWAP
from limner.smt.tables import EOS, Tables, lm_phrase, lm_word

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_DISTORTION, LANGUAGE_MODEL, _WORDS, _PHRASES, _SCORES, _PREVIOUS, _NEXT, _UNKNOWN = 0, 1, 2, 3, 4, 8, 11, 14
"""Positions of the features; the four scores start at `_SCORES`, the orientations at `_PREVIOUS` and `_NEXT`."""
NUM_TUNED = _UNKNOWN
"""Number of features whose weights are tuned, the first ones: the weight of `unknown_words` is fixed."""

DEFAULT_WEIGHTS: Floats = np.array([0.3, 0.5, 1.0, 0.2, *[0.2] * 4, *[0.3] * 6, -100.0])
"""Weights before tuning, of the size that Koehn et al. (2007) start with. That of `words` is positive, because the
language model prefers short translations."""


@compiled
def orientation(previous_start: int, previous_end: int, start: int, end: int) -> int:
    """Return the orientation of a phrase after another, both given by their first and last source words."""
    if start == previous_end + 1:
        return MONOTONE
    return SWAP if end + 1 == previous_start else DISCONTINUOUS


@compiled
def weighted(weights: Floats, features: Floats) -> float:
    """Compute the weighted sum of features, both (NUM_FEATURES,)."""
    total = 0.0
    for feature in range(NUM_FEATURES):
        total += weights[feature] * features[feature]
    return total


@compiled
def add_phrase_features(tables: Tables, pair: int, features: Floats) -> None:
    """Add the features of a phrase pair that do not depend on other phrases to `features`, (NUM_FEATURES,)."""
    features[_PHRASES] += 1
    if pair < 0:
        features[_WORDS] += 1
        features[_UNKNOWN] += 1
        return
    features[_WORDS] += tables.word_starts[pair + 1] - tables.word_starts[pair]
    for score in range(4):
        features[_SCORES + score] += tables.scores[pair, score]


@compiled
def add_order_features(
    tables: Tables, last: Ints, start: int, end: int, pair: int, context: Ints, features: Floats
) -> None:
    """Add the features of a phrase pair that depend on what precedes it in the target to `features`, (NUM_FEATURES,).

    Args:
        tables: language model and phrase table.
        last: first and last source word of the last phrase, -1 at the beginning; its number in `Tables.next_kinds`; and
            the number of known words of `context`, (4,). Set to those of the pair.
        start: first source word of the pair.
        end: last source word of the pair.
        pair: phrase pair; below 0 for a copied word.
        context: words of the language model's context, the most recent first. Set to that after the pair.
        features: features that are added to, (NUM_FEATURES,).
    """
    log_prob, known = lm_phrase(tables, context, last[3], pair)
    features[LANGUAGE_MODEL] += log_prob
    features[_DISTORTION] -= abs(start - last[1] - 1)
    kind = orientation(last[0], last[1], start, end)
    if last[1] >= 0:
        features[_NEXT + kind] += tables.next_scores[last[2], kind]
    copied = pair < 0
    features[_PREVIOUS + kind] += np.log(1 / NUM_ORIENTATIONS) if copied else tables.scores[pair, 4 + kind]
    last[0], last[1], last[3] = start, end, known
    last[2] = len(tables.next_scores) - 1 if copied else tables.next_kinds[pair]


@compiled
def add_end_features(tables: Tables, last: Ints, size: int, context: Ints, features: Floats) -> None:
    """Add the features of the end of a sentence of `size` source words; see `add_order_features`."""
    log_prob, _ = lm_word(tables, context, last[3], EOS)
    features[LANGUAGE_MODEL] += log_prob
    kind = orientation(last[0], last[1], size, size)
    features[_NEXT + kind] += tables.next_scores[last[2], kind]
