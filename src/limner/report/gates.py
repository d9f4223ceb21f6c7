"""Section of the report about the image gate."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from limner.report import plots
from limner.runs.records import GateStatistics

PUBLISHED_GATES = {0.5: 0.20, 0.8: 0.08}
"""Fraction of the generated words whose gate is above each threshold in Calixto et al. (2017), section 5.2: English to
German, Multi30k."""
MIN_COUNT = 5
"""Minimum number of occurrences of a word whose mean gate is plotted."""


def gate_section(gates: GateStatistics) -> dict[str, Any]:
    """Build the plot and the table of the gate statistics of a split."""
    frequent = [entry for entry in gates.words if entry[2] >= MIN_COUNT]
    fractions = {part.part: part.above for part in gates.parts}
    figure = plots.gate_statistics(fractions, frequent or gates.words, thresholds=gates.thresholds)
    description = "Percentage of words with an open gate by part of the vocabulary; words with the highest mean gate"
    published = [PUBLISHED_GATES.get(threshold) for threshold in gates.thresholds]
    return {
        "chart": Markup(plots.svg(figure, description)),
        "thresholds": gates.thresholds,
        "parts": gates.parts,
        "published": published if any(fraction is not None for fraction in published) else (),
        "min_count": MIN_COUNT if frequent else 1,
    }
