"""The command that labels sentences, images, clips and sounds: classify."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from limner.apps.cli.app import USE
from limner.apps.cli.inputs import STANDARD_INPUT, read_lines
from limner.apps.cli.options import ModelsOption, check_runs, command, require_models
from limner.apps.cli.terminal import activity, echo, print_error, print_json, tab_separated
from limner.bounds import Count
from limner.errors import LimnerError, SettingsError

if TYPE_CHECKING:
    from limner.inference.classifier import Classification


@command(USE)
def classify(
    inputs: list[str] | None = None,
    *,
    model: ModelsOption = None,
    file: Path | None = None,
    n_best: Count = 1,
    backbone: str | None = None,
    device: str = "cpu",
    as_json: bool = False,
) -> None:
    """Label sentences, clips or sounds with a model of labels, and print the probabilities.

    A model with one label of each step prints one line for each token or frame, with its number from 0. A model of
    positions prints the expected position in percent of the width and the height of the frame. A terminal shows a
    header. An input that cannot be read is reported; the others are labelled, and the exit status is 1.

    Example: `limner classify "a gripping film" --model runs/sentiment --n-best 2`

    Options:
        inputs ([INPUT...]): Sentences; for a model of clips, sounds or images, files.
        file (FILE): Text file with one input per line; - is standard input.
        n_best: Labels to print for each input or step.
    """
    runs, texts = require_models(model), _read_inputs(inputs or [], file)
    check_runs(runs, device, backbone=backbone)
    from limner.inference.classifier import Classifier

    with activity("loading the model"):
        classifier = Classifier.load(*runs, backbone=backbone, device=device)
    steps = classifier.labels_steps
    records: list[dict[str, Any]] = []
    unreadable = 0
    if not as_json and sys.stdout.isatty():
        values = ["x, % of width", "y, % of height"] if classifier.predicts_positions else ["label", "probability"]
        echo(tab_separated("input", *(["step"] if steps else []), *values))
    for number, (text, labels) in enumerate(zip(texts, classifier.classify_each(texts), strict=True), 1):
        if isinstance(labels, LimnerError):
            unreadable += 1
            print_error(f"{_origin(file)}, line {number}: {labels}" if file is not None else labels)
        elif as_json:
            records.append(_record(text, labels, n_best, steps=steps))
        else:
            for line in _lines(labels, n_best, steps=steps):
                echo(tab_separated(text, *line))
    if as_json:
        print_json(records)
    if unreadable:
        raise typer.Exit(1)


def _read_inputs(arguments: list[str], file: Path | None) -> list[str]:
    """Return the inputs of the command line or of a text file; SettingsError if there are none, or both."""
    if file is None:
        if not arguments:
            raise SettingsError("nothing to classify: give sentences or files, or a text file (--file)")
        return arguments
    if arguments:
        raise SettingsError(f"inputs and --file {file}: give one or the other")
    lines = read_lines(file)
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise SettingsError(f"{_origin(file)}: the file is empty; write one sentence or file on each line")
    return lines


def _origin(file: Path) -> str:
    return "standard input" if file == STANDARD_INPUT else str(file)


def _lines(labels: Classification, n_best: int, *, steps: bool) -> Iterator[tuple[str, ...]]:
    """Yield the fields of each line of an input: step (if every step has a label), position or label, probability."""
    for number, step in enumerate(labels.steps):
        start = (str(number),) if steps else ()
        if step.position is not None:
            yield *start, *(f"{100 * share:.2f}" for share in step.position)
            continue
        for label, probability in step.labels[:n_best]:
            yield *start, label, f"{probability:.4f}"


def _record(text: str, labels: Classification, n_best: int, *, steps: bool) -> dict[str, Any]:
    values = [
        {
            "label": step.label,
            "probability": step.probability,
            "labels": [label._asdict() for label in step.labels[:n_best]],
            **({} if step.position is None else {"position": step.position}),
        }
        for step in labels.steps
    ]
    return {"input": text, **({"steps": values} if steps else values[0])}
