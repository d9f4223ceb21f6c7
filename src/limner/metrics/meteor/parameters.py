"""Parameters of METEOR 1.5 and its score of summed statistics (Denkowski and Lavie, 2014)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.metrics.base import Statistics


class MeteorParameters(NamedTuple):
    """Parameters of METEOR 1.5 for a language, tuned on human judgements by its authors."""

    alpha: float
    """Weight of recall in the F-mean; that of precision is 1 - alpha."""
    beta: float
    """Exponent of the fragmentation."""
    gamma: float
    """Maximum of the fragmentation penalty."""
    delta: float
    """Weight of content words; that of function words is 1 - delta."""
    modules: Mapping[str, float]
    """Weights of the matching modules in the order of their application; paraphrases are last."""

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weights of the module slots of the statistics, (4,); unused slots have no matches."""
        return np.array([*self.modules.values(), 0.0, 0.0, 0.0])[:SLOTS]


LANGUAGES = {
    "cs": MeteorParameters(0.95, 0.2, 0.6, 0.8, {"exact": 1.0, "paraphrase": 0.4}),
    "de": MeteorParameters(0.95, 1.0, 0.55, 0.55, {"exact": 1.0, "stem": 0.8, "paraphrase": 0.2}),
    "en": MeteorParameters(0.85, 0.2, 0.6, 0.75, {"exact": 1.0, "stem": 0.6, "synonym": 0.8, "paraphrase": 0.6}),
    "es": MeteorParameters(0.65, 1.3, 0.5, 0.8, {"exact": 1.0, "stem": 0.8, "paraphrase": 0.6}),
    "fr": MeteorParameters(0.9, 1.4, 0.6, 0.65, {"exact": 1.0, "stem": 0.2, "paraphrase": 0.4}),
    "ru": MeteorParameters(0.75, 1.4, 0.7, 0.5, {"exact": 1.0, "stem": 0.5, "paraphrase": 0.5}),
}
"""Parameters by language."""
PARAPHRASE = "paraphrase"
SLOTS = 4
"""Number of matching modules in the statistics."""
FIELDS = 23
"""Number of statistics of a segment."""


def meteor_values(lang: str, rows: Statistics) -> NDArray[np.float64]:
    """Compute METEOR, times 100: the weighted F-mean of precision and recall with a fragmentation penalty.

    Args:
        lang: a key of `LANGUAGES`.
        rows: statistics, (N, 23).

    Returns:
        (N,) scores; 0 where nothing matches.
    """
    tuned = LANGUAGES[lang]
    # (N, 4): content words of hypothesis and reference, then function words of both, over the weighted modules.
    matched = np.einsum("m,nmk->nk", tuned.weights, rows[:, 4:20].reshape(-1, SLOTS, 4))
    lengths, function_words = rows[:, :2], rows[:, 2:4]
    weighted = tuned.delta * matched[:, :2] + (1 - tuned.delta) * matched[:, 2:]
    total = tuned.delta * (lengths - function_words) + (1 - tuned.delta) * function_words
    some = (weighted > 0).all(axis=1)
    precision, recall = (weighted[some] / total[some]).T
    f_mean = 1 / ((1 - tuned.alpha) / precision + tuned.alpha / recall)
    fragments = rows[some, 20] / (rows[some, 21:].sum(axis=1) / 2)
    values = np.zeros(len(rows))
    values[some] = 100 * f_mean * (1 - tuned.gamma * fragments**tuned.beta)
    return values


def meteor_value(lang: str, totals: Statistics) -> float:
    """Compute METEOR, times 100, of summed statistics, (23,)."""
    return float(meteor_values(lang, totals[None])[0])
