"""chrF (Popović, 2015), computed by sacrebleu: chrF2 of running text, chrF3 of tokens as the translation papers print.

chrF averages the precision of character 1- to 6-grams over the six orders, and the recall; F-beta of these two
averages counts recall beta times as much as precision. Blanks do not count as characters, so tokens and running text
differ only in what detokenising changes besides blanks.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from sacrebleu.metrics.chrf import CHRF

from limner.metrics.base import Metric, Statistics
from limner.metrics.bleu import sacrebleu_settings, sacrebleu_statistics, sacrebleu_value

ORDERS = 6


_CHRF2 = CHRF(char_order=ORDERS, beta=2)
_CHRF3 = CHRF(char_order=ORDERS, beta=3)


def precision_and_recall(totals: Statistics) -> tuple[float, float]:
    """Character precision and recall of summed statistics, 0-100, as Calixto et al. (2017), Table 1, print them.

    Args:
        totals: (18,), for every order the hypothesis' n-grams, the reference's and those in both.

    Returns:
        Each averaged over the orders that both sides have n-grams of, as sacrebleu's chrF does.
    """
    hypothesis, reference, both = totals.reshape(ORDERS, 3).T
    known = (hypothesis > 0) & (reference > 0)
    if not known.any():
        return 0.0, 0.0
    precision, recall = np.mean(both[known] / hypothesis[known]), np.mean(both[known] / reference[known])
    return float(100 * precision), float(100 * recall)


def _precision(totals: Statistics) -> float:
    return precision_and_recall(totals)[0]


def _recall(totals: Statistics) -> float:
    return precision_and_recall(totals)[1]


def _settings(beta: int, tokens: str) -> str:
    return sacrebleu_settings(f"case:mixed|eff:yes|nc:{ORDERS}|nw:0|beta:{beta}|space:no{tokens}")


# One object for all metrics that read tokens, so that they are counted once.
_statistics = partial(sacrebleu_statistics, _CHRF3)
_value = partial(sacrebleu_value, _CHRF3)
_given = partial(_settings, 3, "|tok:given")

CHRF2 = Metric(
    "chrf",
    partial(sacrebleu_statistics, _CHRF2),
    partial(sacrebleu_value, _CHRF2),
    partial(_settings, 2, ""),
    reads="text",
)
CHRF3_METRICS = (
    Metric("chrf3", _statistics, _value, _given),
    Metric("chrf3_precision", _statistics, _precision, _given),
    Metric("chrf3_recall", _statistics, _recall, _given),
    Metric("chrf3_text", partial(sacrebleu_statistics, _CHRF3), _value, partial(_settings, 3, ""), reads="text"),
)
