"""What is to be done for the rows of a table: which recipes are trained, where, and what each begins with."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from limner.data.collection import Collection
from limner.errors import SettingsError
from limner.reproduce.tables import Row, Table
from limner.runs.recipe import Recipe, load_recipe, recipe_names

Progress = Callable[[str, int, int], None]


class Job(NamedTuple):
    """What all rows of one call share."""

    table: Table
    collection: Collection
    out: Path
    recipes: str
    changes: tuple[str, ...]
    budget: float
    seeds: int
    init: Path | None
    command: str
    note: Progress


class Training(NamedTuple):
    """One run."""

    recipe: Recipe
    run: Path
    init: Path | None
    """The run it begins with."""


Chain = tuple[Training, ...]
"""Trainings that begin with each other; the last one is the row's own."""


class Plan(NamedTuple):
    """A row with one seed."""

    row: Row
    kept: Path
    """Where its outcome will be."""
    choices: tuple[Chain, ...]
    """One for each choice of the row."""

    @property
    def recipes(self) -> list[Recipe]:
        """The row's own recipe, once for each choice."""
        return [chain[-1].recipe for chain in self.choices]

    @property
    def stages(self) -> list[Recipe]:
        """The recipes it begins with, which no choice changes."""
        return [training.recipe for training in self.choices[0][:-1]]


def plan(row: Row, job: Job, repeat: int = 0) -> Plan:
    """A row's trainings with its first seed, or with that of a repetition."""
    folder = folder_of(row, job)
    own = [_recipe(f"{folder}/{row.recipe}", job, repeat, choice) for choice in row.choices]
    seed = f"-seed{own[0].training.seed}" if repeat else ""
    stages: list[Training] = []
    name, init = "", job.init
    for stage in row.begins_with:
        name = _after(stage, name)
        run = job.out / "runs" / f"{name}{seed}"
        stages.append(Training(_recipe(f"{folder}/{stage}", job, repeat), run, init))
        init = run
    name = _after(str(row.recipe), name)
    runs = [f"{name}-{number + 1}{seed}" if len(own) > 1 else f"{name}{seed}" for number in range(len(own))]
    return Plan(
        row,
        job.out / "rows" / f"{_file_name(row)}{seed}.json",
        tuple((*stages, Training(recipe, job.out / "runs" / run, init)) for recipe, run in zip(own, runs, strict=True)),
    )


def all_kept(table: Table, out: Path) -> list[Path]:
    """The outcomes that are there, of this call or an earlier one, in the table's order."""
    return [kept for row in table.rows for kept in kept_of(row, out)]


def kept_of(row: Row, out: Path) -> list[Path]:
    """The outcomes of a row that are there, its first seed before the others."""
    first = out / "rows" / f"{_file_name(row)}.json"
    repeats = {int(found[1]): path for path in first.parent.glob("*.json") if (found := _repeat(row, path))}
    return [*([first] if first.exists() else []), *(repeats[seed] for seed in sorted(repeats))]


def folder_of(row: Row, job: Job) -> str:
    """The folder that the row's recipe is from: the table's own where the one asked for has none for this row."""
    return job.recipes if f"{job.recipes}/{row.recipe}" in recipe_names() else job.table.recipes


def as_of_now(settings: dict[str, Any]) -> Recipe | None:
    """Stored settings with those that there were none of by then; None where they are of another version altogether."""
    try:
        return Recipe.parse(settings)
    except SettingsError:
        return None


def _repeat(row: Row, path: Path) -> re.Match[str] | None:
    return re.fullmatch(rf"{_file_name(row)}-seed(\d+)", path.stem)


def _file_name(row: Row) -> str:
    return re.sub(r"[^a-z0-9]+", "-", row.name.lower()).strip("-")


def _after(recipe: str, before: str) -> str:
    return f"{recipe}-after-{before}" if before else recipe


def _recipe(name: str, job: Job, repeat: int, choice: tuple[str, ...] = ()) -> Recipe:
    """A recipe as this call wants it; further seeds follow the recipe's own."""
    recipe = _shrunk(load_recipe(name, [*choice, *job.changes]), job.budget)
    training = recipe.training.model_copy(update={"seed": recipe.training.seed + repeat})
    return recipe.model_copy(update={"training": training})


def _shrunk(recipe: Recipe, budget: float) -> Recipe:
    """Fewer epochs and fewer samples; the same recipe for a budget of 1."""
    if budget == 1:
        return recipe
    training, measure = recipe.training, recipe.evaluation
    fewer = {
        "epochs": max(1, round(budget * training.epochs)),
        "fuse": max(min(1, training.fuse), round(budget * training.fuse)),  # a second stage shrinks, it does not go
    }
    samples = max(min(2, measure.samples), round(budget * measure.samples))
    return recipe.model_copy(
        update={
            "training": training.model_copy(update=fewer),
            "evaluation": measure.model_copy(update={"samples": samples}),
        }
    )
