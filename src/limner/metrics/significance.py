"""Significance of the difference between two outputs by approximate randomisation, and Holm's correction.

After Riezler and Maxwell (2005): under the null hypothesis the outputs of two systems for a segment are exchangeable.
Every trial exchanges them at random and computes the difference of the two corpus scores; the share of trials with at
least the observed difference is p. Segments are not scored again: their statistics are summed.

The test is of one output of each system. Exchanging the outputs of several runs one by one (Clark et al., 2011) takes
runs of a system for independent; runs with other seeds are compared by `limner.metrics.hierarchical`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from limner.errors import SettingsError, counted
from limner.metrics.base import Statistics

TRIALS = 10_000
LEVEL = 0.05  # significance level: a difference is significant if p is below it
SEED = 1
BLOCK_BYTES = 1 << 25  # memory of a block of trials
ROUNDING = 1e-9  # relative tolerance below which two differences count as equal


class Significance(NamedTuple):
    """Difference between the scores of two systems and its significance."""

    value: float
    """Score of the first system."""
    difference: float
    """Score of the first system minus the score of the second."""
    p: float
    """Two-sided p-value."""


def check_trials(trials: int, level: float = LEVEL) -> int:
    """Return a number of trials that can make a difference significant; the smallest p is 1 / (trials + 1)."""
    needed = math.floor(1 / level + 1e-9)
    if trials < needed:
        raise ValueError(
            f"{trials} trials cannot give p < {level:g}, as the smallest p is 1 / (trials + 1); expected {needed} or "
            "more"
        )
    return trials


def too_few_segments(segments: int, level: float = LEVEL) -> str:
    """Return why no difference can be significant over so few segments; empty if there are enough.

    Of the 2 ** n ways to exchange n segments two give at least the observed difference: the systems themselves and all
    exchanged.
    """
    if 2 / 2**segments < level:
        return ""
    needed = math.floor(math.log2(2 / level)) + 1
    return (
        f"{counted(segments, 'item')} cannot give p < {level:g}, whatever their difference; expected {needed} or more"
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of a family of tests by Holm (1979).

    The i-th smallest of m p-values is multiplied by m - i + 1, and is at least the adjusted value before it. The
    probability that any true null hypothesis of the family is rejected is at most the level, whatever the dependence of
    the tests.
    """
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    return [float(value) for value in adjusted]


def approximate_randomisation(
    a: Statistics,
    b: Statistics,
    value: Callable[[Statistics], float],
    *,
    trials: int = TRIALS,
    seed: int = SEED,
    on_progress: Callable[[int, int], None] | None = None,
) -> Significance:
    """Test whether the scores of two outputs for the same segments differ.

    Trials with exactly the observed difference are counted, as MultEval does (Clark et al., 2011), so that an output
    does not differ significantly from itself. The statistics of every segment are (N, k), of the same segments in the
    same order; `value` is the metric of summed statistics, (k,). With T trials, p is (trials with at least the observed
    difference + 1) / (T + 1), whatever the order of the outputs.
    """
    if a.shape != b.shape or trials < 1:
        raise SettingsError(
            f"expected statistics of the same segments and one or more trials, found statistics of shapes {a.shape} "
            f"and {b.shape} and {trials} trials"
        )
    a_value, b_value = value(a.sum(axis=0)), value(b.sum(axis=0))
    # Sorted, so that the trials are the same for both orders of the outputs.
    first, second = sorted((a, b), key=lambda output: output.tobytes())
    summed = first.sum(axis=0) + second.sum(axis=0)
    threshold = abs(a_value - b_value) - ROUNDING * (1 + abs(a_value - b_value))
    reached = done = 0
    for block in _exchanged_totals(first, second, trials, np.random.default_rng(seed)):
        reached += sum(abs(value(totals) - value(summed - totals)) >= threshold for totals in block)
        done += len(block)
        if on_progress is not None:
            on_progress(done, trials)
    return Significance(a_value, a_value - b_value, (reached + 1) / (trials + 1))


def _exchanged_totals(
    first: Statistics, second: Statistics, trials: int, random: np.random.Generator
) -> Iterator[Statistics]:
    """Compute the summed statistics of the first output after random exchanges, in blocks with bounded memory.

    Blocks are (block, k).
    """
    segments = len(first)
    height = max(1, BLOCK_BYTES // (8 * max(1, segments)))
    second_total, difference = second.sum(axis=0), first - second
    for start in range(0, trials, height):
        size = min(height, trials - start)
        yield second_total + random.integers(2, size=(size, segments)) @ difference
