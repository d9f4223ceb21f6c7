"""K-best batch MIRA on BLEU: Cherry and Foster (2012), section 3.2, figure 1.

Departures from the program of the authors in Moses: the background is updated by the best translation of the model and
after every sentence, not by the hope and only where hope and fear differ; it starts with ones; and the weights of the
best of 30 epochs are kept, each the mean of its own, not of the best of 60 with the mean from the start.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled
from limner.smt.mert import NUM_STATISTICS, Candidates, bleu, corpus_bleu

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

DECAY = 0.999
"""Factor gamma of the background statistics after each sentence."""
REGULARISATION = 0.01
"""Largest step C of an update."""
EPOCHS = 30
"""Passes over the sentences."""


@compiled
def _epoch(
    features: Floats, statistics: Floats, first: Ints, order: Ints, weights: Floats, background: Floats, tuned: int
) -> Floats:
    """Update the weights and the background for every sentence; return the mean of the weights after each.

    BLEU of a candidate is that of its statistics added to the decayed background, times the length of the references of
    both, after Chiang et al. (2008). The hope maximises model score plus BLEU, the fear model score minus BLEU.
    """
    total = np.zeros(len(weights))
    for sentence in order:
        low, high = first[sentence], first[sentence + 1]
        scores = features[low:high] @ weights
        values = np.empty(high - low)
        for k in range(high - low):
            values[k] = bleu(background + statistics[low + k]) * (background[-1] + statistics[low + k, -1])
        hope, fear = np.argmax(scores + values), np.argmax(scores - values)
        chosen = np.argmax(scores)
        difference = features[low + hope] - features[low + fear]
        difference[tuned:] = 0
        norm = (difference * difference).sum()
        loss = values[hope] - values[fear] - (scores[hope] - scores[fear])
        if norm > 0 and loss > 0:
            weights += min(REGULARISATION, loss / norm) * difference
        background[:] = DECAY * background + statistics[low + chosen]
        total += weights
    return total / len(order)


def optimise(candidates: Candidates, start: Floats, tuned: int, rng: np.random.Generator) -> tuple[Floats, float]:
    """Optimise the weights, and return those of the best epoch with their BLEU; the initial ones are none of them.

    Args:
        candidates: n-best translations.
        start: initial weights, (F,).
        tuned: number of weights that change, the first ones.
        rng: draws the order of the sentences.
    """
    weights, background = start.copy(), np.ones(NUM_STATISTICS)
    best, best_bleu = start, -1.0
    for _ in range(EPOCHS):
        order = rng.permutation(len(candidates.first) - 1)
        mean = _epoch(*candidates, order, weights, background, tuned)
        value = corpus_bleu(candidates, mean)
        if value > best_bleu:
            best, best_bleu = mean, value
    return best, best_bleu
