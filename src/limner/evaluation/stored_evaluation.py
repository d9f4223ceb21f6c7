"""The files of evaluations in a run directory, and checks that the evaluations of several systems are comparable."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from limner.errors import RunError, counted
from limner.metrics import METRICS
from limner.runs.records import EvaluatedItem, Evaluation, require_run_directory
from limner.storage.outputs import require_name

Systems = Mapping[str, Mapping[str, Evaluation]]
"""Evaluations by system and run."""

logger = logging.getLogger(__name__)


def evaluation_path(evaluation: Evaluation, run: Path) -> Path:
    """Return RUN/evaluation/NAME.json, where `limner report` and `limner compare` read an evaluation.

    An evaluation with fewer scores does not replace an existing one with more: its file name ends in `-part`.
    """
    path, part = _paths(run, evaluation.name)
    if path.exists():
        existing = {score.name for score in Evaluation.load(path).scores}
        if {score.name for score in evaluation.scores} < existing:
            return part
    return path


def save_evaluation(evaluation: Evaluation, run: Path) -> Path:
    """Write an evaluation to its file in the run directory, and return the file."""
    path = evaluation_path(evaluation, run)
    evaluation.save(path)
    return path


def load_evaluation(run: Path, split: str) -> Evaluation:
    """Read the stored evaluation of a run that is compared: RUN/evaluation/SPLIT.json, or a newer partial one.

    Raises:
        RunError: there is none, or it is damaged.
    """
    path, part = _paths(run, split)
    # A partial evaluation has fewer scores but all hypotheses, and only these are read.
    if stored := [file for file in (path, part) if file.exists()]:
        newest = max(stored, key=lambda file: file.stat().st_mtime_ns)
        if newest != path:
            logger.info("%s: read instead of %s, because it is newer", newest, path.name)
        return Evaluation.load(newest)
    require_run_directory(run)
    others = ", ".join(sorted(other.stem for other in path.parent.glob("*.json")))
    raise RunError(
        f"{path}: no such evaluation; create it with 'limner evaluate --model {run} --split {split} "
        "--collection COLLECTION'" + (f", or name an existing one with --split: {others}" if others else "")
    )


def _paths(run: Path, name: str) -> tuple[Path, Path]:
    """Return the file of an evaluation, and the file of an evaluation with a part of its scores."""
    folder = run / "evaluation"
    return folder / f"{require_name(name, 'the split')}.json", folder / f"{name}-part.json"


def evaluated_runs(systems: Systems) -> list[tuple[str, Evaluation]]:
    """Return the evaluations of all systems with the names of their runs."""
    return [(run, evaluation) for evaluations in systems.values() for run, evaluation in evaluations.items()]


def require_same_sentences(systems: Systems) -> None:
    """Check that all runs were evaluated on the same sentences.

    Raises:
        RunError: names two runs and their first difference.
    """
    (first_run, first), *others = evaluated_runs(systems)
    for run, other in others:
        if difference := _difference(first, other):
            raise RunError(
                f"{first_run} and {run} cannot be compared: {difference}; evaluate both on the same split of the same "
                "collection with 'limner evaluate'"
            )


def _difference(first: Evaluation, other: Evaluation) -> str:
    """Describe the first difference between the inputs of two evaluations; empty if there is none."""
    if other.split != first.split:
        return f"evaluated on split '{first.split}' and on split '{other.split}'"
    for number, (ours, theirs) in enumerate(zip(first.items, other.items, strict=False), start=1):
        if difference := _difference_of_items(ours, theirs, number):
            return difference
    if len(other.items) != len(first.items):
        return f"{counted(len(first.items), 'sentence')} and {len(other.items):,}"
    return ""


def _difference_of_items(ours: EvaluatedItem, theirs: EvaluatedItem, number: int) -> str:
    """Describe the difference between the inputs of two evaluations of a sentence; empty if there is none.

    The fingerprint of the collection is not compared, because generated sentences in the training split change it.
    """
    if ours.id != theirs.id:
        return f"sentence {number} is of item '{ours.id}' and of item '{theirs.id}'"
    item = f"item '{ours.id}' (sentence {number})"
    if ours.references != theirs.references:
        return f"{item} has the references '{' / '.join(ours.references)}' and '{' / '.join(theirs.references)}'"
    # A captioner has no source sentences, and the items of a text-only translator may have no images.
    if ours.source and theirs.source and ours.source != theirs.source:
        return f"{item} was translated from '{ours.source}' and from '{theirs.source}'"
    if ours.image and theirs.image and Path(ours.image).name != Path(theirs.image).name:
        return f"{item} has the images {ours.image} and {theirs.image}"
    return ""


def require_same_tokens(systems: Systems, metrics: Sequence[str]) -> None:
    """Check that all runs tokenised the references alike, if a metric reads tokens.

    Raises:
        RunError: names two runs and the first item with different tokens.
    """
    if not any(METRICS[name].reads == "tokens" for name in metrics):
        return
    (first_run, first), *others = evaluated_runs(systems)
    for run, other in others:
        for ours, theirs in zip(first.items, other.items, strict=True):
            if ours.reference_tokens != theirs.reference_tokens:
                text = ", ".join(name for name, metric in METRICS.items() if metric.reads == "text")
                raise RunError(
                    f"{first_run} and {run} have different tokens (item '{ours.id}': "
                    f"'{' / '.join(ours.reference_tokens)}' and '{' / '.join(theirs.reference_tokens)}'); "
                    f"compare them by metrics of running text: {text}"
                )
