"""Sufficient statistics of metrics over decoded hypotheses."""

from __future__ import annotations

from collections.abc import Sequence

from limner.data.dataset import GenerationInput
from limner.decoding.hypotheses import Hypothesis
from limner.metrics import MetricStatistics, sentence_statistics
from limner.text.tokenizer import Tokenizer


def hypothesis_statistics(
    tokenizer: Tokenizer, best: Sequence[Hypothesis], asked: Sequence[GenerationInput], metrics: Sequence[str]
) -> list[MetricStatistics]:
    """What metrics count of the sentences found, one by one; metrics that cannot run here are left out.

    Those that tokenise by themselves read running text, unless the vocabulary has no case or no punctuation.
    """
    said = [tokenizer.decode(one.tokens) for one in best]
    references = [[" ".join(tokenizer.words(text)) for text in query.references] for query in asked]
    texts = None
    if not tokenizer.settings.lowercase and tokenizer.settings.punctuation:
        running = [tokenizer.decode(one.tokens, detokenise=True) for one in best]
        texts = (running, [query.references for query in asked])
    return sentence_statistics(said, references, metrics, texts=texts, lang=tokenizer.settings.lang)
