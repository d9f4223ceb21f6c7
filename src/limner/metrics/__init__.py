"""Metrics of sentences, retrieval and novelty, and perplexity.

All scores are on the scale 0-100, as in sacrebleu (.565 in a captioning paper is 56.5 here; CIDEr, also times 100, can
exceed 100), except perplexity, ranks and counts. Every score has a signature with its settings.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from limner.errors import CollectionError, MissingExtraError, SettingsError, did_you_mean
from limner.metrics.base import Metric, MetricUnavailable, References, Statistics, check_corpus, require_sentences
from limner.metrics.base import Score as Score
from limner.metrics.caption import CAPTION_SCORES as CAPTION_SCORES
from limner.metrics.caption import CIDER, ROUGE_L
from limner.metrics.classification import LABEL_METRICS, METRICS_OF_LABELS
from limner.metrics.dense_captioning import REGION_METRICS as REGION_METRICS
from limner.metrics.meteor import METEOR, meteor_in
from limner.metrics.ranks import RETRIEVAL_METRICS as RETRIEVAL_METRICS
from limner.metrics.translation import (
    BLEU_METRICS,
    CHRF2,
    CHRF3_METRICS,
    SACREBLEU,
    SACREBLEU_BY_TOKENISER,
    TER,
    TER_TEXT,
    bleu_statistics,
    sacrebleu_in,
    sentence_bleu,
    ter_text_in,
)
from limner.storage.hashes import IdSet
from limner.text import scripts

logger = logging.getLogger(__name__)

METRICS = {
    metric.name: metric
    for metric in (
        *(*BLEU_METRICS, SACREBLEU, CHRF2, *CHRF3_METRICS, TER, TER_TEXT, CIDER, ROUGE_L, METEOR),
        *SACREBLEU_BY_TOKENISER,
        *LABEL_METRICS,
    )
}
"""Metrics of sentences and of labels by name; METEOR, BLEU and TER of running text as in English, see `metrics_for`."""
IMAGE_METRICS = (*REGION_METRICS, *CAPTION_SCORES)
"""Names of the metrics that need the images."""


def default_metrics(lang: str) -> tuple[str, ...]:
    """Return the names of the metrics of the sentences in a language, or of a kind of labels (`LABEL_LANGUAGES`).

    Metrics with a tokeniser in their name are left out: `sacrebleu` has the tokeniser of the language.
    """
    not_of_sentences = (*LABEL_METRICS, *SACREBLEU_BY_TOKENISER)
    of_sentences = tuple(name for name, metric in METRICS.items() if metric not in not_of_sentences)
    return METRICS_OF_LABELS.get(lang, of_sentences)


def require_metrics(names: Iterable[str]) -> None:
    """Raise SettingsError for the name of an unknown sentence metric."""
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        similar = did_you_mean(unknown[0], METRICS)
        raise SettingsError(f"no metric '{unknown[0]}': expected one of {', '.join(METRICS)}{similar}")


def metrics_for(lang: str) -> dict[str, Metric]:
    """Return `METRICS` with the parameters of METEOR and the tokenisers of BLEU and TER for a language."""
    return METRICS | {metric.name: metric for metric in (meteor_in(lang), sacrebleu_in(lang), ter_text_in(lang))}


def higher_is_better(name: str) -> bool:
    """Whether higher values of a metric, of perplexity or of a score of retrieval are better."""
    return METRICS[name].higher_is_better if name in METRICS else not name.endswith(("perplexity", "median_rank"))


class MetricStatistics(NamedTuple):
    """Statistics of a metric for every segment of a corpus."""

    metric: Metric
    statistics: Statistics  # sufficient statistics, (N, k)
    signature: str

    @property
    def score(self) -> Score:
        """Score of the whole corpus."""
        return Score(self.metric.name, self.metric.value(self.statistics.sum(axis=0)), self.signature)


def score_sentences(
    hypotheses: Sequence[str],
    references: References,
    metrics: Sequence[str],
    *,
    texts: tuple[Sequence[str], References] | None = None,
    lang: str = "en",
) -> list[Score]:
    """Compute the corpus scores of several metrics; see `sentence_statistics` for arguments and errors."""
    return [metric.score for metric in sentence_statistics(hypotheses, references, metrics, texts=texts, lang=lang)]


def sentence_statistics(
    hypotheses: Sequence[str],
    references: References,
    metrics: Sequence[str],
    *,
    texts: tuple[Sequence[str], References] | None = None,
    lang: str,
) -> list[MetricStatistics]:
    """Compute the segment statistics of several metrics.

    A metric that cannot be computed on this machine (missing extra, unsupported language) is left out with a warning in
    the log; a metric that does not apply to the references, without one. Hypotheses and references are N normalised
    sentences of tokens joined by spaces, and N lists of them. `texts` are both as running text for the metrics with
    their own tokenisation (sacrebleu, chrf, chrf3_text, ter_text). Without them, these metrics get the tokens, which
    their signature records; characters of scripts without spaces are joined for them.
    """
    results, left_out = available_statistics(hypotheses, references, metrics, texts=texts, lang=lang)
    for reason in left_out:
        logger.warning("%s", reason)
    return results


def available_statistics(
    hypotheses: Sequence[str],
    references: References,
    metrics: Sequence[str],
    *,
    texts: tuple[Sequence[str], References] | None = None,
    lang: str,
) -> tuple[list[MetricStatistics], list[str]]:
    """Compute the segment statistics of the metrics that are available in this installation.

    The second result has a line for each reason why metrics were left out; see `sentence_statistics` for arguments.
    """
    require_metrics(metrics)
    references = check_corpus(hypotheses, references)
    if texts is not None:
        texts = texts[0], check_corpus(*texts)
    known = metrics_for(lang)
    unit = ""
    if scripts.are_characters(token for group in references for sentence in group for token in sentence.split()):
        unit = "|unit:characters"
    as_text = texts
    if as_text is None:
        as_text = (_joined(hypotheses), list(map(_joined, references))) if unit else (hypotheses, references)
    statistics: dict[Callable[..., Statistics], Statistics | None] = {}
    missing: list[MissingExtraError] = []
    results, reasons = [], list[str]()
    for metric in (known[name] for name in metrics):
        corpus = as_text if metric.reads == "text" else (hypotheses, references)
        if not metric.applies(corpus[1]):
            logger.info("%s: left out, because no reference has what it measures", metric.name)
            continue
        if metric.statistics not in statistics:
            statistics[metric.statistics] = None
            try:
                statistics[metric.statistics] = metric.statistics(*corpus)
            except MissingExtraError as error:
                missing.append(error)
            except MetricUnavailable as error:
                reasons.append(f"{error} (left out: {metric.name})")
        rows = statistics[metric.statistics]
        if rows is not None:
            suffix = unit if metric.reads == "tokens" else "|input:tokens" if texts is None else ""
            results.append(MetricStatistics(metric, rows, metric.signature(corpus[1]) + suffix))
    if missing:
        left_out = [metric for metric in metrics if statistics.get(known[metric].statistics, ()) is None]
        reasons.append(f"{missing[0]} (left out: {', '.join(left_out)})")
    return results, reasons


def _joined(sentences: Sequence[str]) -> list[str]:
    """Join characters separated by spaces, for metrics that find words in running text."""
    return [scripts.join(sentence.split()) for sentence in sentences]


def sentence_scores(hypotheses: Sequence[str], references: References) -> list[float]:
    """Compute the smoothed BLEU-4 of each sentence, 0-100."""
    statistics = bleu_statistics(hypotheses, check_corpus(hypotheses, references))
    return [float(score) for score in sentence_bleu(statistics)]


def perplexity(total_log_prob: float, tokens: int, selection: str = "", *, count_eos: bool = True) -> Score:
    """Compute the perplexity of a corpus, Mao et al. (2015), eq. 5.

    `selection` describes the tokens for the signature, and `count_eos` says whether end-of-sentence tokens are among
    them.
    """
    if tokens < 1:
        raise CollectionError(f"perplexity: expected tokens in the split, found none ({selection or 'all tokens'})")
    mean = -total_log_prob / tokens
    value = math.exp(mean) if mean < 700 else math.inf  # exp overflows above 709
    eos = "counted" if count_eos else "not counted"
    return Score("perplexity", value, f"tokens:{tokens}|eos:{eos}" + (f"|{selection}" if selection else ""))


def novelty(hypotheses: Sequence[str], training: Iterable[str]) -> list[Score]:
    """Compute the share of generated sentences that are not in the training split (Mao et al., 2015, section 7.5).

    Sentences are tokens joined by spaces. The scores are `novel` in percent, if there are training sentences, and the
    number of distinct tokens, `distinct_words`.
    """
    require_sentences(hypotheses)
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
