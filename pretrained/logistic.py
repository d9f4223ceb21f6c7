"""Fitting of logistic regressions of confidence, and their reliability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from limner.inference.confidence import CONSTANT, logistic

BINS = 10
"""Number of bins of the expected calibration error."""
_ROUNDS = 50
_ENOUGH = 1e-6


def fit_logistic(
    evidence: Sequence[Mapping[str, float]], events: Sequence[bool], penalty: float = 1.0
) -> dict[str, float]:
    """Fit the coefficients of a logistic regression by Newton's method.

    Args:
        evidence: values by name of each observation.
        events: whether the event took place.
        penalty: weight of the squared coefficients of standardised values, without the constant.
    """
    names = list(evidence[0])
    values = np.array([[one[name] for name in names] for one in evidence])
    mean, deviation = values.mean(0), values.std(0) + 1e-9
    weights = newton((values - mean) / deviation, np.asarray(events, float), penalty)
    slopes = weights[:-1] / deviation
    coefficients = {name: float(slope) for name, slope in zip(names, slopes, strict=True)}
    return {**coefficients, CONSTANT: float(weights[-1] - slopes @ mean)}


def newton(values: NDArray[np.float64], targets: NDArray[np.float64], penalty: float) -> NDArray[np.float64]:
    """Fit a logistic regression by Newton's method.

    Args:
        values: standardised values, (N, D).
        targets: events, or their frequencies, (N,).
        penalty: weight of the squared coefficients, without the constant.

    Returns:
        Coefficients with the constant last, (D + 1,).
    """
    inputs = np.column_stack([values, np.ones(len(values))])
    weights, ridge = np.zeros(inputs.shape[1]), penalty * np.diag([*[1.0] * values.shape[1], 0.0])
    for _ in range(_ROUNDS):
        probability = 1 / (1 + np.exp(-np.clip(inputs @ weights, -500, 500)))
        gradient = inputs.T @ (probability - targets) + ridge @ weights
        hessian = (inputs * (probability * (1 - probability))[:, None]).T @ inputs + ridge
        change = np.linalg.solve(hessian + 1e-9 * np.eye(len(weights)), gradient)
        weights -= change
        if np.abs(change).max() < _ENOUGH:
            break
    return weights


def expected_calibration_error(confidences: Sequence[float], events: Sequence[bool]) -> float:
    """Compute the mean difference of confidence and frequency in bins of equally many observations."""
    order = np.argsort(confidences)
    chosen, happened = np.asarray(confidences)[order], np.asarray(events, float)[order]
    parts = zip(np.array_split(chosen, BINS), np.array_split(happened, BINS), strict=True)
    return float(sum(abs(a.mean() - b.mean()) * len(a) for a, b in parts if len(a)) / len(chosen))


def cross_validated(
    evidence: Sequence[Mapping[str, float]], events: Sequence[bool], groups: Sequence[int], folds: int = 5
) -> NDArray[np.float64]:
    """Compute the probability of each event by a regression that was fitted without its group's fold."""
    result = np.zeros(len(events))
    fold = np.asarray(groups) % folds
    for number in range(folds):
        kept = np.flatnonzero(fold != number).tolist()
        coefficients = fit_logistic([evidence[row] for row in kept], [events[row] for row in kept])
        for row in np.flatnonzero(fold == number).tolist():
            result[row] = logistic(coefficients, evidence[row])
    return result
