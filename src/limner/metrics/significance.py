"""Significance and intervals: approximate randomisation, Holm's correction, and two levels of sampling.

After Riezler and Maxwell (2005): under the null hypothesis the outputs of two systems for a segment are exchangeable.
Every trial exchanges them at random and computes the difference of the two corpus scores; the share of trials with at
least the observed difference is p. Segments are not scored again: their statistics are summed.

The test is of one output of each system. Exchanging the outputs of several runs one by one (Clark et al., 2011) takes
runs of a system for independent; runs with other seeds are compared over two levels of sampling, below.

The two levels are the training runs of a system and the segments of a test set. Runs that differ in the seed share
their segments, and the segments share their runs, so that neither all outputs nor all segments are independent. The
variance of a mean score has two parts:

- between runs: the variance of the scores of the few runs of a system: Student's t;
- between segments: the covariance of the scores of different runs when the segments are resampled by the bootstrap (the
  same samples for all runs), with many segments: the normal distribution.

This is the analysis of several readers who judge the same cases (Obuchowski and Rockette, 1995), with runs as readers
within systems and segments as cases. The quantile of the sum of both follows Cochran and Cox (1950): the mean of the
quantiles of the two parts, weighted by their variances. It keeps the level with two runs, where the approximation of
Satterthwaite does not. Two evaluations of the same runs, such as two ways of decoding, are compared
run by run. A system with one run has no variance between runs that could be estimated: its interval is the bootstrap
interval over segments, for this run alone, and so is the interval of its difference from a deterministic system.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

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
    """Compute the summed statistics of the first output after random exchanges, in blocks (block, k)."""
    segments = len(first)
    height = max(1, BLOCK_BYTES // (8 * max(1, segments)))
    second_total, difference = second.sum(axis=0), first - second
    for start in range(0, trials, height):
        size = min(height, trials - start)
        yield second_total + random.integers(2, size=(size, segments)) @ difference


SAMPLES = 1000
SMALLEST_P = 1e-16
"""Smallest p-value that is computed."""
Interval = tuple[float, float]


class RunScores(NamedTuple):
    """Scores of the runs of a system, on the test set and on bootstrap samples of its segments."""

    values: NDArray[np.float64]
    """Score of each run, (R,)."""
    samples: NDArray[np.float64]
    """Scores of the runs on B bootstrap samples, (R, B); equal for all systems with the same B, seed and segments."""

    @classmethod
    def from_runs(
        cls,
        runs: Sequence[Statistics],
        value: Callable[[Statistics], float],
        *,
        samples: int = SAMPLES,
        seed: int = SEED,
    ) -> Self:
        """Score runs on bootstrap samples of their segments.

        The statistics of each run are (N, k); `value` is the metric of summed statistics, (k,).

        Raises:
            SettingsError: there is no run, the runs have different segments, or there are fewer than two samples.
        """
        shapes = sorted({run.shape for run in runs})
        if len(shapes) != 1 or samples < 2:
            raise SettingsError(
                "expected one or more runs with the same segments and two or more bootstrap samples, found runs with "
                f"statistics of shapes {shapes} and {samples} samples"
            )
        segments = shapes[0][0]
        stacked = np.concatenate(runs, axis=1)  # (N, R * k), so that all runs share a sample
        random = np.random.default_rng(seed)
        height = max(1, BLOCK_BYTES // (8 * max(1, segments)))
        totals = np.concatenate(
            [
                random.multinomial(segments, np.full(segments, 1 / segments), min(height, samples - start)) @ stacked
                for start in range(0, samples, height)
            ]
        ).reshape(samples, len(runs), -1)
        return cls(
            np.array([value(run.sum(axis=0)) for run in runs]),
            np.array([[value(row) for row in totals[:, run]] for run in range(len(runs))]),
        )

    @property
    def mean(self) -> float:
        """Mean score of the runs."""
        return float(self.values.mean())

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the interval of the mean score with a confidence of 1 - level."""
        if len(self.values) == 1:
            return _percentiles(self.samples[0], level)
        half = _quantile(*_variance_of_mean(self), max(0.0, _covariance_of_runs(self.samples)), level)
        return self.mean - half, self.mean + half


