"""The command that measures how gradients vanish or explode through time: gradients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limner.bounds import Count, Few, Seed
from limner.cli.app import MEASURE, app, command_line
from limner.cli.options import DeviceOption, ForceOption, JsonOption, Number, SkipMissingOption, given, require_models
from limner.cli.terminal import echo, out, print_json, progress_bars
from limner.storage.outputs import claim_file, require_writable, save_output

if TYPE_CHECKING:
    from limner.diagnosis.gradients import GradientNorms, GradientSettings

SHOWN = (1, 2, 3, 5, 8, 10, 15, 20)
"""Distances printed in the table."""


SentencesOption = Annotated[int, typer.Option("--sentences", help="Maximum number of sentences.", parser=Number(Count))]
ProbesOption = Annotated[
    int,
    typer.Option(
        "--probes",
        help="Random vectors per state tensor; at least its size gives exact norms.",
        parser=Number(Few),
    ),
]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Random seed of the sentences and vectors.", parser=Number(Seed))
]


@app.command(rich_help_panel=MEASURE)
def gradients(
    model: Annotated[
        list[Path] | None,
        typer.Option("--model", metavar="RUN", help="Run folder of a recurrent model. Repeatable, to compare models."),
    ] = None,
    *,
    collection: Annotated[
        Path | None,
        typer.Option(
            "--collection", metavar="DIR", help="Collection with items and features; default: the trained one."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Split of the sentences; default: the recipe's validation split.")
    ] = None,
    sentences: SentencesOption = 128,
    probes: ProbesOption = 4,
    seed: SeedOption = 1,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", help="Plot to write (.png or .svg); default: a .png beside the JSON file."
        ),
    ] = None,
    force: ForceOption = False,
    skip_missing: SkipMissingOption = False,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Measure how the gradient of a recurrent state vanishes or explodes with the distance in tokens.

    The norms are stored in RUN/gradients/SPLIT.json.

    Example: `limner gradients --model runs/lstm --model runs/tanh --plot gradients.png`
    """
    runs = require_models(model)
    if plot is not None:
        claim_file(plot, "--plot", force=force)
    for run in runs:
        require_writable(run / "gradients", str(run))
    from limner.diagnosis.gradients import GradientSettings
    from limner.report.plots import gradient_norms, require_plot_suffix, save_plot

    if plot is not None:
        require_plot_suffix(plot)
    settings = GradientSettings.parse(
        given(split=split, sentences=sentences, probes=probes, seed=seed, leave_out=skip_missing)
    )
    measured = {str(run): _measure(run, collection, settings, device) for run in runs}
    figure = gradient_norms(_curves(measured))
    saved = save_output(plot or runs[0] / "gradients" / "gradients.png", lambda file: save_plot(figure, file))
    if as_json:
        models = {run: json.loads(norms.model_dump_json()) for run, norms in measured.items()}
        print_json({"plot": str(saved.path), "models": models})
    else:
        _print(measured)
        echo(str(saved.path))
    saved.require()


def _measure(run: Path, collection: Path | None, settings: GradientSettings, device: str) -> GradientNorms:
    """Measure the gradients of one run and store them in its folder."""
    from limner.data.collection import Collection
    from limner.diagnosis.gradients import gradient_path, measure_gradients
    from limner.runs.trained_model import load_trained_model

    trained = load_trained_model(run, device)
    opened = Collection.open(collection or Path(trained.config.provenance["collection"]))
    with progress_bars() as progress:
        norms = measure_gradients(trained, opened, settings=settings, command=command_line(), on_progress=progress)
    norms.save(gradient_path(run, norms.split))
    return norms


def _curves(measured: Mapping[str, GradientNorms]) -> dict[str, tuple[float, ...]]:
    """Return the curves to plot with their decays: all tensors of one model, or the whole state of several."""
    if len(measured) == 1:
        return {norms.label(curve): curve.norms for norms in measured.values() for curve in norms.curves}
    return {norms.label(norms.curves[0], run): norms.curves[0].norms for run, norms in measured.items()}


def _print(measured: Mapping[str, GradientNorms]) -> None:
    """Print the norms at some distances and the factor per token, one row for each curve."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("model", "tensor", "units"):
        table.add_column(column, no_wrap=True)
    longest = max(len(norms.pairs) for norms in measured.values())
    shown = [distance for distance in SHOWN if distance < longest]
    for column in (*map(str, shown), "factor", "fitted to"):
        table.add_column(column, justify="right", no_wrap=True)
    for run, norms in measured.items():
        for curve in norms.curves:
            values = [f"{curve.norms[d]:.2g}" if d < len(curve.norms) else "" for d in shown]
            decay = norms.decays.get(curve.name)
            fitted = ("", "") if decay is None else (f"{decay.factor:.3f}", decay.distances)
            table.add_row(Path(run).name, curve.name, str(curve.size), *values, *fitted)
    out.print(table)
    sentences = ", ".join(f"{norms.sentences:,} of '{norms.split}'" for norms in measured.values())
    echo(f"root mean square singular value of d s_t / d s_k by the distance t - k; sentences: {sentences}")
