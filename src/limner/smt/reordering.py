"""Lexicalised reordering, msd-bidirectional-fe: Koehn et al. (2005), section 3; Tillmann (2004).

The orientation of a phrase is its place in the source, relative to the phrase that precedes it in the target: directly
after it (monotone), directly before it (swap), or elsewhere (discontinuous). It is modelled given the phrase pair, for
the previous phrase and for the next one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MONOTONE, SWAP, DISCONTINUOUS = 0, 1, 2
NUM_ORIENTATIONS = 3
SMOOTHING = 0.5
"""Number sigma of added observations, distributed as in the whole data; Moses adds 0.5 to each orientation."""


def orientation_log_probs(pairs: Ints, orientations: Ints, num_pairs: int) -> Floats:
    """Estimate log P(o | f, e) = log((sigma P(o) + c(o, f, e)) / (sigma + c(f, e))), Koehn et al. (2005), section 3.

    Args:
        pairs: number of the phrase pair of each occurrence, (N,).
        orientations: its orientation, (N,).
        num_pairs: number of pairs P.

    Returns:
        Natural logarithms, (P, NUM_ORIENTATIONS). P(o) has one more observation of each orientation, so that none is 0.
    """
    keys = pairs * NUM_ORIENTATIONS + orientations
    counts = np.bincount(keys, minlength=num_pairs * NUM_ORIENTATIONS).reshape(num_pairs, NUM_ORIENTATIONS)
    overall = counts.sum(0) + 1
    smoothed = counts + SMOOTHING * overall / overall.sum()
    result: Floats = np.log(smoothed / smoothed.sum(1, keepdims=True))
    return result


@compiled
def orientation(previous_start: int, previous_end: int, start: int, end: int) -> int:
    """Return the orientation of a phrase after another, both given by their first and last source words."""
    if start == previous_end + 1:
        return MONOTONE
    return SWAP if end + 1 == previous_start else DISCONTINUOUS