class HierarchicalDifference(NamedTuple):
    """Difference between the mean scores of two systems over runs and segments."""

    difference: float
    """Mean score of the first system minus the mean score of the second."""
    between_runs: float
    """Variance of the difference by the choice of runs; 0 if it cannot be estimated."""
    degrees_of_freedom: int
    """Degrees of freedom of the variance between runs: the number of runs of both systems minus two; the number of runs
    of one system minus one if the systems are compared run by run, or the other is deterministic. 0 if the variance
    cannot be estimated."""
    between_segments: float
    """Variance of the difference by the choice of segments."""
    samples: NDArray[np.float64]
    """Differences on the bootstrap samples, (B,)."""

    @classmethod
    def from_scores(cls, a: RunScores, b: RunScores, *, same_runs: bool = False) -> Self:
        """Compare two systems scored on the same bootstrap samples.

        The variance between runs is taken to be the same for both systems and is pooled: with two runs each, a variance
        of each system would have one degree of freedom. With equally many runs of both the level holds without this
        assumption; with few runs of the system that varies more it does not. A deterministic system has no variance, so
        that it says nothing about the variance of a system with one run. `same_runs` says that both systems are
        evaluations of the same runs, in the same order: the differences of the runs are independent of each other, the
        scores of the two systems are not.
        """
        samples = a.samples.mean(axis=0) - b.samples.mean(axis=0)
        if same_runs and len(a.values) > 1:
            by_run = RunScores(a.values - b.values, a.samples - b.samples)
            between_segments = max(0.0, _covariance_of_runs(by_run.samples))
            return cls(by_run.mean, *_variance_of_mean(by_run), between_segments, samples)
        # several runs have the same score if the model is estimated from counts, for example
        varying = [system for system in (a, b) if len(system.values) == 1 or np.ptp(system.values) > 0]
        if len(varying) == 1:
            between_runs, freedom = _variance_of_mean(varying[0])
        else:  # pooled
            freedom = len(a.values) + len(b.values) - 2
            squares = sum(float(((system.values - system.mean) ** 2).sum()) for system in (a, b))
            between_runs = squares / max(1, freedom) * (1 / len(a.values) + 1 / len(b.values))
        if freedom:
            several = [_covariance_of_runs(system.samples) for system in (a, b) if len(system.values) > 1]
            across = float(_centred(a.samples).mean(axis=0) @ _centred(b.samples).mean(axis=0)) / (len(samples) - 1)
            between_segments = max(0.0, 2 * (float(np.mean(several)) - across))
        else:
            between_segments = float(samples.var(ddof=1))
        return cls(a.mean - b.mean, between_runs, freedom, between_segments, samples)

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the interval of the difference with a confidence of 1 - level."""
        if not self.degrees_of_freedom:
            return _percentiles(self.samples, level)
        half = _quantile(self.between_runs, self.degrees_of_freedom, self.between_segments, level)
        return self.difference - half, self.difference + half

    @property
    def p(self) -> float:
        """Two-sided p-value, the level at which the interval ends at 0; SettingsError without variance between runs."""
        if not self.degrees_of_freedom:
            raise SettingsError("expected two or more runs of a system that is not deterministic")
        distance = float(abs(self.difference))
        variances = self.between_runs, self.degrees_of_freedom, self.between_segments
        if distance == 0:
            return 1.0
        low, high = float(np.log(SMALLEST_P)), 0.0  # of log(p)
        if _quantile(*variances, SMALLEST_P) <= distance:
            return SMALLEST_P
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if _quantile(*variances, np.exp(middle)) > distance else (low, middle)
        return float(np.exp((low + high) / 2))


def _percentiles(samples: NDArray[np.float64], level: float) -> Interval:
    low, high = np.quantile(samples, [level / 2, 1 - level / 2])
    return float(low), float(high)


def _variance_of_mean(runs: RunScores) -> tuple[float, int]:
    """Variance of the mean score by the choice of runs, and its degrees of freedom; 0 and 0 for one run."""
    count = len(runs.values)
    return (float(runs.values.var(ddof=1)) / count if count > 1 else 0.0), count - 1


def _centred(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    centred: NDArray[np.float64] = samples - samples.mean(axis=1, keepdims=True)
    return centred


def _covariance_of_runs(samples: NDArray[np.float64]) -> float:
    """Return the mean covariance of two different runs over the bootstrap samples, (R, B), R > 1."""
    runs = len(samples)
    covariances = np.cov(samples)
    different: float = (covariances.sum() - np.trace(covariances)) / (runs * (runs - 1))
    return different


def _quantile(between_runs: float, freedom: int, between_segments: float, level: float) -> float:
    """Return the two-sided quantile of a sum of two errors after Cochran and Cox (1950), in units of the score."""
    from scipy.special import ndtri, stdtrit

    total = between_runs + between_segments
    if total == 0:
        return 0.0
    tails = between_runs * stdtrit(freedom, level / 2) + between_segments * ndtri(level / 2)
    return float(-tails / np.sqrt(total))
