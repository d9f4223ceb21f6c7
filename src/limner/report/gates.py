"""How often a model lets its picture in: the report's part about the image gate."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from limner.report import plots
from limner.runs.records import GateStatistics

PUBLISHED_GATES = {0.5: 0.20, 0.8: 0.08}
"""Share of the words said whose gate is above each threshold, Calixto et al. (2017), section 5.2: English to German,
Multi30k."""
SAID_OFTEN = 5
"""The mean gate of a word that was said less often tells little."""


def show_gates(gates: GateStatistics) -> dict[str, Any]:
    """The chart of a split's gates, and the table of their parts; shares in percent."""
    often = [entry for entry in gates.words if entry[2] >= SAID_OFTEN]
    shares = {one.part: one.above for one in gates.parts}
    figure = plots.gate_statistics(shares, often or gates.words, thresholds=gates.thresholds)
    told = "Share of the words whose image gate is open, by part of the vocabulary, and the words of the widest gate"
    published = [PUBLISHED_GATES.get(threshold) for threshold in gates.thresholds]
    return {
        "chart": Markup(plots.svg(figure, told)),
        "thresholds": gates.thresholds,
        "parts": gates.parts,
        "published": published if any(share is not None for share in published) else (),
        "at_least": SAID_OFTEN if often else 1,
    }
