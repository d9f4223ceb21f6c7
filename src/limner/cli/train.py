"""The command that trains a model: train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from limner.bounds import Few
from limner.cli.app import TRAIN, app, command_line
from limner.cli.next_steps import after_train
from limner.cli.options import ChangesArgument, CollectionOption, JsonOption, Number
from limner.cli.terminal import echo, print_json, print_next, training_bar
from limner.errors import counted

if TYPE_CHECKING:
    from limner.runs.training_settings import TrainingSettings

Strategy = Literal["auto", "ddp"]


@app.command(rich_help_panel=TRAIN)
def train(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe (mao2015/flickr8k) or a .yaml file.")],
    changes: ChangesArgument = None,
    *,
    collection: CollectionOption,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Run folder to write.")],
    init: Annotated[
        Path | None,
        typer.Option("--init", metavar="RUN", help="Start from the weights and vocabularies of this run."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue an interrupted training; the result is bit-identical. A higher training.epochs extends it.",
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option("--device", help="Device to train on: cpu, cuda or cuda:N; default: cuda where there is one."),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            "--devices",
            metavar="N",
            parser=Number(Few),
            help="Number of devices of each machine, with a process for each; of cpu the number of processes. Default: "
            "1, or the number of torchrun.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            metavar="M",
            parser=Number(Few),
            help="Number of machines, each of which runs this command. Default: 1, or the number of torchrun.",
        ),
    ] = None,
    strategy: Annotated[
        Strategy,
        typer.Option("--strategy", help="How the processes work together: ddp averages their gradients."),
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Train a model.

    Example: `limner train mao2015/flickr8k --collection collections/flickr8k --out runs/mrnn training.seed=2`
    """
    from limner.data.collection import Collection
    from limner.runs.recipe import load_recipe
    from limner.training.launch import Devices, is_first_process
    from limner.training.loop import train as train_model

    _claim(out)
    chosen = load_recipe(recipe, changes or [])
    opened = Collection.open(collection)
    with training_bar(chosen.training.metric) as bar:
        run = train_model(
            chosen,
            opened,
            out,
            resume=resume,
            init=init,
            device=Devices(device, devices, nodes, strategy),
            command=command_line(),
            on_progress=bar,
        )
    if not is_first_process():
        return
    from limner.runs.records import RunConfig

    provenance = RunConfig.load(run / "config.json").provenance
    next_command = after_train(run, opened, chosen.data.test, chosen.data.val)
    if as_json:
        print_json({"run": str(run), **provenance, "next": next_command})
        return
    echo(f"{run}: {_summary(run, provenance, chosen.training)} after {_times(provenance)}")
    for line in _origins(provenance):  # the notes were logged before the first step
        echo(line)
    print_next(next_command)


def _origins(provenance: dict[str, Any]) -> list[str]:
    """Return lines that say where pre-trained embeddings and weights come from."""
    kinds = {
        "embeddings": "pre-trained embeddings",
        "init": "initial weights",
        "image_encoder": "initial weights of the image encoder",
    }
    return [f"{kind}: {provenance[key]}" for key, kind in kinds.items() if key in provenance]


def _claim(out: Path) -> None:
    """Check that a run can be written to a folder; whether it has a run already is checked with the recipe."""
    from limner.storage.outputs import claim_folder, is_run, require_writable

    if is_run(out):
        require_writable(out, f"--out {out}")
    else:
        claim_folder(out, "--out")


def _times(provenance: dict[str, Any]) -> str:
    """Write the duration of a training by the clock on the wall, and the part of it that its steps took."""
    in_steps = f" ({steps} s in training steps)" if (steps := provenance["step_seconds"]) else ""
    return f"{provenance['seconds']} s{in_steps}"


def _summary(run: Path, provenance: dict[str, Any], settings: TrainingSettings) -> str:
    """Summarise a finished training from its records."""
    from limner.runs.records import read_log

    best = ", ".join(
        f"{key.removeprefix('validation_')} {value}"
        for key, value in provenance.items()
        if key.startswith("validation_")
    )
    epochs_done = [line.epoch for line in read_log(run / "log.jsonl") if line.kind == "train"]
    if not epochs_done:
        return f"counted {counted(provenance['training_sentences'], 'sentence')} ({best})"
    if epochs := provenance.get("train_on_val_epochs"):
        count = counted(epochs, "epoch")
        return f"{best} before, then {count} on training and validation data; saved the weights after these"
    last = max(epochs_done)
    stopped = (
        f"; stopped after epoch {last:g} of {settings.epochs}: no better one in {settings.patience} validations"
        if last < settings.epochs
        else ""
    )
    return f"saved the weights of epoch {provenance['epochs']} ({best}){stopped}"
