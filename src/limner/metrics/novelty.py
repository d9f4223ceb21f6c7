"""Novelty of generated sentences (Mao et al., 2015, section 7.5) and size of their vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from limner.errors import CollectionError
from limner.metrics.base import Score
from limner.storage.ids import IdSet


def novelty(hypotheses: Sequence[str], training: Iterable[str]) -> list[Score]:
    """Compute the share of generated sentences that are not in the training split, and their number of distinct tokens.

    Args:
        hypotheses: generated sentences as tokens joined by spaces.
        training: sentences of the training split, normalised in the same way.

    Returns:
        `novel` in percent, if there are training sentences, and `distinct_words`.

    Raises:
        CollectionError: there are no hypotheses.
    """
    if not hypotheses:
        raise CollectionError("expected generated sentences, found none: the split is empty")
    known = IdSet(" ".join(sentence.split()) for sentence in training)
    generated = [" ".join(sentence.split()) for sentence in hypotheses]
    counts = f"sentences:{len(generated)}|tok:given"
    vocabulary = {token for sentence in generated for token in sentence.split()}
    scores = [Score("distinct_words", float(len(vocabulary)), counts)]
    if len(known):
        novel = 100 * sum(sentence not in known for sentence in generated) / len(generated)
        signature = f"against:{len(known)} distinct training sentences|{counts}|scale:0-100"
        scores.insert(0, Score("novel", novel, signature))
    return scores
