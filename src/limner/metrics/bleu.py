"""BLEU over the corpus, as section 9.3 of Mao et al. (2015) computes it, and sacrebleu's BLEU.

Both kinds of BLEU come from sacrebleu's counts. They differ in what they read: BLEU-1 to BLEU-4 see the
tokens they are given and nothing is smoothed (the captioning papers' way); sacrebleu's own BLEU tokenises
running text itself (the translation papers' way, comparable between systems).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest

import numpy as np
import sacrebleu
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric as Sacrebleu
from sacrebleu.metrics.bleu import BLEU

from limner.metrics.base import Metric, References, Statistics

MAX_ORDER = 4


_TOKENS = BLEU(tokenize="none", smooth_method="none", force=True, max_ngram_order=MAX_ORDER)
_TEXT = BLEU(force=True)  # whether it was given running text stands in the signature; it need not guess from full stops


def sacrebleu_statistics(counter: Sacrebleu, hypotheses: Sequence[str], references: References) -> Statistics:
    """What one of sacrebleu's metrics keeps of every segment, (N, k)."""
    streams = list(zip_longest(*references))  # sacrebleu wants the first of every item, the second, …, or None
    return np.asarray(counter._extract_corpus_statistics(hypotheses, streams), dtype=np.float64)


def sacrebleu_value(counter: Sacrebleu, totals: Statistics) -> float:
    """What one of sacrebleu's metrics makes of summed statistics, (k,)."""
    return float(counter._compute_score_from_stats(totals.tolist()).score)


def sacrebleu_settings(text: str) -> str:
    """A signature's end, the same for all that sacrebleu counts."""
    return f"{text}|scale:0-100|sacrebleu:{sacrebleu.__version__}"


def bleu_statistics(hypotheses: Sequence[str], references: References) -> Statistics:
    """Count n-grams of tokens joined by blanks.

    Returns:
        (N, 10): c, the closest reference length r, matched 1- to 4-grams, all 1- to 4-grams.
    """
    return sacrebleu_statistics(_TOKENS, hypotheses, references)


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
    partial(sacrebleu_statistics, _TEXT),
    partial(sacrebleu_value, _TEXT),
    partial(sacrebleu_settings, "n:4|case:mixed|eff:no|tok:13a|smooth:exp|reflen:closest"),
    reads="text",
)
