"""What a published table is, and what came out of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from limner.features.sources import ImageControl
from limner.metrics import METRICS, Score
from limner.runs.records import Evaluation, Record


class Column(NamedTuple):
    """A figure of a table."""

    score: str
    """Its name among our scores."""
    label: str
    digits: int
    scale: float = 1.0
    """Ours times this is as the paper prints it."""


class Row(NamedTuple):
    """A row of a published table."""

    name: str
    """As it is printed."""
    recipe: str | None
    """In the table's folder of recipes; None for a system that is not ours, of which there is what was printed."""
    pictures: ImageControl = "right"
    choices: tuple[tuple[str, ...], ...] = ((),)
    """Changes of the recipe, of which the best on the validation split counts."""
    published: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """By data set: scores by our names and on our scale."""
    published_marks: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    """Likewise: the marks of significance that are printed behind them."""
    begins_with: tuple[str, ...] = ()
    """Recipes of the same folder that are trained before, each beginning with the weights of the one before it."""
    against: tuple[str, ...] = ()
    """Rows it is compared with: † marks what is significantly better than the first, ‡ what is than the second. A row
    that is named here itself is compared with the other one."""
    level: float = 0.05
    """A difference is significant where p is below it."""


class Table(NamedTuple):
    """A published table."""

    name: str
    title: str
    recipes: str
    """Folder of its recipes."""
    columns: tuple[Column, ...]
    published: tuple[str, ...]
    """The data sets the paper has figures for."""
    rows: tuple[Row, ...]
    notes: str

    @property
    def metrics(self) -> tuple[str, ...]:
        """The columns that are metrics of whole sentences."""
        return tuple(column.score for column in self.columns if column.score in METRICS)


class Begun(Record):
    """The run that a row began with, of those that are no part of the table."""

    run: str
    """Its name."""
    weights_sha256: str


class Outcome(Record):
    """A row as it came out with one seed; the file it is kept in spares doing it again."""

    row: str
    recipe: dict[str, Any]
    """All settings, as they were trained and measured with."""
    recipes: str | None = None
    """The folder the recipe is from; None in records that do not say it."""
    changes: tuple[str, ...] = ()
    """KEY=VALUE, as the call made them to the recipe."""
    stages: tuple[dict[str, Any], ...] = ()
    """All settings of the trainings that it began with, the first one first."""
    begun: Begun | None = None
    """What the first training began with."""
    features: tuple[str, ...] | None = None
    """Fingerprints of the features it looks at; None in records that do not say them."""
    run: str
    """Folder of the model, below that of the table."""
    pictures: str
    budget: float = 1.0
    """Share of the recipe's epochs and samples that were spent."""
    seconds: float
    """Of training steps, of all the runs that were chosen from and of those that they began with."""
    evaluation: Evaluation

    @property
    def scores(self) -> dict[str, Score]:
        """The scores by name."""
        return {score.name: score for score in self.evaluation.scores}

    @property
    def seed(self) -> int:
        """What it was trained with."""
        return int(self.recipe["training"]["seed"])


class Pooled(NamedTuple):
    """A figure of a row."""

    value: float
    """Mean over the seeds."""
    spread: float | None
    """Standard deviation: over the seeds, or of one seed over the samplings, where there were several."""


class Reproduction(NamedTuple):
    """A table as it came out."""

    table: Table
    outcomes: tuple[Outcome, ...]
    """Of every row and seed, in the table's order."""
    markdown: Path
    json: Path
    figures: tuple[Path, ...]


def by_row(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """The seeds of each row."""
    rows: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.row, []).append(outcome)
    return rows


def pooled(seeds: Sequence[Outcome], score: str) -> Pooled | None:
    """A figure of a row over its seeds; None where it was not measured."""
    found = [outcome.scores for outcome in seeds if score in outcome.scores]
    if not found:
        return None
    values = [scores[score].value for scores in found]
    if len(values) > 1:
        return Pooled(float(np.mean(values)), float(np.std(values, ddof=1)))
    spread = found[0].get(f"{score}_std")
    return Pooled(values[0], None if spread is None else spread.value)
