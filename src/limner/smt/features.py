"""Features of the log-linear model and their weights: Koehn et al. (2003, 2007)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEATURES = (
    "distortion",
    "language_model",
    "words",
    "phrases",
    "source_given_target",
    "lexical_source_given_target",
    "target_given_source",
    "lexical_target_given_source",
    "previous_monotone",
    "previous_swap",
    "previous_discontinuous",
    "next_monotone",
    "next_swap",
    "next_discontinuous",
    "unknown_words",
)
"""Names of the features: minus the number of words that phrases jump over; log-probability of the language model;
numbers of target words and of phrases; scores of the phrase pairs; log-probabilities of the orientations to the
previous and to the next phrase; number of source words that are copied because no phrase pair has them."""
NUM_FEATURES = len(FEATURES)
DISTORTION, LANGUAGE_MODEL, WORDS, PHRASES, SCORES, PREVIOUS, NEXT, UNKNOWN = 0, 1, 2, 3, 4, 8, 11, 14
"""Positions of the features; the four scores start at `SCORES`, the orientations at `PREVIOUS` and `NEXT`."""
NUM_TUNED = UNKNOWN
"""Number of features whose weights are tuned, the first ones: the weight of `unknown_words` is fixed."""

DEFAULT_WEIGHTS: Floats = np.array([0.3, 0.5, 1.0, 0.2, *[0.2] * 4, *[0.3] * 6, -100.0])
"""Weights before tuning, of the size that Koehn et al. (2007) start with. That of `words` is positive, because the
language model prefers short translations."""
