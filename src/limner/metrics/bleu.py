"""BLEU over the corpus, as section 9.3 of Mao et al. (2015) computes it, and sacrebleu's BLEU and chrF.

Both kinds of BLEU come from sacrebleu's counts. They differ in what they read: BLEU-1 to BLEU-4 see the
tokens they are given and nothing is smoothed (the captioning papers' way); sacrebleu's own BLEU tokenises
running text itself (the translation papers' way, comparable between systems).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from itertools import zip_longest

import numpy as np
import sacrebleu
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from limner.metrics.base import Metric, References, Statistics

MAX_ORDER = 4


@cache
def _counter(kind: str) -> BLEU | CHRF:
    if kind == "tokens":
        return BLEU(tokenize="none", smooth_method="none", force=True, max_ngram_order=MAX_ORDER)
    # Whether it was given running text stands in the signature; it need not guess from full stops.
    return BLEU(force=True) if kind == "bleu" else CHRF()


def _count(kind: str, hypotheses: Sequence[str], references: References) -> Statistics:
    """Count with sacrebleu, which wants references by stream: the first of every item, the second, …"""
    streams = list(zip_longest(*references))  # where an item has fewer references the stream has None
    return np.asarray(_counter(kind)._extract_corpus_statistics(hypotheses, streams), dtype=np.float64)


def bleu_statistics(hypotheses: Sequence[str], references: References) -> Statistics:
    """Count n-grams of tokens joined by blanks.

    Returns:
        (N, 10): c, the closest reference length r, matched 1- to 4-grams, all 1- to 4-grams.
    """
    return _count("tokens", hypotheses, references)


def bleu_value(order: int, totals: Statistics) -> float:
    """B-N of Mao et al. (2015), eqs. 8-9, times 100.

    Args:
        order: N, the longest n-gram.
        totals: summed statistics, (10,).
    """
    return _bleu(order, totals, smooth="none")


def sentence_bleu(statistics: Statistics) -> NDArray[np.float64]:
    """Smoothed BLEU-4 of every segment, to order segments by; unsmoothed, most of them would be 0.

    Args:
        statistics: of `bleu_statistics`, (N, 10).

    Returns:
        (N,), 0-100, with sacrebleu's exponential smoothing and effective order.
    """
    return np.array([_bleu(MAX_ORDER, row, smooth="exp") for row in statistics])


def _bleu(order: int, totals: Statistics, smooth: str) -> float:
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


def _sacrebleu_value(kind: str, totals: Statistics) -> float:
    return float(_counter(kind)._compute_score_from_stats([int(count) for count in totals]).score)


def _settings(text: str) -> str:
    return f"{text}|scale:0-100|sacrebleu:{sacrebleu.__version__}"


_TOKENS = "case:asis|eff:no|tok:given|smooth:none|reflen:closest"

BLEU_METRICS = tuple(
    Metric(
        f"bleu{order}",
        bleu_statistics,
        partial(bleu_value, order),
        partial(_settings, f"n:{order}|{_TOKENS}"),
    )
    for order in range(1, MAX_ORDER + 1)
)
SACREBLEU = Metric(
    "sacrebleu",
    partial(_count, "bleu"),
    partial(_sacrebleu_value, "bleu"),
    partial(_settings, "n:4|case:mixed|eff:no|tok:13a|smooth:exp|reflen:closest"),
    reads="text",
)
CHRF2 = Metric(
    "chrf",
    partial(_count, "chrf"),
    partial(_sacrebleu_value, "chrf"),
    partial(_settings, "case:mixed|eff:yes|nc:6|nw:0|beta:2|space:no"),
    reads="text",
)
