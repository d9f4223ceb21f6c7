"""What a published table is, and what came out of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from limner.data.batching import Control
from limner.metrics import Score
from limner.records import Evaluation, Record


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
    recipe: str
    """In the table's folder of recipes."""
    pictures: Control = "right"
    choices: tuple[tuple[str, ...], ...] = ((),)
    """Changes of the recipe, of which the best on the validation split counts."""
    published: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """By data set: scores by our names and on our scale."""


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


class Outcome(Record):
    """A row as it came out; the file it is kept in spares doing it again."""

    row: str
    recipe: dict[str, object]
    """All settings, as they were trained and measured with."""
    recipes: str | None = None
    """The folder the recipe is from; None in records that do not say it."""
    changes: tuple[str, ...] = ()
    """KEY=VALUE, as the call made them to the recipe."""
    features: tuple[str, ...] | None = None
    """Fingerprints of the features it looks at; None in records that do not say them."""
    run: str
    """Folder of the model, below that of the table."""
    pictures: str
    budget: float = 1.0
    """Share of the recipe's epochs and samples that were spent."""
    seconds: float
    """Of training steps, of all the runs that were chosen from."""
    evaluation: Evaluation

    @property
    def scores(self) -> dict[str, Score]:
        """The scores by name."""
        return {score.name: score for score in self.evaluation.scores}


class Reproduction(NamedTuple):
    """A table as it came out."""

    table: Table
    outcomes: tuple[Outcome, ...]
    markdown: Path
    json: Path
    figures: tuple[Path, ...]
