"""Metrics of labels: accuracy, macro-averaged F1, calibration error, and the error of positions.

A segment is a sentence of labels, one for an item or one for each step. Accuracy and F1 read the labels (tokens). The
calibration error and the position error read texts with probabilities, see `limner.text.labels.write_predictions`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import hypot, isnan

import numpy as np

from limner.metrics.base import Metric, References, Score, Statistics
from limner.text.labels import FRAME_LABELS, HIDDEN, LABEL, TRACK, read_position, read_predictions

BINS = 10  # number of bins of equal width of the calibration error
FARTHEST = 100.0  # error of a frame without a predicted or a right position, in percent of the frame's width


def label_set(references: References) -> list[str]:
    """Return the labels of the references in alphabetical order."""
    return sorted(
        {label for item_references in references for reference in item_references for label in reference.split()}
    )


def _pairs(hypothesis: str, item_references: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pair the labels of a hypothesis with the labels of its first reference; a missing label is empty."""
    predicted, right = hypothesis.split(), item_references[0].split()
    predicted += [""] * (len(right) - len(predicted))
    return zip(predicted, right, strict=False)


def accuracy_statistics(hypotheses: Sequence[str], references: References) -> Statistics:
    """Count the right labels and all labels of each segment, (N, 2)."""
    rows = []
    for hypothesis, item_references in zip(hypotheses, references, strict=True):
        right = [label == reference for label, reference in _pairs(hypothesis, item_references)]
        rows.append((sum(right), len(right)))
    return np.array(rows, dtype=np.float64)


def f1_statistics(hypotheses: Sequence[str], references: References) -> Statistics:
    """Count true positives, predictions and occurrences of every label of the references in each segment, (N, 3 K)."""
    column = {label: index for index, label in enumerate(label_set(references))}
    counts = np.zeros((len(hypotheses), len(column), 3))
    for row, (hypothesis, item_references) in enumerate(zip(hypotheses, references, strict=True)):
        for (label, reference), count in Counter(_pairs(hypothesis, item_references)).items():
            if label in column:
                counts[row, column[label], :2] += (count * (label == reference), count)
            counts[row, column[reference], 2] += count
    return counts.reshape(len(hypotheses), -1)


def f1_values(totals: Statistics) -> Statistics:
    """Compute F1 = 2 TP / (predictions + occurrences) of every label, 0-100, from summed statistics (3 K,)."""
    right, predicted, occurring = totals.reshape(-1, 3).T
    values: Statistics = 100 * 2 * right / np.maximum(predicted + occurring, 1)
    return values


def label_f1_scores(hypotheses: Sequence[str], references: References) -> list[Score]:
    """Compute the F1 of each label of the references."""
    values = f1_values(f1_statistics(hypotheses, references).sum(axis=0))
    return [
        Score(f"f1:{label}", float(value), "scale:0-100")
        for label, value in zip(label_set(references), values, strict=True)
    ]


def calibration_statistics(hypotheses: Sequence[str], references: References) -> Statistics:
    """Sum the predictions, their probabilities and the right predictions by bin of the probability, (N, 3 BINS)."""
    sums = np.zeros((len(hypotheses), BINS, 3))
    for row, (hypothesis, item_references) in enumerate(zip(hypotheses, references, strict=True)):
        for (label, probability), right in zip(read_predictions(hypothesis), item_references[0].split(), strict=False):
            number = min(int(probability * BINS), BINS - 1)
            sums[row, number] += (1, probability, label == right)
    return sums.reshape(len(hypotheses), -1)


def _calibration_error(totals: Statistics) -> float:
    """Compute the mean distance of confidence and accuracy over all predictions, Guo et al. (2017), eq. 3."""
    counts, probabilities, right = totals.reshape(-1, 3).T
    return float(100 * np.abs(probabilities - right).sum() / max(counts.sum(), 1))


def position_statistics(hypotheses: Sequence[str], references: References, *, hidden_only: bool = False) -> Statistics:
    """Sum the distances of predicted and right positions, in percent of the frame's width, and the frames, (N, 2).

    With `hidden_only`, only the frames count in which an obstacle hides the object.
    """
    rows = []
    for hypothesis, item_references in zip(hypotheses, references, strict=True):
        right = item_references[0].split()
        predicted = [label for label, _ in read_predictions(hypothesis)]
        predicted += [""] * (len(right) - len(predicted))
        distances = [
            _distance(read_position(label), read_position(reference))
            for label, reference in zip(predicted, right, strict=False)
            if not hidden_only or reference.endswith(HIDDEN)
        ]
        rows.append((sum(distances), len(distances)))
    return np.array(rows, dtype=np.float64)


def has_hidden_frame(references: References) -> bool:
    """Whether an obstacle hides the object in a frame of the references."""
    return any(label.endswith(HIDDEN) for item_references in references for label in item_references[0].split())


def _distance(first: tuple[float, float], other: tuple[float, float]) -> float:
    """Compute the distance of two positions; `FARTHEST` if one is unknown."""
    distance = hypot(first[0] - other[0], first[1] - other[1])
    return FARTHEST if isnan(distance) else distance


ACCURACY = Metric(
    "accuracy", accuracy_statistics, lambda totals: float(100 * totals[0] / max(totals[1], 1)), lambda: "scale:0-100"
)
MACRO_F1 = Metric(
    "f1",
    f1_statistics,
    lambda totals: float(f1_values(totals).mean()) if len(totals) else 0.0,
    lambda: "average:macro|labels:of the references|scale:0-100",
)
CALIBRATION_ERROR = Metric(
    "calibration_error",
    calibration_statistics,
    _calibration_error,
    lambda: f"bins:{BINS}, equal width|scale:0-100",
    reads="text",
    higher_is_better=False,
)
POSITION_ERROR = Metric(
    "position_error",
    position_statistics,
    lambda totals: float(totals[0] / max(totals[1], 1)),
    lambda: "distance:mean over frames|scale:percent of the frame's width",
    reads="text",
    higher_is_better=False,
)
HIDDEN_POSITION_ERROR = replace(
    POSITION_ERROR,
    name="hidden_position_error",
    statistics=partial(position_statistics, hidden_only=True),
    settings=lambda: "distance:mean over frames with a hidden object|scale:percent of the frame's width",
    applies=has_hidden_frame,
)
LABEL_METRICS = (ACCURACY, MACRO_F1, CALIBRATION_ERROR, POSITION_ERROR, HIDDEN_POSITION_ERROR)
METRICS_OF_LABELS: dict[str, tuple[str, ...]] = {
    LABEL: ("accuracy", "f1", "calibration_error"),
    FRAME_LABELS: ("accuracy", "f1", "calibration_error"),
    TRACK: ("position_error", "hidden_position_error"),
}
