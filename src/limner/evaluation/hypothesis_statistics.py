"""Metric statistics of decoded hypotheses."""

from __future__ import annotations

from collections.abc import Sequence

from limner.data.dataset import GenerationInput
from limner.decoding.sentence import Sentence
from limner.metrics import MetricStatistics, sentence_statistics
from limner.text.labels import LABEL_LANGUAGES
from limner.text.tokenizer import Tokenizer

Texts = tuple[list[str], list[tuple[str, ...]]]
"""Hypotheses and their references as running text."""


def hypothesis_statistics(
    tokenizer: Tokenizer,
    best: Sequence[Sentence],
    inputs: Sequence[GenerationInput],
    metrics: Sequence[str],
    texts: Texts | None = None,
) -> list[MetricStatistics]:
    """Compute the statistics of several metrics; metrics that cannot be computed on this machine are left out.

    Metrics with their own tokenisation are given running text, unless the vocabulary has no case or no punctuation.

    Args:
        tokenizer: tokenizer of the hypotheses.
        best: one hypothesis of each input.
        inputs: inputs with their references.
        metrics: names of metrics.
        texts: running text of the hypotheses and references; None for that of the tokenizer.
    """
    tokens = [tokenizer.decode(hypothesis.tokens, copied=hypothesis.copied) for hypothesis in best]
    references = [[" ".join(tokenizer.words(text)) for text in one.references] for one in inputs]
    if texts is None and not tokenizer.settings.lowercase and tokenizer.settings.punctuation:
        running_text = [
            tokenizer.decode(hypothesis.tokens, detokenise=True, copied=hypothesis.copied) for hypothesis in best
        ]
        texts = (running_text, [one.references for one in inputs])
    statistics = sentence_statistics(tokens, references, metrics, texts=texts, lang=tokenizer.settings.lang)
    if tokenizer.settings.lang in LABEL_LANGUAGES:
        return statistics
    # Metrics of tokens, and those of running text that read tokens, depend on how the text was split into words.
    return [
        one._replace(signature=f"{one.signature}|{tokenizer.settings.signature}")
        if one.metric.reads == "tokens" or texts is None
        else one
        for one in statistics
    ]
