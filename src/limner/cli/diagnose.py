"""The command that asks whether a model uses its pictures: diagnose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limner.cli.app import AsJson, Backbone, BeamSize, Data, Device, app, command_line, given
from limner.cli.terminal import out, print_json, progress_bars

if TYPE_CHECKING:
    from limner.diagnosis import ConditionResult, ContrastiveResult, Diagnosis


@app.command()
def diagnose(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    data: Data,
    split: Annotated[str | None, typer.Option(help="Default: the recipe's test split.")] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(help="SourceLanguage words to hide: colours, last:3 or a file of words. Repeatable."),
    ] = None,
    contrast: Annotated[
        Path | None, typer.Option(help="A table of two sentences for a picture, or two pictures for a sentence (TSV).")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="The verdict goes by the first; default: bleu4 first. Repeatable.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Of every test of a difference.", min=1)] = 10_000,
    seed: Annotated[int, typer.Option(help="Of the tests, the shuffle and the wrong pictures.")] = 1,
    beam_size: BeamSize = None,
    leave_out: Annotated[bool, typer.Option(help="Go on without pictures that have no features.")] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Default: diagnosis/SPLIT.json in the run folder, its name longer with --mask and --contrast.",
        ),
    ] = None,
    backbone: Backbone = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Tell whether a model uses its pictures: with the right one, others, none, and with words hidden.

    Example: `limner diagnose runs/src-img --data collections/multi30k --mask colours --mask last:3`
    """
    from limner.data.collection import Collection
    from limner.decoding.settings import DecodingSettings
    from limner.diagnosis import DiagnosisSettings, save_diagnosis
    from limner.diagnosis import diagnose as diagnose_model
    from limner.runs.trained_model import load_trained_model

    checkpoint = load_trained_model(model, device)
    search = checkpoint.recipe.decoding.model_dump()
    with progress_bars() as progress:
        found = diagnose_model(
            checkpoint,
            Collection.open(data),
            settings=DiagnosisSettings(
                split=split,
                decoding=DecodingSettings.parse({**search, **given(beam_size=beam_size)}, "decoding"),
                masks=tuple(mask or ()),
                contrastive=contrast,
                trials=trials,
                seed=seed,
                leave_out=leave_out,
                **given(metrics=metric),
            ),
            backbone=backbone,
            device=device,
            command=command_line(),
            on_progress=progress,
        )
    path = save_diagnosis(found, model) if to is None else to
    if to is not None:
        found.save(to)
    if as_json:
        print_json({"file": str(path), **json.loads(found.model_dump_json())})
        return
    _print(found)
    typer.echo(f"{path} ({found.seconds:.1f} s)")


def _print(diagnosis: Diagnosis) -> None:
    _print_conditions(f"{diagnosis.sentences:,} sentences of '{diagnosis.split}'", diagnosis.image_controls)
    for masking in diagnosis.masking:
        title = f"{masking.masked_words:,} words ({masking.mask}) masked in {masking.sentences:,} sentences"
        _print_conditions(title, masking.conditions)
    if (ambiguity := diagnosis.ambiguity) is not None:
        excluded = f", {ambiguity.excluded:,} excluded" if ambiguity.excluded else ""
        title = f"{ambiguity.sentences:,} sentences with an ambiguous word{excluded}; chance {ambiguity.chance:.0f} %"
        _print_conditions(title, ambiguity.conditions)
    if diagnosis.contrastive is not None:
        _print_contrastive(diagnosis.contrastive)
    typer.echo(diagnosis.verdict)


def _print_conditions(title: str, conditions: Sequence[ConditionResult]) -> None:
    """Print one row for each condition, with the differences from the first row and their p-values."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("images", no_wrap=True)
    for score in conditions[0].scores:
        table.add_column(score.metric, justify="right", no_wrap=True)
    table.add_column("changed", justify="right", no_wrap=True)
    for condition in conditions:
        cells = [
            f"{score.value:.2f}" if score.p is None else f"{score.value:.2f} ({score.difference:+.2f}, p {score.p:.4f})"
            for score in condition.scores
        ]
        table.add_row(condition.name, *cells, f"{condition.changed:.1f} %" if condition is not conditions[0] else "")
    out.print(table)
    out.print()


def _print_contrastive(result: ContrastiveResult) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=f"pairs of {result.compared}", title_justify="left")
    for column in ("line", "log-prob correct", "log-prob incorrect"):
        table.add_column(column, justify="right")
    for pair in result.pairs:
        table.add_row(str(pair.line), f"{pair.log_prob:.3f}", f"{pair.other_log_prob:.3f}")
    out.print(table)
    accuracy = f"accuracy {result.accuracy:.1f} % on {len(result.pairs):,} pairs"
    typer.echo(f"{accuracy} ({result.accuracy_per_token:.1f} % by mean log-probability of a token)\n")
