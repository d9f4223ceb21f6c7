"""What a model says of its own: novel sentences (Mao et al., 2015, section 7.5) and its words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from limner.errors import CollectionError
from limner.metrics.base import Score


def novelty(hypotheses: Sequence[str], training: Iterable[str]) -> list[Score]:
    """Share of the generated sentences that no training sentence equals, and how many words they use.

    Args:
        hypotheses: tokens joined by blanks.
        training: every sentence of the training split, normalised the same way.

    Returns:
        `novel` in percent, unless there is no training sentence to compare with, and `distinct_words`.

    Raises:
        CollectionError: there are no hypotheses.
    """
    if not hypotheses:
        raise CollectionError("there is no generated sentence: the split is empty")
    known = {tuple(sentence.split()) for sentence in training}
    said = [tuple(sentence.split()) for sentence in hypotheses]
    where = f"sentences:{len(said)}|tok:given"
    scores = [Score("distinct_words", float(len({word for sentence in said for word in sentence})), where)]
    if known:
        novel = 100 * sum(sentence not in known for sentence in said) / len(said)
        against = f"against:{len(known)} distinct training sentences|{where}|scale:0-100"
        scores.insert(0, Score("novel", novel, against))
    return scores
