"""Whether two systems differ: approximate randomisation (Riezler and Maxwell, 2005; Clark et al., 2011).

If it makes no difference which system wrote a sentence, then the systems' outputs for a segment may be exchanged. Every
trial exchanges them at random, scores the two corpora that come of it, and looks whether they differ as much as the
systems do. Statistics of segments sum, so a trial costs a few products of matrices and no sentence is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from limner.errors import SettingsError
from limner.metrics.base import Statistics

Exchange = Literal["outputs", "systems"]

TRIALS = 10_000
SEED = 1
EXCHANGE: Exchange = "systems"
BLOCK_BYTES = 1 << 25
ROUNDING = 1e-9


class Significance(NamedTuple):
    """How far two systems are apart, and how often chance alone would take them as far."""

    a_mean: float
    """Of the metric, over the system's runs."""
    b_mean: float
    difference: float
    """a_mean - b_mean."""
    p: float
    """Two-sided."""


def approximate_randomisation(
    a: Sequence[Statistics],
    b: Sequence[Statistics],
    value: Callable[[Statistics], float],
    *,
    trials: int = TRIALS,
    seed: int = SEED,
    exchange: Exchange = EXCHANGE,
    progress: Callable[[int, int], None] | None = None,
) -> Significance:
    """Test the difference of two systems' means over their runs.

    Departures from MultEval, the program of Clark et al.: a trial that differs exactly as much as the systems do
    counts, so that a system does not differ from itself (there it does); and a system's figure is the mean over its
    runs (there the runs are scored as one corpus).

    Args:
        a: statistics of every segment, (N, k), one for each run of the first system.
        b: the same of the second, of the same segments in the same order.
        value: the metric of summed statistics, (k,).
        trials: T; the smallest p there can be is 1 / (T + 1).
        seed: of the trials.
        exchange: with one run of each system both are the same. With several, 'outputs' deals all outputs of a segment
            out anew among all runs of both systems, as MultEval does. That takes the runs of one system for
            independent of each other: where they agree with each other more than with the other system, p comes out
            too small. 'systems' exchanges all runs of one system, together, for all of the other, and keeps what the
            runs have in common; both must have the same number of runs.
        progress: told the trials that are done, and how many there are.

    Returns:
        p is (trials that differ at least as much + 1) / (T + 1), and does not depend on which system comes first.

    Raises:
        SettingsError: a system has no run, the runs are not of the same segments, there is no trial, or whole systems
            of different numbers of runs are to be exchanged.
    """
    shapes = sorted({statistics.shape for statistics in (*a, *b)})
    if not a or not b or len(shapes) > 1 or trials < 1:
        raise SettingsError(
            f"{len(a)} and {len(b)} runs with statistics of shapes {shapes}, {trials} trials: expected runs of both "
            "systems over the same segments, and one trial or more"
        )
    if exchange == "systems" and len(a) != len(b):
        raise SettingsError(
            f"{len(a)} and {len(b)} runs: systems can be exchanged as wholes when both have the same number of runs; "
            "leave some out, or exchange 'outputs' (limner compare --exchange outputs)"
        )
    # Whichever system is called the first, the trials are the same.
    first, second = sorted((a, b), key=lambda system: (len(system), np.stack(system).tobytes()))

    def distance(totals: Statistics) -> float:
        values = [value(own) for own in totals]
        return abs(float(np.mean(values[: len(first)]) - np.mean(values[len(first) :])))

    outputs = np.stack([*first, *second])
    observed = distance(outputs.sum(axis=1))
    enough = observed - ROUNDING * (1 + observed)
    reached = done = 0
    for block in _shuffled_totals(outputs, trials, np.random.default_rng(seed), exchange):
        reached += sum(distance(totals) >= enough for totals in block)
        done += len(block)
        if progress is not None:
            progress(done, trials)
    a_mean, b_mean = (float(np.mean([value(run.sum(axis=0)) for run in system])) for system in (a, b))
    return Significance(a_mean, b_mean, a_mean - b_mean, (reached + 1) / (trials + 1))


def _shuffled_totals(
    outputs: Statistics, trials: int, random: np.random.Generator, exchange: Exchange
) -> Iterator[Statistics]:
    """Summed statistics of all runs after outputs were exchanged, in blocks of trials that bound the memory.

    Args:
        outputs: statistics of the first system's runs, then of the second's, (R, N, k).
        trials: how often.
        random: what chance is.
        exchange: see `approximate_randomisation`.

    Yields:
        (block, R, k).
    """
    runs, segments, fields = outputs.shape
    height = max(1, BLOCK_BYTES // (8 * runs * segments))
    for start in range(0, trials, height):
        size = min(height, trials - start)
        if exchange == "systems":
            dealt = (np.arange(runs) + runs // 2 * random.integers(2, size=(size, segments, 1))) % runs
        else:
            dealt = random.random((size, segments, runs)).argsort(axis=-1)
        # dealt[t, n, r] is the output that run r gets of segment n in trial t.
        totals = np.empty((size, runs, fields))
        for run in range(runs - 1):
            totals[:, run] = sum((dealt[..., run] == output) @ rows for output, rows in enumerate(outputs))
        totals[:, -1] = outputs.sum(axis=(0, 1)) - totals[:, :-1].sum(axis=1)  # gets whatever is left
        yield totals
