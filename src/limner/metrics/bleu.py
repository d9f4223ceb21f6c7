"""Corpus BLEU: BLEU-1 to BLEU-4 of given tokens, and sacrebleu's BLEU of running text.

Both use sacrebleu's n-gram counts. BLEU-1 to BLEU-4 take tokens and are not smoothed, as in captioning papers (Mao et
al., 2015, section 9.3); sacrebleu's BLEU tokenises running text itself, so that systems with different tokenisation
are comparable, as in translation papers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from limner.metrics.base import Metric, References, Statistics

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as Sacrebleu

MAX_ORDER = 4


@cache
def _tokens() -> Sacrebleu:
    """BLEU of tokens; created when first used, as sacrebleu takes time to import."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize="none", smooth_method="none", force=True, max_ngram_order=MAX_ORDER)


@cache
def _text() -> Sacrebleu:
    """BLEU of running text; `force` suppresses the warning about tokenised input, which the signature states."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(force=True)


def sacrebleu_statistics(
    counter: Callable[[], Sacrebleu], hypotheses: Sequence[str], references: References
) -> Statistics:
    """Compute the statistics of a sacrebleu metric for every segment, (N, k)."""
    streams = list(zip_longest(*references))  # transposed: the first references, the second ones, …, or None
    return np.asarray(counter()._extract_corpus_statistics(hypotheses, streams), dtype=np.float64)


def sacrebleu_value(counter: Callable[[], Sacrebleu], totals: Statistics) -> float:
    """Compute the score of a sacrebleu metric from summed statistics, (k,)."""
    return float(counter()._compute_score_from_stats(totals.tolist()).score)


def sacrebleu_settings(text: str) -> str:
    """Append the scale and the version of sacrebleu to a signature."""
    import sacrebleu

    return f"{text}|scale:0-100|sacrebleu:{sacrebleu.__version__}"


def bleu_statistics(hypotheses: Sequence[str], references: References) -> Statistics:
    """Count the n-grams of tokens joined by spaces.

    Returns:
        (N, 10): length c of the hypothesis, closest reference length r, number of matched 1- to 4-grams, number of all
        1- to 4-grams.
    """
    return sacrebleu_statistics(_tokens, hypotheses, references)


def bleu_value(order: int, totals: Statistics) -> float:
    """Compute BLEU-N, Mao et al. (2015), eqs. 8-9, times 100.

    Args:
        order: maximum n-gram order N.
        totals: summed statistics, (10,).
    """
    return _bleu(order, totals, smooth="none")


def sentence_bleu(statistics: Statistics) -> NDArray[np.float64]:
    """Compute BLEU-4 of every segment with sacrebleu's exponential smoothing and effective order.

    Args:
        statistics: statistics of `bleu_statistics`, (N, 10).

    Returns:
        (N,), 0-100.
    """
    return np.array([_bleu(MAX_ORDER, row, smooth="exp") for row in statistics])


def _bleu(order: int, totals: Statistics, smooth: str) -> float:
    from sacrebleu.metrics.bleu import BLEU

    counts = [int(count) for count in totals]
    score = BLEU.compute_bleu(
        correct=counts[2 : 2 + order],
        total=counts[2 + MAX_ORDER : 2 + MAX_ORDER + order],
        sys_len=counts[0],
        ref_len=counts[1],
        smooth_method=smooth,
        effective_order=smooth != "none",
        max_ngram_order=order,
    )
    return float(score.score)


_GIVEN = "case:asis|eff:no|tok:given|smooth:none|reflen:closest"

BLEU_METRICS = tuple(
    Metric(
        f"bleu{order}",
        bleu_statistics,
        partial(bleu_value, order),
        partial(sacrebleu_settings, f"n:{order}|{_GIVEN}"),
    )
    for order in range(1, MAX_ORDER + 1)
)
SACREBLEU = Metric(
    "sacrebleu",
    partial(sacrebleu_statistics, _text),
    partial(sacrebleu_value, _text),
    partial(sacrebleu_settings, "n:4|case:mixed|eff:no|tok:13a|smooth:exp|reflen:closest"),
    reads="text",
)
