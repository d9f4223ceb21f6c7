"""chrF (Popović, 2015), computed by sacrebleu: chrF2 of running text, and chrF3 of tokens as in Calixto et al. (2017).

chrF is the F-beta score of the precision and the recall of character n-grams, each averaged over the orders 1 to 6;
recall has beta times the weight of precision. Spaces are not counted as characters, so the scores of tokens and of
running text differ only if detokenisation changes more than spaces; `chrf3_spaces` counts them (`space:yes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from limner.metrics.base import Metric, Statistics
from limner.metrics.bleu import sacrebleu_settings, sacrebleu_statistics, sacrebleu_value

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as Sacrebleu

ORDERS = 6
"""Maximum order of the character n-grams."""


@cache
def _chrf(beta: int, spaces: bool = False) -> Sacrebleu:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(char_order=ORDERS, beta=beta, whitespace=spaces)


_CHRF2, _CHRF3, _CHRF3_SPACES = partial(_chrf, 2), partial(_chrf, 3), partial(_chrf, 3, True)


def precision_and_recall(totals: Statistics) -> tuple[float, float]:
    """Compute character n-gram precision and recall, 0-100, as in Calixto et al. (2017), table 1.

    Args:
        totals: summed statistics, (18,): for every order the number of n-grams of the hypothesis, of the reference, and
            of both.

    Returns:
        Precision and recall, averaged over the orders for which hypothesis and reference have n-grams, as in sacrebleu.
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


def _settings(beta: int, tokens: str, spaces: str = "no") -> str:
    return sacrebleu_settings(f"case:mixed|eff:yes|nc:{ORDERS}|nw:0|beta:{beta}|space:{spaces}{tokens}")


def _chrf3_of_tokens(name: str, scorer: Callable[[], Sacrebleu], spaces: str) -> Iterator[Metric]:
    """Create chrF3 and its precision and recall, which share one function of statistics, so that it runs once."""
    statistics, settings = partial(sacrebleu_statistics, scorer), partial(_settings, 3, "|tok:given", spaces)
    yield Metric(name, statistics, partial(sacrebleu_value, scorer), settings)
    yield Metric(f"{name}_precision", statistics, _precision, settings)
    yield Metric(f"{name}_recall", statistics, _recall, settings)


CHRF2 = Metric(
    "chrf",
    partial(sacrebleu_statistics, _CHRF2),
    partial(sacrebleu_value, _CHRF2),
    partial(_settings, 2, ""),
    reads="text",
)
CHRF3_METRICS = (
    *_chrf3_of_tokens("chrf3", _CHRF3, "no"),
    *_chrf3_of_tokens("chrf3_spaces", _CHRF3_SPACES, "yes"),
    Metric(
        "chrf3_text",
        partial(sacrebleu_statistics, _CHRF3),
        partial(sacrebleu_value, _CHRF3),
        partial(_settings, 3, ""),
        reads="text",
    ),
)
