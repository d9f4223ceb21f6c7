"""Plan of a reproduction: the training runs of every row, their recipes and their order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from limner.apps.reproduce.render import required_data
from limner.apps.reproduce.results import result_path
from limner.apps.reproduce.tables import CorpusUse, PublishedRow, PublishedTable, recognise
from limner.bounds import Few, PositiveShare
from limner.data.collection import Collection
from limner.errors import FeatureError, SettingsError, did_you_mean
from limner.progress import StageProgress
from limner.runs.recipe import Recipe, load_recipe, recipe_names
from limner.settings import Settings


class ReproductionSettings(Settings):
    """Scope of a reproduction: the rows, the seeds and the changes to the recipes."""

    rows: tuple[str, ...] = ()
    """Names of the rows to reproduce; empty for all rows with a recipe."""
    seeds: Few = 1
    """Number of training runs of each row, with consecutive random seeds from the seed of its recipe."""
    dataset: str | None = None
    """Key of the data set, for a table whose recipes depend on it; None to recognise it by the ids of the items."""
    recipes: str | None = None
    """Alternative folder of recipes; a row without a recipe there uses the recipe of the table."""
    overrides: tuple[str, ...] = ()
    """Recipe overrides KEY=VALUE, applied to every row and its preceding stages."""
    init: Path | None = None
    """Run directory of the initial vocabularies and, where name and shape agree, weights of every row."""
    back_translator: Path | None = None
    """Run directory of a model of the opposite direction, which generates the source sentences of rows that train with
    them; None to train the model of the table."""
    corpus: Path | None = None
    """Collection of sentence pairs for the rows that train with another collection; None to leave these rows out."""
    budget: PositiveShare = 1.0
    """Fraction of the recipes' epochs and samples, for a faster and less accurate reproduction."""


class ReproductionJob(NamedTuple):
    """A table to be reproduced on a collection."""

    table: PublishedTable
    collection: Collection
    out: Path
    settings: ReproductionSettings
    command: str
    on_progress: StageProgress
    corpus: Collection | None = None
    """Sentence pairs for the selected rows that train with them; None if there is no such row."""


class TrainingRun(NamedTuple):
    """One training run."""

    recipe: Recipe
    run: Path
    init: Path | None
    corpus: CorpusUse | None = None
    """Use of the sentence pairs of the corpus; None for a training on the table's collection alone."""


TrainingSequence = tuple[TrainingRun, ...]
"""Training runs, each initialised from the previous run; the last run trains the model of the row."""


class RowPlan(NamedTuple):
    """The training runs of one row with one seed."""

    row: PublishedRow
    result_path: Path
    alternatives: tuple[TrainingSequence, ...]
    recipes: tuple[Recipe, ...]  # the row's recipe for each alternative, with the settings of its evaluation

    @property
    def pretraining(self) -> list[Recipe]:
        """Recipes of the preceding stages, which all alternatives share."""
        return [training.recipe for training in self.alternatives[0][:-1]]


def select_rows(table: PublishedTable, settings: ReproductionSettings) -> list[PublishedRow]:
    """Select rows by name, or all rows with a recipe; rows that need a corpus are left out without one."""
    names, trainable = settings.rows, [row for row in table.rows if row.recipe is not None]
    known = ", ".join(row.name for row in trainable)
    if without_recipe := {row.name for row in table.rows if row.recipe is None} & set(names):
        raise SettingsError(
            f"row '{min(without_recipe)}' of {table.name} has published scores but no recipe; expected one of {known}"
        )
    if unknown := set(names) - {row.name for row in trainable}:
        similar = did_you_mean(min(unknown), (row.name for row in trainable))
        raise SettingsError(f"no row '{min(unknown)}' in {table.name}; expected one of {known}{similar}")
    folders = dict.fromkeys(name.rpartition("/")[0] for name in recipe_names())
    if settings.recipes is not None and settings.recipes not in folders:
        raise SettingsError(f"recipe folder '{settings.recipes}': expected one of {', '.join(folders)}")
    rows = [row for row in trainable if not names or row.name in names]
    with_corpus = [row.name for row in rows if row.corpus]
    if settings.corpus is not None:
        if not with_corpus:
            raise SettingsError(
                f"--corpus {settings.corpus}: no selected row of {table.name} trains with it; leave it out, or select "
                "such a row with --row"
            )
        return rows
    if names and with_corpus:
        raise SettingsError(
            f"row '{with_corpus[0]}' of {table.name} trains with the sentence pairs of another collection: add "
            "--corpus DIR, a collection that 'limner import' makes of a table of sentence pairs"
        )
    return [row for row in rows if not row.corpus]


