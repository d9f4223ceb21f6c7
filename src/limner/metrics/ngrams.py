"""N-grams of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

MAX_ORDER = 4
"""Largest order of the n-grams that BLEU-4 and CIDEr count."""

Ngram = tuple[str, ...]


def count_ngrams(tokens: Sequence[str]) -> Counter[Ngram]:
    """Count the n-grams of orders 1 to 4 of a sentence."""
    words = tuple(tokens)
    # Tuples of the shifted sentence: faster than slicing, since a reward counts many sentences at every training step.
    shifted = [words[k:] for k in range(MAX_ORDER)]
    counts: Counter[Ngram] = Counter()
    for order in range(1, MAX_ORDER + 1):
        counts.update(zip(*shifted[:order], strict=False))
    return counts
