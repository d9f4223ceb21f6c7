"""The commands that train models, and list and show their recipes: train, crossvalidate, recipes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limner.apps.cli.app import MEASURE, TRAIN, command_line
from limner.apps.cli.options import command
from limner.apps.cli.terminal import echo, err, print_json, print_next, print_table, training_bar
from limner.bounds import Few, Folds, Half, Seed
from limner.errors import SettingsError, counted
from limner.storage.outputs import claim_folder, is_run, require_writable

if TYPE_CHECKING:
    from limner.data.collection import Collection
    from limner.runs.evaluations import Evaluation
    from limner.runs.training_settings import TrainingSettings


@command(TRAIN)
def train(
    recipe: str,
    changes: list[str] | None = None,
    *,
    collection: Path,
    out: Path,
    init: Path | None = None,
    resume: bool = False,
    device: str | None = None,
    devices: Few | None = None,
    nodes: Few | None = None,
    as_json: bool = False,
) -> None:
    """Train a model.

    Example: `limner train mao2015/flickr8k --collection collections/flickr8k --out runs/mrnn training.seed=2`

    Options:
        out (DIR): Run folder to write.
        init (RUN): Start from the weights and vocabularies of this run.
        resume: Continue an interrupted training; the result is bit-identical. A higher training.epochs extends it.
        device: Device to train on: cpu, cuda or cuda:N; default: cuda where there is one.
        devices (N): Number of devices of each machine, with a process for each; of cpu the number of processes.
            Default: 1, or the number of torchrun.
        nodes (M): Number of machines, each of which runs this command. Default: 1, or the number of torchrun.
    """
    from limner.data.collection import Collection
    from limner.runs.recipe import load_recipe
    from limner.training.loop import train as train_model
    from limner.training.processes import Devices, is_first_process

    if is_run(out):  # whether the run is to be resumed is checked with the recipe
        require_writable(out, f"--out {out}")
    else:
        claim_folder(out, "--out")
    chosen = load_recipe(recipe, changes or [])
    opened = Collection.open(collection)
    with training_bar(chosen.training.metric) as bar:
        options: dict[str, Any] = {"resume": resume, "init": init, "command": command_line(), "on_progress": bar}
        run = train_model(chosen, opened, out, device=Devices(device, devices, nodes), **options)
    if not is_first_process():
        return
    from limner.runs.records import RunConfig

    provenance = RunConfig.load(run / "config.json").provenance
    next_command = after_train(run, opened, chosen.data.test, chosen.data.val)
    if as_json:
        return print_json({"run": str(run), **provenance, "next": next_command})
    echo(f"{run}: {_summary(run, provenance, chosen.training)} after {_format_times(provenance)}")
    origins = {"embeddings": "pre-trained embeddings", "init": "initial weights"}
    origins["image_encoder"] = "initial weights of the image encoder"
    for key in (key for key in origins if key in provenance):  # the notes were logged before the first step
        echo(f"{origins[key]}: {provenance[key]}")
    print_next(next_command)


def after_train(run: Path, collection: Collection, test: str, validation: str) -> str:
    """Return the command to run after `limner train`: an evaluation on the test split, else on the validation split."""
    command = ["limner", "evaluate", "--model", str(run), "--collection", str(collection.path)]
    if test not in collection.splits():
        command += ["--split", validation]
    return shlex.join(command)


def _format_times(provenance: dict[str, Any]) -> str:
    """Return the elapsed time of a training as text, with the share of its training steps."""
    in_steps = f" ({steps} s in training steps)" if (steps := provenance["step_seconds"]) else ""
    return f"{provenance['seconds']} s{in_steps}"


def _summary(run: Path, provenance: dict[str, Any], settings: TrainingSettings) -> str:
    from limner.runs.records import read_log

    values = {key: value for key, value in provenance.items() if key.startswith("validation_")}
    best = ", ".join(f"{key.removeprefix('validation_')} {value}" for key, value in values.items())
    epochs_done = [line.epoch for line in read_log(run / "log.jsonl") if line.kind == "train"]
    if not epochs_done:
        return f"counted {counted(provenance['training_sentences'], 'sentence')} ({best})"
    if epochs := provenance.get("train_on_val_epochs"):
        count = counted(epochs, "epoch")
        return f"{best} before, then {count} on training and validation data; saved the weights after these"
    stopped = ""
    if (last := max(epochs_done)) < settings.epochs:
        reason = f"no better one in {settings.patience} validations"
        stopped = f"; stopped after epoch {last:g} of {settings.epochs}: {reason}"
    return f"saved the weights of epoch {provenance['epochs']} ({best}){stopped}"


SHOWN = 4
"""Number of metrics that are printed for each fold."""


@command(MEASURE)
def crossvalidate(
    recipe: str,
    changes: list[str] | None = None,
    *,
    collection: Path,
    out_folder: Path,
    folds: Folds = 10,
    validation: Half = 0.1,
    split: str | None = None,
    seed: Seed = 1,
    models: Few = 1,
    baseline: bool = False,
    as_json: bool = False,
) -> None:
    """Train and evaluate a model on every fold of a collection, and print means and standard deviations.

    An interrupted command continues where it stopped.

    Example: `limner crossvalidate lecture/sentiment --collection collections/reviews --folds 10 --out runs/folds`

    Options:
        out_folder (--out DIR): Folder of the runs of all folds.
        folds: Number of folds.
        validation: Share of each training part that selects the best weights.
        split: Split to divide; default: all items.
        seed: Random seed of the folds.
        models: Number of models per fold, which are evaluated as an ensemble.
        baseline: Also train bag-of-words classifiers on the folds (extra 'words').
    """
    from limner.data.collection import Collection
    from limner.metrics.base import format_value
    from limner.runs.recipe import load_recipe
    from limner.training.cross_validation import RECORD, CrossValidationSettings, cross_validate

    claim_folder(out_folder, "--out", records={RECORD: "fold-1"})
    chosen = load_recipe(recipe, changes or [])
    values = {"folds": folds, "validation": validation, "split": split, "seed": seed, "models": models}

    def print_fold(number: int, evaluation: Evaluation) -> None:
        scores = ", ".join(f"{score.name} {format_value(score.value)}" for score in evaluation.scores[:SHOWN])
        err.print(f"fold {number}: {scores}", soft_wrap=True)

    opened = Collection.open(collection)
    settings = CrossValidationSettings.parse({**values, "baseline": baseline}, "crossvalidate")
    with training_bar(chosen.training.metric) as bar:
        callbacks: dict[str, Any] = {"on_progress": bar, "on_fold": print_fold}
        result = cross_validate(chosen, opened, out_folder, settings=settings, command=command_line(), **callbacks)
    if as_json:
        return print_json(result.model_dump(mode="json"))
    rows = [[score.name, format_value(score.mean), format_value(score.std)] for score in result.scores]
    print_table([["metric", "mean", "std"], *rows])
    for baseline_result in result.baselines:
        mean, std = baseline_result.accuracy.mean, baseline_result.accuracy.std
        echo(f"baseline, {baseline_result.name}: accuracy {mean:.2f}, std {std:.2f} (p = {baseline_result.p:.3g})")


@command(TRAIN)
def recipes(recipe: str | None = None, changes: list[str] | None = None, *, as_json: bool = False) -> None:
    """List the recipes with what they need, or show one with all its settings.

    A recipe is shown as YAML, which can be written to a file, changed and trained.

    Example: `limner recipes own/photos training.epochs=20`

    Options:
        recipe: Recipe to show with all its settings, or a folder of recipes to list; default: list all.
    """
    from limner.runs.recipe import load_recipe, recipe_names
    from limner.runs.recipe_summary import recipe_yaml, summarise_recipe, summarise_recipes

    known = recipe_names()
    names = known if recipe is None else [name for name in known if name.startswith(f"{recipe.rstrip('/')}/")]
    if recipe is not None and (not names or recipe in known):
        chosen = load_recipe(recipe, changes or [])
        summary = summarise_recipe(recipe, chosen, tuple(changes or ()))
        if as_json:
            return print_json({**summary._asdict(), "settings": chosen.model_dump(mode="json")})
        comments = [summary.description, f"needs: {'; '.join(summary.needs)}", *summary.commands]
        echo("".join(f"# {line}\n" for line in comments) + recipe_yaml(chosen), nl=False)
        return
    if changes:
        raise SettingsError(f"'{changes[0]}': changes a setting of one recipe, and '{recipe}' names several; name one")
    summaries = summarise_recipes(names)
    if as_json:
        return print_json([summary._asdict() for summary in summaries])
    for summary in summaries:
        echo(f"{summary.name}: {summary.description}\n  needs: {'; '.join(summary.needs)}")
    echo(f"{counted(len(summaries), 'recipe')}; 'limner recipes NAME' shows all settings of one and how to train it")
