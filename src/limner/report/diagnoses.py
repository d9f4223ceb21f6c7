"""Whether the picture is used: what `limner diagnose` found, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limner.report.score_tables import label

if TYPE_CHECKING:
    from limner.diagnosis.records import Condition, Contrast, Diagnosis


def read_diagnoses(run_folder: Path) -> list[dict[str, Any]]:
    """Everything the page shows of RUN/diagnosis/*.json.

    Raises:
        RunError: one of them is damaged.
    """
    paths = sorted((run_folder / "diagnosis").glob("*.json"))
    if not paths:
        return []
    from limner.diagnosis.records import Diagnosis  # imports torch, which a report does without where it can

    return [_show(Diagnosis.load(path)) for path in paths]


def _show(found: Diagnosis) -> dict[str, Any]:
    tables = [_table("Other pictures", f"{found.sentences:,} sentences.", found.pictures)]
    for masked in found.masked:
        note = f"{masked.words:,} words ({masked.mask}) are hidden in {masked.sentences:,} source sentences."
        if masked.expected:
            note += f" Recovered: of {masked.expected:,} words that the references say for them."
        tables.append(_table(f"Hidden words: {masked.mask}", note, masked.conditions))
    if (senses := found.senses) is not None:
        told = f"{senses.sentences:,} sentences with a word that only the picture explains"
        note = f"{told}; by chance {senses.chance:g} % are right."
        if senses.left_out:
            note += f" {senses.left_out:,} more are left out: there is no picture of the other meaning."
        tables.append(_table("Words with two meanings", note, senses.conditions))
    return {
        "diagnosis": found,
        "tables": tables,
        "contrast": None if found.contrast is None else _contrast(found.contrast),
    }


def _table(title: str, note: str, conditions: Sequence[Condition]) -> dict[str, Any]:
    """One row a condition; behind each figure how far it is from the first row's, and the p of that."""
    names = list(dict.fromkeys(figure.metric for condition in conditions for figure in condition.figures))
    rows = []
    for condition in conditions:
        figures = {figure.metric: figure for figure in condition.figures}
        cells = []
        for name in names:
            one = figures.get(name)
            beside = "" if one is None or one.p is None else f"{one.difference:+.2f}, {_chance(one.p)}"
            cells.append(("–" if one is None else f"{one.value:.2f}", beside))
        changed = "" if condition is conditions[0] else f"{condition.changed:.1f} %"
        rows.append((condition.name, cells, changed))
    return {"title": title, "note": note, "columns": [label(name) for name in names], "rows": rows}


def _chance(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.4f}"


def _contrast(contrast: Contrast) -> str:
    return (
        f"Between two {contrast.compared} the right one is the likelier in {contrast.accuracy:.1f} % of "
        f"{len(contrast.lines):,} lines ({contrast.accuracy_per_word:.1f} % by the mean of a word); "
        "a model that does not look has 50."
    )
