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
        `novel` in percent, and `distinct_words`.

    Raises:
        CollectionError: there are no hypotheses.
    """
    if not hypotheses:
        raise CollectionError("there is no generated sentence: the split is empty")
    known = {tuple(sentence.split()) for sentence in training}
    said = [tuple(sentence.split()) for sentence in hypotheses]
    novel = sum(sentence not in known for sentence in said) / len(said)
    words = {word for sentence in said for word in sentence}
    where = f"sentences:{len(said)}|tok:given"
    return [
        Score("novel", 100 * novel, f"against:{len(known)} distinct training sentences|{where}|scale:0-100"),
        Score("distinct_words", float(len(words)), where),
    ]
