"""Tables of the results of `limner diagnose`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limner.errors import counted
from limner.metrics.base import format_value
from limner.report.score_tables import label

if TYPE_CHECKING:
    from limner.diagnosis.records import ConditionResult, ContrastiveResult, Diagnosis

IMAGE_CONTROLS = (
    "Images: those of the items (right), of other items (shuffled), the mean over the training split (mean), features "
    "of zeros (zero), no image (none)."
)


def read_diagnoses(run_folder: Path) -> list[dict[str, Any]]:
    """Read RUN/diagnosis/*.json and build the tables of each diagnosis.

    Raises:
        RunError: a file is damaged.
    """
    paths = sorted((run_folder / "diagnosis").glob("*.json"))
    if not paths:
        return []
    from limner.diagnosis.records import Diagnosis  # imported late: the package imports torch

    return [_section(Diagnosis.load(path)) for path in paths]


def _section(diagnosis: Diagnosis) -> dict[str, Any]:
    note = f"{counted(diagnosis.sentences, 'sentence')}. {IMAGE_CONTROLS}"
    tables = [_table("Image ablations", note, diagnosis.image_controls)]
    for masking in diagnosis.masking:
        sentences = counted(masking.sentences, "source sentence")
        note = f"Mask '{masking.mask}': {counted(masking.masked_words, 'word')} in {sentences}."
        if masking.expected_words:
            note += f" Recovered: percentage of the {masking.expected_words:,} reference words that translate them."
        tables.append(_table(f"Masked source words: {masking.mask}", note, masking.conditions))
    if (ambiguity := diagnosis.ambiguity) is not None:
        note = (
            f"{counted(ambiguity.sentences, 'sentence')} with a word that only the image disambiguates; a random "
            f"choice of the sense is correct in {ambiguity.chance:g} %."
        )
        if ambiguity.excluded:
            note += f" {ambiguity.excluded:,} further sentences are left out: no image shows the other sense."
        tables.append(_table("Ambiguous words", note, ambiguity.conditions))
    return {
        "diagnosis": diagnosis,
        "tables": tables,
        "contrastive": None if diagnosis.contrastive is None else _contrastive(diagnosis.contrastive),
    }


def _table(title: str, note: str, conditions: Sequence[ConditionResult]) -> dict[str, Any]:
    """One row for each condition; each cell has the difference from the first row and its p-value."""
    names = list(dict.fromkeys(score.metric for condition in conditions for score in condition.scores))
    rows = []
    for condition in conditions:
        scores = {score.metric: score for score in condition.scores}
        cells = []
        for name in names:
            score = scores.get(name)
            test = ""
            if score is not None and score.p is not None:
                test = f"{format_value(score.difference, sign='+')}, {_p_value(score.p)}"
            cells.append(("–" if score is None else format_value(score.value), test))
        changed = "" if condition is conditions[0] else f"{condition.changed:.1f} %"
        rows.append((condition.name, cells, changed))
    return {"title": title, "note": note, "columns": [label(name) for name in names], "rows": rows}


def _p_value(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.4f}"


def _contrastive(result: ContrastiveResult) -> str:
    return (
        f"The correct one of two {result.compared} has the higher log-probability in {result.accuracy:.1f} % of "
        f"{counted(len(result.pairs), 'pair')} ({result.accuracy_per_token:.1f} % by mean log-probability of a token); "
        "a random choice is correct in 50 %."
    )
