"""CIDEr-D and ROUGE-L of given tokens, computed by pycocoevalcap (extra `coco`).

The tokeniser of pycocoevalcap, a Java program, is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np

from limner.errors import MissingExtraError
from limner.metrics.base import Metric, References, Statistics

logger = logging.getLogger(__name__)


def coco_module(name: str, need: str) -> Any:  # noqa: ANN401  (an untyped module)
    """Import a module of pycocoevalcap.

    Args:
        name: name of the module in the package.
        need: name of the metric, for the error message.

    Raises:
        MissingExtraError: the extra `coco` is not installed.
    """
    try:
        return import_module(f"pycocoevalcap.{name}")
    except ImportError:
        raise MissingExtraError(need, "coco") from None


def cider_statistics(hypotheses: Sequence[str], references: References) -> Statistics:
    """Compute CIDEr-D (Vedantam et al., 2015) of every segment, with the document frequencies of all references.

    Returns:
        (N, 2): the score of the segment, and 1. Resampling keeps the document frequencies of the whole corpus.
    """
    scorer = coco_module("cider.cider_scorer", "CIDEr").CiderScorer(n=4, sigma=6.0)
    for hypothesis, own in zip(hypotheses, references, strict=True):
        scorer += (hypothesis, list(own))
    if len(hypotheses) == 1:
        logger.warning("cider: the score of a single item is always 0, because all document frequencies are 1")
    _, scores = scorer.compute_score()
    return np.stack([scores, np.ones(len(scores))], axis=1)


def rouge_statistics(hypotheses: Sequence[str], references: References) -> Statistics:
    """Compute ROUGE-L (Lin, 2004) of every segment: longest common subsequence, best precision and best recall.

    Returns:
        (N, 2): the score of the segment, and 1.
    """
    rouge = coco_module("rouge.rouge", "ROUGE-L").Rouge()
    rows = np.ones((len(hypotheses), 2))
    for row, (hypothesis, own) in enumerate(zip(hypotheses, references, strict=True)):
        # pycocoevalcap splits at single spaces and would count an empty sentence as one empty token.
        normal = [" ".join(reference.split()) for reference in own]
        tokens = " ".join(hypothesis.split())
        rows[row, 0] = rouge.calc_score([tokens], normal) if tokens else 0.0
    return rows


def _mean(totals: Statistics) -> float:
    return float(100 * totals[0] / totals[1])


def _cider_settings() -> str:
    return f"n:4|sigma:6|idf:references of the scored items|{_coco_settings()}"


def _rouge_settings() -> str:
    return f"beta:1.2|{_coco_settings()}"


def _coco_settings() -> str:
    return f"tok:given|scale:x100|pycocoevalcap:{version('pycocoevalcap')}"


CIDER = Metric("cider", cider_statistics, _mean, _cider_settings)
ROUGE_L = Metric("rouge_l", rouge_statistics, _mean, _rouge_settings)
