"""Requirements of a recipe: sentences or labels, feature tables, and the commands that make the tables."""

from __future__ import annotations

import shlex
from typing import NamedTuple

import yaml

from limner.features.store import table_command
from limner.runs.recipe import Recipe, load_recipe
from limner.text.labels import LABEL, LABEL_LANGUAGES, TRACK

COLLECTION, RUN = "COLLECTION", "RUN"
"""Names in the commands for the folders that the user chooses."""


LINE = 1000
"""Length of a line of YAML, longer than every value, so that none is broken."""


class RecipeSummary(NamedTuple):
    """A recipe in a few lines."""

    name: str
    """Name of the recipe, or its file."""
    description: str
    """Description in one line."""
    model: str
    """Name of the model."""
    needs: tuple[str, ...]
    """Required contents of the collection, and the run that the training starts from."""
    commands: tuple[str, ...]
    """Commands that compute the features and train the model."""


def summarise_recipe(name: str, recipe: Recipe, changes: tuple[str, ...] = ()) -> RecipeSummary:
    """Summarise a recipe, or its file, with the changes `key=value` that its settings result from."""
    tables = recipe.features.tables
    features = [f"features {', '.join(tables)}"] if tables else []
    scst = recipe.training.objective == "scst"
    start = ["a run of a captioner to start from"] if scst else []
    # One command makes a table of a grid and its pooled table.
    pooled = {table.removesuffix(".grid") for table in tables if table.endswith(".grid")}
    made = dict.fromkeys(table_command(table, COLLECTION) for table in tables if table not in pooled)
    init = f" --init {RUN}" if scst else ""
    out = f"{RUN}-2" if scst else RUN
    quoted = "".join(f" {shlex.quote(change)}" for change in changes)
    train = f"limner train {name}{quoted} --collection {COLLECTION}{init} --out {out}"
    return RecipeSummary(
        name,
        recipe.description,
        recipe.model.name,
        (_targets(recipe), *features, *start),
        (*(command for command in made if command), train),
    )


def summarise_recipes(names: list[str]) -> list[RecipeSummary]:
    """Summarise recipes by their names."""
    return [summarise_recipe(name, load_recipe(name, [])) for name in names]


def recipe_yaml(recipe: Recipe) -> str:
    """Return all settings of a recipe as YAML, which is a recipe file again."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=LINE)


def _targets(recipe: Recipe) -> str:
    """Describe the sentences or labels that the model learns from."""
    lang, source = recipe.data.lang, recipe.data.source_lang
    if lang in LABEL_LANGUAGES:
        name = {LABEL: "labels", TRACK: "positions of an object in each frame"}.get(lang, "labels of each frame")
        return f"{name} of sentences in {source}" if source else name
    if recipe.model.describes_regions:
        return f"regions with descriptions in {lang}"
    if source:
        generated = " and back-translated ones" if recipe.data.synthetic else ""
        return f"sentences in {source} with translations in {lang}{generated}"
    return f"sentences in {lang}"
