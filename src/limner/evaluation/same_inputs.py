"""Checks that the evaluations of several systems have the same inputs, so that they can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from limner.errors import RunError, counted
from limner.metrics import METRICS
from limner.runs.records import EvaluatedItem, Evaluation

Systems = Mapping[str, Mapping[str, Evaluation]]
"""Evaluations by system and run."""


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
    """Check that tokens are stored and, if a metric reads tokens, that all runs tokenised the references alike.

    Raises:
        RunError: names a run without tokens, or two runs and the first item with different tokens.
    """
    (first_run, first), *others = evaluated_runs(systems)
    for run, evaluation in ((first_run, first), *others):
        if not all(item.reference_tokens for item in evaluation.items):
            raise RunError(
                f"{run}: expected an evaluation with tokens, found one of an older version; evaluate it again: "
                f"limner evaluate --model {run} --collection COLLECTION"
            )
    if not any(METRICS[name].reads == "tokens" for name in metrics):
        return
    for run, other in others:
        for ours, theirs in zip(first.items, other.items, strict=True):
            if ours.reference_tokens != theirs.reference_tokens:
                text = ", ".join(name for name, metric in METRICS.items() if metric.reads == "text")
                raise RunError(
                    f"{first_run} and {run} have different tokens (item '{ours.id}': "
                    f"'{' / '.join(ours.reference_tokens)}' and '{' / '.join(theirs.reference_tokens)}'); "
                    f"compare them by metrics of running text: {text}"
                )
