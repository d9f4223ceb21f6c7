"""Phrase-based statistical machine translation: Koehn et al. (2003, 2007), the baseline of Calixto et al. (2016, 2017).

The program is written from the papers; `limner.models.phrase_based` makes it a model like all others. Sentences are
lists of token ids of the vocabularies. Arrays are NumPy's, and the inner loops are compiled by Numba.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MAX_PHRASE_LENGTH = 7
"""Largest length of a phrase; the alignment of a phrase pair then fits into the bits of an integer."""
MONOTONE, SWAP, DISCONTINUOUS = 0, 1, 2
"""Orientations of a phrase to the previous one in the target: directly after it in the source, directly before it, or
elsewhere."""
NUM_ORIENTATIONS = 3
NUM_SCORES = 10
"""Scores of a phrase pair: log phi(f | e), log lex(f | e), log phi(e | f), log lex(e | f), and the logarithms of the
probabilities of the orientations monotone, swap and discontinuous, to the previous phrase and to the next."""
FEATURES = (
    "distortion", "language_model", "words", "phrases", "source_given_target", "lexical_source_given_target",
    "target_given_source", "lexical_target_given_source", "previous_monotone", "previous_swap",
    "previous_discontinuous", "next_monotone", "next_swap", "next_discontinuous", "unknown_words",
)  # fmt: skip
"""Names of the features: minus the number of words that phrases jump over; log-probability of the language model;
numbers of target words and of phrases; the four scores of the phrase pairs; log-probabilities of the orientations to
the previous and to the next phrase; and the number of copied words. Only a word that no phrase pair translates by
itself can be copied."""
NUM_FEATURES = len(FEATURES)
