"""Rank correlation of scores with human judgements: Kendall's tau-b and tau-c with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.errors import SettingsError
from limner.metrics.hierarchical import SAMPLES, Interval
from limner.metrics.significance import LEVEL, SEED

TAUS: tuple[Literal["b", "c"], ...] = ("b", "c")


class Correlation(NamedTuple):
    """A rank correlation with its interval."""

    name: str
    """kendall_tau_b or kendall_tau_c."""
    value: float
    """From -1 to 1."""
    interval: Interval


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
        SettingsError: all ratings or all scores are the same, or there is one image only.
    """
    for name, values in (("ratings", ratings), ("scores", scores)):
        if len(set(values.tolist())) < 2:
            raise SettingsError(
                f"expected {name} that differ, found {len(values)} of the same value: no rank correlation"
            )
    groups: dict[str, list[int]] = {}
    for row, image in enumerate(images):
        groups.setdefault(image, []).append(row)
    if len(groups) < 2:
        raise SettingsError(
            f"expected ratings of two or more images, found {len(ratings)} of one: the interval is over images"
        )
    members = [np.array(rows) for rows in groups.values()]
    random, resampled = np.random.default_rng(seed), np.empty((samples, len(TAUS)))
    for sample in range(samples):
        rows = np.concatenate([members[group] for group in random.integers(len(members), size=len(members))])
        resampled[sample] = _taus(ratings[rows], scores[rows])
        if on_progress is not None:
            on_progress(sample + 1, samples)
    ends = np.nanquantile(resampled, [level / 2, 1 - level / 2], axis=0)
    return [
        Correlation(f"kendall_tau_{tau}", value, (float(low), float(high)))
        for tau, value, low, high in zip(TAUS, _taus(ratings, scores), *ends, strict=True)
    ]


def _taus(ratings: NDArray[np.float64], scores: NDArray[np.float64]) -> list[float]:
    from scipy.stats import kendalltau

    return [float(kendalltau(ratings, scores, variant=tau).statistic) for tau in TAUS]
