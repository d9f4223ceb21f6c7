"""Base of the sentence metrics: sufficient statistics of every segment, and a score of their sum.

This is the design of sacrebleu (Post, 2018). The statistics of a corpus are the sum over its segments, so that a
significance test resamples segments without scoring them again. Metrics with the same statistics (BLEU-1 to BLEU-4)
share the function that computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.errors import CollectionError, LimnerError

Statistics = NDArray[np.float64]
References = Sequence[Sequence[str]]
SCIENTIFIC = 1e6
"""Scores from this value on are written with an exponent."""


class Score(NamedTuple):
    """Value of a metric with its settings."""

    name: str
    value: float
    signature: str
    """Settings of the metric, `key:value` joined by '|'."""

    def __str__(self) -> str:
        return f"{self.name} = {format_value(self.value)}  [{self.signature}]"


def format_value(value: float, decimals: int = 2, sign: Literal["", "+"] = "") -> str:
    """Write a score with some decimals, from a million on as 4.0e+97; `sign` '+' writes the sign of positive values."""
    return f"{value:{sign}.1e}" if abs(value) >= SCIENTIFIC else f"{value:{sign}.{decimals}f}"


def percentage(totals: Statistics) -> float:
    """Compute a percentage from its summed numerator and denominator, (2,)."""
    return float(100 * totals[0] / totals[1])


class MetricUnavailable(LimnerError):
    """A metric cannot be computed for a language or on this machine."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A corpus metric of N hypotheses with one or more references each."""

    name: str
    statistics: Callable[[Sequence[str], References], Statistics]
    """Function from hypotheses and references to the sufficient statistics of every segment, (N, k)."""
    value: Callable[[Statistics], float]
    """Function from summed statistics, (k,), to the score."""
    settings: Callable[[], str]
    """Function that returns all settings that affect the score, `key:value` joined by '|'."""
    reads: Literal["tokens", "text"] = "tokens"
    """Input: tokens joined by single spaces, or running text that the metric tokenises itself."""
    higher_is_better: bool = True
    applies: Callable[[References], bool] = lambda references: True
    """Function that returns whether the metric applies to the references; if not, the metric is left out."""

    def signature(self, references: References) -> str:
        """Return the number of references and the settings."""
        counts = {len(item_references) for item_references in references}
        number = str(counts.pop()) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"
        return f"nrefs:{number}|{self.settings()}"

    def score(self, hypotheses: Sequence[str], references: References) -> Score:
        """Compute the score of N hypotheses against N lists of references."""
        references = check_corpus(hypotheses, references)
        totals = self.statistics(hypotheses, references).sum(axis=0)
        return Score(self.name, self.value(totals), self.signature(references))


def require_sentences(corpus: Sequence[object]) -> None:
    """Raise CollectionError for a corpus without sentences, of which no metric has a value."""
    if not corpus:
        raise CollectionError("expected sentences to score, found none: the split is empty")


def check_corpus(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """Check that every hypothesis has at least one reference.

    Return the references without blank references, which would be the closest in length to an empty hypothesis.
    CollectionError, with the index of the hypothesis, if there is none.
    """
    if len(hypotheses) != len(references):
        raise CollectionError(
            f"expected one list of references for each hypothesis, found {len(hypotheses)} hypotheses and "
            f"{len(references)} lists"
        )
    require_sentences(hypotheses)
    nonblank = [[reference for reference in item_references if reference.strip()] for item_references in references]
    for index, item_references in enumerate(nonblank):
        if not item_references:
            raise CollectionError(f"item {index} has no reference sentence; leave it out, or add references")
    return nonblank
