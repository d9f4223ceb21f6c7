"""Statistics of BLEU of token ids, for tuning: Papineni et al. (2002)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled

Floats = NDArray[np.float64]

MAX_ORDER = 4
NUM_STATISTICS = 2 * MAX_ORDER + 2
"""Matched n-grams of each order, n-grams of each order, words, and words of the reference."""


def ngram_counts(tokens: Sequence[int]) -> Counter[tuple[int, ...]]:
    """Count the n-grams of up to four tokens."""
    return Counter(tuple(tokens[i : i + n]) for n in range(1, MAX_ORDER + 1) for i in range(len(tokens) - n + 1))


class Reference:
    """References of one sentence, whose counts are kept for many hypotheses."""

    def __init__(self, references: Sequence[Sequence[int]]) -> None:
        self.counts: Counter[tuple[int, ...]] = Counter()
        for tokens in references:
            self.counts |= ngram_counts(tokens)
        self.lengths = sorted(len(tokens) for tokens in references)

    def statistics(self, hypothesis: Sequence[int]) -> Floats:
        """Compute the statistics of a hypothesis, (NUM_STATISTICS,); the length is that of the closest reference."""
        result = np.zeros(NUM_STATISTICS)
        for ngram, count in ngram_counts(hypothesis).items():
            result[len(ngram) - 1] += min(count, self.counts[ngram])
            result[MAX_ORDER + len(ngram) - 1] += count
        result[-2] = len(hypothesis)
        result[-1] = min(self.lengths, key=lambda length: (abs(length - len(hypothesis)), length))
        return result


@compiled
def bleu(statistics: Floats) -> float:
    """Compute BLEU, 0 to 1, of summed statistics; 0 where an order has no match."""
    log_precision = 0.0
    for n in range(MAX_ORDER):
        if statistics[n] <= 0:
            return 0.0
        log_precision += np.log(statistics[n] / statistics[MAX_ORDER + n]) / MAX_ORDER
    brevity = min(0.0, 1 - statistics[2 * MAX_ORDER + 1] / statistics[2 * MAX_ORDER])
    return float(np.exp(log_precision + brevity))