def plan_row(row: PublishedRow, job: ReproductionJob, repetition: int = 0) -> RowPlan:
    """Plan the training runs of a row; the random seed is the seed of the recipe plus `repetition`."""
    of_features = _feature_changes(row, job)
    changes = (*of_features, *row.changes)
    overrides = [(*changes, *alternative) for alternative in row.alternatives]
    of_stages, of_row = (row.corpus, None) if row.corpus == "pretraining" else (None, row.corpus)
    recipe = str(row.recipe)
    trained = [_load_recipe(recipe, job, repetition, assignments, of_row) for assignments in overrides]
    evaluated = [
        _load_recipe(recipe, job, repetition, (*assignments, *row.evaluation), of_row) for assignments in overrides
    ]
    seed = trained[0].training.seed if repetition else None
    suffix = "" if seed is None else f"-seed{seed}"
    pretraining: list[TrainingRun] = []
    name, init = "", job.settings.init
    for stage in row.pretraining:
        name = f"{stage}-after-{name}" if name else stage
        run = job.out / "runs" / f"{name}{suffix}"
        stage_recipe = _load_recipe(stage, job, repetition, corpus=of_stages)
        if of_features and stage_recipe.features.tables:
            stage_recipe = _load_recipe(stage, job, repetition, of_features, of_stages)
        pretraining.append(TrainingRun(stage_recipe, run, init, of_stages))
        init = run
    name = "-".join((recipe, *map(_change_name, changes))) + (f"-after-{name}" if name else "")
    numbers = [f"-{number + 1}" for number in range(len(trained))] if len(trained) > 1 else [""]
    sequences = [
        (*pretraining, TrainingRun(trained_recipe, job.out / "runs" / f"{name}{number}{suffix}", init, of_row))
        for trained_recipe, number in zip(trained, numbers, strict=True)
    ]
    return RowPlan(row, result_path(row, job.out, seed), tuple(sequences), tuple(evaluated))


def translator_of(job: ReproductionJob) -> TrainingRun | Path:
    """Return the model for back-translation: `settings.back_translator`, or the training of the `reverse` recipe."""
    if job.settings.back_translator is not None:
        return job.settings.back_translator
    assert job.table.reverse is not None, "the table has a recipe of the opposite direction"
    return TrainingRun(_load_recipe(job.table.reverse, job, 0), job.out / "runs" / job.table.reverse, None)


def table_of_collection(table: PublishedTable, collection: Collection, key: str | None) -> PublishedTable:
    """Return the part of a table about the data set of a collection, given by `key` or recognised by the item ids.

    A table whose recipes fit any collection is returned as it is.
    """
    if key is not None:
        return table.for_dataset(table.data_set(key))
    if not table.trained_on:
        return table
    recognised = recognise(collection)
    if recognised in table.trained_on:
        return table.for_dataset(recognised)
    actual = "items with ids of another form" if recognised is None else f"the items of {recognised.name}"
    raise SettingsError(f"{collection.path} has {actual}; {table.name} needs {required_data(table)}")


def recipe_folder_of(recipe: str, job: ReproductionJob) -> str:
    """Folder of a recipe: the alternative folder if it has the recipe, else the folder of the table."""
    folder = job.settings.recipes
    return folder if folder and f"{folder}/{recipe}" in recipe_names() else job.table.recipes


def _feature_changes(row: PublishedRow, job: ReproductionJob) -> Sequence[str]:
    """Select the feature table of a row: the first table of the paper in the collection, else the recipe's."""
    if not row.features or any(override.startswith("features.tables=") for override in job.settings.overrides):
        return ()
    existing = job.collection.features()
    for name in row.features:
        if name in existing:
            return (f"features.tables=[{name}]",)
    fallback = load_recipe(f"{recipe_folder_of(str(row.recipe), job)}/{row.recipe}", list(row.changes)).features.tables
    if missing := [name for name in fallback if name not in existing]:
        raise FeatureError(
            f"{job.collection.path}: row '{row.name}' of {job.table.name} needs the feature table "
            f"'{row.features[0]}', the backbone of the paper, or '{missing[0]}'; compute one of them with "
            "'limner features', or name another table with \"features.tables=[NAME]\""
        )
    return ()


def _change_name(change: str) -> str:
    """Part of the name of a run directory for a change: 'visinrnn' for 'model.variant=visInRnn'."""
    return re.sub(r"[^a-z0-9_.]+", "-", change.partition("=")[2].lower()).strip("-") or "none"


def _load_recipe(
    name: str, job: ReproductionJob, repetition: int, overrides: Sequence[str] = (), corpus: CorpusUse | None = None
) -> Recipe:
    """Load a recipe with its overrides, budget and random seed; the sentence pairs of a corpus have no features."""
    changes = [change for change in job.settings.overrides if corpus is None or not change.startswith("features.")]
    path, budget = f"{recipe_folder_of(name, job)}/{name}", job.settings.budget
    recipe = load_recipe(path, [*overrides, *changes])
    training, evaluation = recipe.training, recipe.evaluation
    update = {
        "seed": training.seed + repetition,
        "epochs": max(1, round(budget * training.epochs)),
        # A second stage keeps at least one epoch.
        "train_on_val_epochs": max(min(1, training.train_on_val_epochs), round(budget * training.train_on_val_epochs)),
    }
    samples = max(min(2, evaluation.samples), round(budget * evaluation.samples))
    training, evaluation = training.model_copy(update=update), evaluation.model_copy(update={"samples": samples})
    return recipe.model_copy(update={"training": training, "evaluation": evaluation})
