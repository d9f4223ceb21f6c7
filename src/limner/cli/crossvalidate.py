"""The command that trains and evaluates a model on every fold of a collection: crossvalidate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limner.bounds import Few, Folds, Half, Seed
from limner.cli.app import MEASURE, app, command_line
from limner.cli.options import ChangesArgument, CollectionOption, JsonOption, Number
from limner.cli.terminal import echo, err, out, print_json, training_bar

if TYPE_CHECKING:
    from limner.runs.records import Evaluation
    from limner.training.cross_validation import CrossValidation

SHOWN = 4
"""Number of metrics that are printed for each fold."""


@app.command(rich_help_panel=MEASURE)
def crossvalidate(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe (lecture/sentiment) or a .yaml file.")],
    changes: ChangesArgument = None,
    *,
    collection: CollectionOption,
    out_folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the runs of all folds.")],
    folds: Annotated[int, typer.Option("--folds", help="Number of folds.", parser=Number(Folds))] = 10,
    validation: Annotated[
        float,
        typer.Option(
            "--validation",
            help="Share of each training part that selects the best weights.",
            parser=Number(Half),
        ),
    ] = 0.1,
    split: Annotated[str | None, typer.Option("--split", help="Split to divide; default: all items.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of the folds.", parser=Number(Seed))] = 1,
    models: Annotated[
        int,
        typer.Option(
            "--models", help="Number of models per fold, which are evaluated as an ensemble.", parser=Number(Few)
        ),
    ] = 1,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also train bag-of-words classifiers on the folds (extra 'words').")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train and evaluate a model on every fold of a collection, and print means and standard deviations.

    An interrupted command continues where it stopped.

    Example: `limner crossvalidate lecture/sentiment --collection collections/reviews --folds 10 --out runs/folds`
    """
    from limner.data.collection import Collection
    from limner.runs.recipe import load_recipe
    from limner.storage.outputs import claim_folder
    from limner.training.cross_validation import RECORD, CrossValidationSettings, cross_validate

    claim_folder(out_folder, "--out", records={RECORD: "fold-1"})
    chosen = load_recipe(recipe, changes or [])
    values = {"folds": folds, "validation": validation, "split": split, "seed": seed, "models": models}
    with training_bar(chosen.training.metric) as bar:
        result = cross_validate(
            chosen,
            Collection.open(collection),
            out_folder,
            settings=CrossValidationSettings.parse({**values, "baseline": baseline}, "crossvalidate"),
            command=command_line(),
            on_progress=bar,
            on_fold=_print_fold,
        )
    if as_json:
        print_json(result.model_dump(mode="json"))
        return
    _print(result)


def _print_fold(number: int, evaluation: Evaluation) -> None:
    from limner.metrics.base import format_value

    scores = ", ".join(f"{score.name} {format_value(score.value)}" for score in evaluation.scores[:SHOWN])
    err.print(f"fold {number}: {scores}", soft_wrap=True)


def _print(result: CrossValidation) -> None:
    """Print the mean and the standard deviation of every metric, and the baselines."""
    from rich.table import Table

    from limner.metrics.base import format_value

    table = Table(box=None, pad_edge=False)
    for column in ("metric", "mean", "std"):
        table.add_column(column, justify="left" if column == "metric" else "right", no_wrap=True)
    for score in result.scores:
        table.add_row(score.name, format_value(score.mean), format_value(score.std))
    out.print(table)
    for one in result.baselines:
        name, accuracy = one.name, one.accuracy
        echo(f"baseline, {name}: accuracy {accuracy.mean:.2f}, std {accuracy.std:.2f} (p = {one.p:.3g})")
