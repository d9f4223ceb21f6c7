"""Rank correlation of scores with human judgements: Kendall's tau-b and tau-c with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.errors import SettingsError, counted
from limner.metrics.hierarchical import SAMPLES, Interval
from limner.metrics.significance import LEVEL, SEED

TAUS: tuple[Literal["b", "c"], ...] = ("b", "c")
MIN_IMAGES = 10
"""Minimum number of images of an interval: with fewer, the bootstrap has too few to sample (five images: 83 % coverage
of intervals of 95 % in simulations)."""


class Correlation(NamedTuple):
    """A rank correlation with its interval."""

    name: str
    """kendall_tau_b or kendall_tau_c."""
    value: float
    """From -1 to 1."""
    interval: Interval | None
    """Bootstrap interval; None with fewer than `MIN_IMAGES` images, or if no sample has a correlation."""
    undefined: int = 0
    """Number of bootstrap samples without a correlation, all of whose ratings or scores are the same; the interval is
    that of the others."""


def correlate(
    ratings: NDArray[np.float64],
    scores: NDArray[np.float64],
    images: Sequence[str],
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
    level: float = LEVEL,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Correlation]:
    """Compute Kendall's tau-b and tau-c between ratings and scores.

    The judgements of one image are not independent: the bootstrap resamples images.

    Args:
        ratings: N ratings.
        scores: scores of the rated pairs, (N,).
        images: images of the ratings, (N,).
        samples: number of bootstrap samples.
        seed: seed of the samples.
        level: the intervals have a confidence of 1 - level.
        on_progress: called with the number of samples done and their total.

    Raises:
        SettingsError: all ratings or all scores are the same.
    """
    for name, values in (("ratings", ratings), ("scores", scores)):
        if len(set(values.tolist())) < 2:
            raise SettingsError(
                f"expected {name} that differ, found {len(values)} of the same value: no rank correlation"
            )
    is_resampled = not too_few_images(len(set(images)))
    resampled = np.array(list(_resampled(ratings, scores, images, samples, seed, on_progress)) if is_resampled else [])
    return [
        _with_interval(f"kendall_tau_{tau}", value, resampled[:, column] if is_resampled else resampled, level)
        for column, (tau, value) in enumerate(zip(TAUS, _taus(ratings, scores), strict=True))
    ]


def too_few_images(images: int) -> str:
    """Return why there is no bootstrap interval over so few images; empty if there are enough."""
    if images >= MIN_IMAGES:
        return ""
    return f"no interval: the bootstrap has {counted(images, 'image')} to sample; expected {MIN_IMAGES} or more"


def _resampled(
    ratings: NDArray[np.float64],
    scores: NDArray[np.float64],
    images: Sequence[str],
    samples: int,
    seed: int,
    on_progress: Callable[[int, int], None] | None,
) -> Iterator[list[float]]:
    """Correlations of bootstrap samples of the images."""
    groups: dict[str, list[int]] = {}
    for row, image in enumerate(images):
        groups.setdefault(image, []).append(row)
    members, random = [np.array(rows) for rows in groups.values()], np.random.default_rng(seed)
    for sample in range(samples):
        rows = np.concatenate([members[group] for group in random.integers(len(members), size=len(members))])
        yield _taus(ratings[rows], scores[rows])
        if on_progress is not None:
            on_progress(sample + 1, samples)


def _with_interval(name: str, value: float, resampled: NDArray[np.float64], level: float) -> Correlation:
    """Create a correlation with the interval of its bootstrap samples, some of which may be undefined."""
    defined = resampled[~np.isnan(resampled)]
    undefined = len(resampled) - len(defined)
    if not len(defined):
        return Correlation(name, value, None, undefined)
    low, high = np.quantile(defined, [level / 2, 1 - level / 2])
    return Correlation(name, value, (float(low), float(high)), undefined)


def _taus(ratings: NDArray[np.float64], scores: NDArray[np.float64]) -> list[float]:
    from scipy.stats import kendalltau

    return [float(kendalltau(ratings, scores, variant=tau).statistic) for tau in TAUS]
