"""What a metric is: statistics of every segment that sum, and a value read from the sum.

After sacrebleu's design (Post, 2018): because the statistics of a corpus are the sum of its segments', a
significance test resamples rows and sums again, and no sentence is ever scored twice. Metrics that share
their statistics (BLEU-1 to BLEU-4) share the function that makes them, so they are counted once.
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


class Score(NamedTuple):
    """One figure and the settings it was computed with."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.2f}  [{self.signature}]"


class MetricUnavailable(LimnerError):
    """A metric's outside program cannot run here; the other metrics still can."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric over a corpus of N hypotheses, each with one or more references."""

    name: str
    statistics: Callable[[Sequence[str], References], Statistics]
    """Sufficient statistics of every segment, (N, k); the corpus' are their sum over N."""
    value: Callable[[Statistics], float]
    """The score of summed statistics, (k,)."""
    settings: Callable[[], str]
    """Everything that changes the value, `key:value` joined by '|'."""
    reads: Literal["tokens", "text"] = "tokens"
    """Tokens joined by single blanks, or running text that the metric tokenises itself."""
    higher_is_better: bool = True

    def signature(self, references: References) -> str:
        counts = {len(own) for own in references}
        number = str(counts.pop()) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"
        return f"nrefs:{number}|{self.settings()}"

    def score(self, hypotheses: Sequence[str], references: References) -> Score:
        """Score a corpus of N hypotheses against N lists of references."""
        references = check_corpus(hypotheses, references)
        totals = self.statistics(hypotheses, references).sum(axis=0)
        return Score(self.name, self.value(totals), self.signature(references))


def check_corpus(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """Refuse a corpus whose parts do not match, or where a hypothesis has nothing to be compared with.

    Returns:
        The references without blank ones, which would be the closest in length to an empty hypothesis.

    Raises:
        CollectionError: names the position of the first item without a reference.
    """
    if len(hypotheses) != len(references):
        raise CollectionError(
            f"{len(hypotheses)} hypotheses and {len(references)} lists of references: expected one list each"
        )
    if not hypotheses:
        raise CollectionError("there is no sentence to score: the split is empty")
    kept = [[reference for reference in own if reference.strip()] for own in references]
    for position, own in enumerate(kept):
        if not own:
            raise CollectionError(f"item {position} has no reference sentence; leave such items out, or add references")
    return kept
