"""Metrics of sentences, of search and of novelty.

All values are on the scale 0-100, as sacrebleu prints them (.565 in a captioning paper is 56.5 here; CIDEr,
times 100 as well, can go beyond), except perplexity, ranks and counts. Every score carries its settings as a
signature.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from limner.errors import CollectionError, MissingExtraError, SettingsError
from limner.metrics.base import Metric, MetricUnavailable, References, Score, Statistics, check_corpus
from limner.metrics.bleu import BLEU_METRICS, SACREBLEU, bleu_statistics, sentence_bleu
from limner.metrics.caption import CIDER, ROUGE_L
from limner.metrics.chrf import CHRF2, CHRF3_METRICS
from limner.metrics.meteor import METEOR, meteor_in
from limner.metrics.novelty import novelty
from limner.metrics.ranks import (
    RetrievalRanks,
    median_rank,
    rank_all,
    recall_at,
    retrieval_curves,
    retrieval_scores,
)
from limner.metrics.ter import TER, TER_TEXT

__all__ = [
    "METRICS",
    "Metric",
    "MetricStatistics",
    "MetricUnavailable",
    "RetrievalRanks",
    "Score",
    "higher_is_better",
    "median_rank",
    "metrics_for",
    "novelty",
    "perplexity",
    "rank_all",
    "recall_at",
    "require_metrics",
    "retrieval_curves",
    "retrieval_scores",
    "score_sentences",
    "sentence_scores",
    "sentence_statistics",
]

logger = logging.getLogger(__name__)

METRICS = {
    metric.name: metric
    for metric in (*BLEU_METRICS, SACREBLEU, CHRF2, *CHRF3_METRICS, TER, TER_TEXT, CIDER, ROUGE_L, METEOR)
}
"""By name; METEOR's as it is for English, see `metrics_for`."""


def require_metrics(names: Iterable[str]) -> None:
    """Refuse unknown names before any work is done: SettingsError."""
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise SettingsError(f"no metric '{unknown[0]}': expected one of {', '.join(METRICS)}")


def metrics_for(lang: str) -> dict[str, Metric]:
    """`METRICS` as they are for sentences of a language: METEOR is tuned to each, the others are alike for all."""
    return METRICS | {METEOR.name: meteor_in(lang)}


def higher_is_better(name: str) -> bool:
    """Which way a figure goes that training can be guided by: a metric's, or perplexity."""
    return METRICS[name].higher_is_better if name in METRICS else name != "perplexity"


class MetricStatistics(NamedTuple):
    """A metric's statistics of every segment, which a significance test sums again and again."""

    metric: Metric
    statistics: Statistics
    """(N, k)."""
    signature: str

    @property
    def score(self) -> Score:
        """The score of the whole corpus."""
        return Score(self.metric.name, self.metric.value(self.statistics.sum(axis=0)), self.signature)


def score_sentences(
    hypotheses: Sequence[str],
    references: References,
    metrics: Sequence[str],
    *,
    texts: tuple[Sequence[str], References] | None = None,
    lang: str = "en",
) -> list[Score]:
    """Score N sentences by several metrics; arguments and errors as of `sentence_statistics`."""
    return [counted.score for counted in sentence_statistics(hypotheses, references, metrics, texts=texts, lang=lang)]


def sentence_statistics(
    hypotheses: Sequence[str],
    references: References,
    metrics: Sequence[str],
    *,
    texts: tuple[Sequence[str], References] | None = None,
    lang: str,
) -> list[MetricStatistics]:
    """Count what several metrics need of N sentences.

    A metric that cannot run here (an extra that is not installed, no Java, a language it does not know) is left out
    with one line in the log; the others still come.

    Args:
        hypotheses: normalised tokens joined by blanks, N of them.
        references: N lists of sentences in the same form; they may differ in length.
        metrics: names in `METRICS`; they come in this order.
        texts: hypotheses and references again as running text, for the metrics that tokenise by themselves
            (sacrebleu, chrf, chrf3_text, ter_text); without it they read the tokens, and their signature says so.
        lang: of the sentences.

    Raises:
        SettingsError: a metric is unknown.
        CollectionError: an item has no reference, or there are no items.
    """
    require_metrics(metrics)
    references = check_corpus(hypotheses, references)
    if texts is not None:
        texts = texts[0], check_corpus(*texts)
    known = metrics_for(lang)
    statistics: dict[Callable[..., Statistics], Statistics | None] = {}
    missing: list[MissingExtraError] = []
    counted = []
    for metric in (known[name] for name in metrics):
        corpus = texts if metric.reads == "text" and texts is not None else (hypotheses, references)
        if metric.statistics not in statistics:
            statistics[metric.statistics] = _count(metric, *corpus, missing)
        rows = statistics[metric.statistics]
        if rows is not None:
            note = "|input:tokens" if metric.reads == "text" and texts is None else ""
            counted.append(MetricStatistics(metric, rows, metric.signature(corpus[1]) + note))
    if missing:
        left_out = [metric for metric in metrics if statistics[known[metric].statistics] is None]
        logger.warning("%s (left out: %s)", missing[0], ", ".join(left_out))
    return counted


def _count(
    metric: Metric, hypotheses: Sequence[str], references: References, missing: list[MissingExtraError]
) -> Statistics | None:
    try:
        return metric.statistics(hypotheses, references)
    except MissingExtraError as error:
        missing.append(error)
    except MetricUnavailable as error:
        logger.warning("%s (left out: %s)", error, metric.name)
    return None


def sentence_scores(hypotheses: Sequence[str], references: References) -> list[float]:
    """Smoothed BLEU-4 of each sentence, 0-100: what a report orders its best and worst by."""
    statistics = bleu_statistics(hypotheses, check_corpus(hypotheses, references))
    return [float(score) for score in sentence_bleu(statistics)]


def perplexity(total_log_prob: float, words: int, counted: str = "") -> Score:
    """Perplexity of a corpus, Mao et al. (2015), eq. 5; with 2 or e as the base it is the same number.

    Args:
        total_log_prob: natural logarithm of the probability of all words together.
        words: how many were predicted, end signs included.
        counted: which words these are, for the signature, where they are not all.

    Raises:
        CollectionError: there are no words.
    """
    if words < 1:
        raise CollectionError(f"perplexity of no words: the split has no sentences to count ({counted or 'all words'})")
    mean = -total_log_prob / words
    value = math.exp(mean) if mean < 700 else math.inf  # beyond, exp overflows
    return Score("perplexity", value, f"words:{words}|end sign:counted" + (f"|{counted}" if counted else ""))
