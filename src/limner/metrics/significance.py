"""Significance of the difference between two systems by approximate randomisation.

After Riezler and Maxwell (2005) and Clark et al. (2011): under the null hypothesis the outputs of two systems for a
segment are exchangeable. Every trial exchanges them at random and computes the difference of the two corpus scores; the
share of trials with at least the observed difference is p. Segments are not scored again: their statistics are summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from limner.errors import SettingsError
from limner.metrics.base import Statistics

Exchange = Literal["outputs", "systems"]

TRIALS = 10_000
LEVEL = 0.05
"""Significance level: a difference is significant if p is below it."""
SEED = 1
EXCHANGE: Exchange = "systems"
BLOCK_BYTES = 1 << 25
"""Memory of a block of trials."""
ROUNDING = 1e-9
"""Relative tolerance below which two differences count as equal."""


class Significance(NamedTuple):
    """Difference between the scores of two systems and its significance."""

    a_mean: float
    """Mean score of the runs of the first system."""
    b_mean: float
    """Mean score of the runs of the second system."""
    difference: float
    """a_mean - b_mean."""
    p: float
    """Two-sided p-value."""


def check_trials(trials: int, level: float = LEVEL) -> int:
    """Return a number of trials that can make a difference significant; the smallest p is 1 / (trials + 1).

    Raises:
        ValueError: there are too few trials.
    """
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
    return f"{segments} items cannot give p < {level:g}, whatever their difference; expected {needed} or more"


def approximate_randomisation(
    a: Sequence[Statistics],
    b: Sequence[Statistics],
    value: Callable[[Statistics], float],
    *,
    trials: int = TRIALS,
    seed: int = SEED,
    exchange: Exchange = EXCHANGE,
    on_progress: Callable[[int, int], None] | None = None,
) -> Significance:
    """Test whether the mean scores of two systems over their runs differ.

    Differences from MultEval (Clark et al., 2011): trials with exactly the observed difference are counted, so that a
    system does not differ significantly from itself; and the score of a system is the mean over its runs, not the score
    of their concatenation.

    Args:
        a: statistics of every segment, (N, k), for each run of the first system.
        b: statistics of the same segments in the same order, for each run of the second system.
        value: metric of summed statistics, (k,).
        trials: number of trials T; the smallest possible p is 1 / (T + 1).
        seed: seed of the trials.
        exchange: unit of exchange; both are the same for one run of each system. 'outputs' permutes the outputs for a
            segment among all runs of both systems, as MultEval does. It assumes independent runs: p is too small if the
            runs of a system are more similar to each other than to those of the other system. 'systems' exchanges all
            runs of one system for all runs of the other, which requires equal numbers of runs.
        on_progress: called with the number of trials done and their total.

    Returns:
        Means, difference, and p = (trials with at least the observed difference + 1) / (T + 1), which does not depend
        on the order of the systems.

    Raises:
        SettingsError: a system has no run, the runs have different segments, `trials` is below 1, or systems with
            different numbers of runs are to be exchanged.
    """
    _check(a, b, trials, exchange)
    # Sorted, so that the trials are the same for both orders of the systems.
    first, second = sorted((a, b), key=lambda system: (len(system), np.stack(system).tobytes()))

    def distance(totals: Statistics) -> float:
        values = [value(run) for run in totals]
        return abs(float(np.mean(values[: len(first)]) - np.mean(values[len(first) :])))

    outputs = np.stack([*first, *second])
    observed = distance(outputs.sum(axis=1))
    threshold = observed - ROUNDING * (1 + observed)
    reached = done = 0
    for block in _shuffled_totals(outputs, trials, np.random.default_rng(seed), exchange):
        reached += sum(distance(totals) >= threshold for totals in block)
        done += len(block)
        if on_progress is not None:
            on_progress(done, trials)
    a_mean, b_mean = (float(np.mean([value(run.sum(axis=0)) for run in system])) for system in (a, b))
    return Significance(a_mean, b_mean, a_mean - b_mean, (reached + 1) / (trials + 1))


def _check(a: Sequence[Statistics], b: Sequence[Statistics], trials: int, exchange: Exchange) -> None:
    shapes = sorted({statistics.shape for statistics in (*a, *b)})
    if not a or not b or len(shapes) > 1 or trials < 1:
        raise SettingsError(
            "expected one or more runs of both systems over the same segments and one or more trials, found "
            f"{len(a)} and {len(b)} runs with statistics of shapes {shapes} and {trials} trials"
        )
    if exchange == "systems" and len(a) != len(b):
        raise SettingsError(
            f"exchange='systems': expected the same number of runs of both systems, found {len(a)} and {len(b)}; leave "
            "some out, or use exchange='outputs' (limner compare --exchange outputs)"
        )


def _shuffled_totals(
    outputs: Statistics, trials: int, random: np.random.Generator, exchange: Exchange
) -> Iterator[Statistics]:
    """Compute the summed statistics of all runs after random exchanges, in blocks of trials with bounded memory.

    Args:
        outputs: statistics of the runs of the first system, then of the second, (R, N, k).
        trials: number of trials.
        random: random number generator.
        exchange: see `approximate_randomisation`.

    Yields:
        (block, R, k).
    """
    runs, segments, fields = outputs.shape
    height = max(1, BLOCK_BYTES // (8 * runs * segments))
    for start in range(0, trials, height):
        size = min(height, trials - start)
        # assigned[t, n, r] is the output for segment n that run r has in trial t.
        if exchange == "systems":
            assigned = (np.arange(runs) + runs // 2 * random.integers(2, size=(size, segments, 1))) % runs
        else:
            assigned = random.random((size, segments, runs)).argsort(axis=-1)
        totals = np.empty((size, runs, fields))
        for run in range(runs - 1):
            totals[:, run] = sum((assigned[..., run] == output) @ rows for output, rows in enumerate(outputs))
        totals[:, -1] = outputs.sum(axis=(0, 1)) - totals[:, :-1].sum(axis=1)  # the last run has the remaining outputs
        yield totals
