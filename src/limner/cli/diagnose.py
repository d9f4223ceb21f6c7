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
    from limner.diagnosis import Condition, Contrast, Diagnosis


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
    from limner.decoding.beam_search import DecodingSettings
    from limner.diagnosis import diagnose as find_out
    from limner.diagnosis import save_diagnosis
    from limner.runs.trained_model import load_trained_model

    checkpoint = load_trained_model(model, device)
    search = checkpoint.recipe.decoding.model_dump()
    with progress_bars() as progress:
        found = find_out(
            checkpoint,
            Collection.open(data),
            split=split,
            settings=DecodingSettings.parse({**search, **given(beam_size=beam_size)}, "decoding"),
            masks=mask or (),
            contrast=contrast,
            trials=trials,
            seed=seed,
            leave_out=leave_out,
            backbone=backbone,
            device=device,
            command=command_line(),
            progress=progress,
            **given(metrics=metric),
        )
    path = save_diagnosis(found, model) if to is None else to
    if to is not None:
        found.save(to)
    if as_json:
        print_json({"file": str(path), **json.loads(found.model_dump_json())})
        return
    _print(found)
    typer.echo(f"{path} ({found.seconds:.1f} s)")


def _print(found: Diagnosis) -> None:
    _print_conditions(f"{found.sentences:,} sentences of '{found.split}'", found.pictures)
    for masked in found.masked:
        words = f"{masked.words:,} words ({masked.mask}) hidden in {masked.sentences:,} sentences"
        _print_conditions(words, masked.conditions)
    if found.senses is not None:
        without = f", {found.senses.left_out:,} left out" if found.senses.left_out else ""
        told = f"{found.senses.sentences:,} sentences with a word of two meanings{without}; by chance"
        _print_conditions(f"{told} {found.senses.chance:.0f} %", found.senses.conditions)
    if found.contrast is not None:
        _print_contrast(found.contrast)
    typer.echo(found.verdict)


def _print_conditions(title: str, conditions: Sequence[Condition]) -> None:
    """One row a condition; behind each figure how far it is from the first row's, and the p of that."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("pictures", no_wrap=True)
    for figure in conditions[0].figures:
        table.add_column(figure.metric, justify="right", no_wrap=True)
    table.add_column("changed", justify="right", no_wrap=True)
    for condition in conditions:
        cells = [
            f"{one.value:.2f}" if one.p is None else f"{one.value:.2f} ({one.difference:+.2f}, p {one.p:.4f})"
            for one in condition.figures
        ]
        table.add_row(condition.name, *cells, f"{condition.changed:.1f} %" if condition is not conditions[0] else "")
    out.print(table)
    out.print()


def _print_contrast(contrast: Contrast) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=f"contrasts of {contrast.compared}", title_justify="left")
    for column in ("line", "log-prob", "other's"):
        table.add_column(column, justify="right")
    for line in contrast.lines:
        table.add_row(str(line.line), f"{line.log_prob:.3f}", f"{line.other_log_prob:.3f}")
    out.print(table)
    told = f"the right one is likelier in {contrast.accuracy:.1f} % of {len(contrast.lines):,} lines"
    typer.echo(f"{told} ({contrast.accuracy_per_word:.1f} % by the mean of a word)\n")
