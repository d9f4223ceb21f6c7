"""The sections of a report on models of labels: confused labels and the reliability diagram."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from markupsafe import Markup

from limner.metrics.classification import CALIBRATION_ERROR, METRICS_OF_LABELS, reliability_bins
from limner.report import plots
from limner.runs.records import EvaluatedItem, Evaluation
from limner.text.labels import read_predictions

SHOWN_CONFUSIONS = 10
"""Number of confused pairs of labels in the report."""


def is_of_labels(evaluation: Evaluation) -> bool:
    """Whether an evaluation is of labels rather than of sentences."""
    names = {name for metrics in METRICS_OF_LABELS.values() for name in metrics}
    return any(score.name in names for score in evaluation.scores)


def reliability_chart(evaluation: Evaluation) -> Markup | None:
    """Draw the reliability diagram of an evaluation; None if its calibration was not measured."""
    error = next((score.value for score in evaluation.scores if score.name == CALIBRATION_ERROR.name), None)
    if error is None:
        return None
    bins = reliability_bins(
        [item.hypothesis for item in evaluation.items], [item.references for item in evaluation.items]
    )
    description = f"Accuracy of the labels by their probability; expected calibration error {error:.1f} %"
    return Markup(plots.svg(plots.reliability(bins), description))


def confused_labels(items: Iterable[EvaluatedItem]) -> list[tuple[str, str, int]]:
    """Count the pairs of a predicted and another right label, the most frequent first."""
    pairs = Counter(
        (predicted.label, right)
        for item in items
        for predicted, right in zip(
            read_predictions(item.hypothesis), "".join(item.references[:1]).split(), strict=False
        )
        if predicted.label != right
    )
    most = sorted(pairs.items(), key=lambda entry: (-entry[1], entry[0]))[:SHOWN_CONFUSIONS]
    return [(predicted, right, count) for (predicted, right), count in most]
