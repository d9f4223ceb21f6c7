"""Results of the rows of a table, stored so that a finished row is not trained and evaluated again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from limner.apps.reproduce.tables import PublishedRow, PublishedTable
from limner.data.collection import Collection
from limner.evaluation.gradients import GradientNorms
from limner.metrics import Score
from limner.runs.records import Evaluation, Record


class InitialRun(Record):
    """A run outside the table whose weights initialise the first training stage of a row."""

    run: str
    """Name of the run."""
    weights_sha256: str
    """SHA-256 of the weights file."""
    command: str | None = None
    """Command that trained it."""
    seconds: float | None = None
    """Time of its training steps."""

    def __str__(self) -> str:
        return f"run '{self.run}' (weights {self.weights_sha256[:12]})"


class CorpusRecord(Record):
    """A collection of sentence pairs that rows train with, besides the table's own collection."""

    name: str
    """Name of the folder of the collection."""
    fingerprint: str
    """Fingerprint of the collection."""

    @classmethod
    def from_collection(cls, collection: Collection) -> Self:
        """Describe a collection."""
        return cls(name=collection.path.resolve().name, fingerprint=collection.fingerprint())

    def __str__(self) -> str:
        return f"corpus '{self.name}' (fingerprint {self.fingerprint[:12]})"


class RowResult(Record):
    """The result of one row with one seed."""

    table: str
    """Name of the table."""
    row: str
    """Name of the row."""
    recipe: dict[str, Any]
    """All settings of training and evaluation."""
    recipe_folder: str
    """Folder of the recipe."""
    overrides: tuple[str, ...] = ()
    """Recipe overrides KEY=VALUE of the call."""
    pretraining: tuple[dict[str, Any], ...] = ()
    """All settings of the preceding training stages, in order."""
    initialised_from: InitialRun | None = None
    """Run that initialised the first training stage."""
    back_translated_by: str | None = None
    """Run that generated the source sentences of a derived collection, if a stage was trained on it."""
    corpus: CorpusRecord | None = None
    """Collection of sentence pairs that the row trained with, besides that of the table."""
    features: tuple[str, ...] = ()
    """Fingerprints of the features of the model."""
    run: str
    """Run directory of the model, relative to the folder of the table."""
    image_control: str
    """Image control of the evaluation."""
    budget: float = 1.0
    """Fraction of the recipe's epochs and samples."""
    seconds: float
    """Training time in seconds of all alternatives and preceding stages, and of the model that translated back."""
    processor_seconds: float | None = None
    """Processor time of the same."""
    evaluation: Evaluation
    gradients: GradientNorms | None = None
    """Gradients through time of the trained model, in a table that measures them."""

    @property
    def scores(self) -> dict[str, Score]:
        """Scores by name: those of the evaluation, the training time and the norms of gradients."""
        time = Score("training_minutes", self.seconds / 60, "training and validation")
        return {score.name: score for score in (*self.evaluation.scores, time, *self._gradient_scores())}

    def _gradient_scores(self) -> Iterator[Score]:
        """Norms of the Jacobian of the whole state by distance, `gradient_1` and so on, and `gradient_factor`."""
        if self.gradients is None:
            return
        whole = self.gradients.curves[0]
        signature = f"sentences:{self.gradients.sentences}|split:{self.gradients.split}"
        for distance, norm in enumerate(whole.norms):
            yield Score(f"gradient_{distance}", norm, signature)
        if decay := self.gradients.decays.get(whole.name):
            yield Score("gradient_factor", decay.factor, f"{signature}|distances:{decay.distances}|weights:pairs")

    @property
    def seed(self) -> int:
        """Random seed of the training."""
        return int(self.recipe["training"]["seed"])


class MeanScore(NamedTuple):
    """A score of a row, averaged over its seeds."""

    value: float
    """Mean over the seeds."""
    std: float | None
    """Standard deviation over the seeds, or over the samples of a single seed; None if there is neither."""


class Reproduction(NamedTuple):
    """A reproduced table and its files."""

    table: PublishedTable
    results: tuple[RowResult, ...]
    """Results of every row and seed, in the order of the table."""
    markdown: Path
    json: Path
    figures: tuple[Path, ...]


def result_path(row: PublishedRow, out: Path, seed: int | None = None) -> Path:
    """File of the result of a row, with its first seed or with a later one."""
    name = re.sub(r"[^a-z0-9]+", "-", row.name.lower()).strip("-")
    return out / "rows" / (f"{name}.json" if seed is None else f"{name}-seed{seed}.json")


def result_paths(row: PublishedRow, out: Path) -> list[Path]:
    """Existing result files of a row, in the order of their seeds."""
    first = result_path(row, out)
    pattern = rf"{re.escape(first.stem)}-seed(\d+)"
    seeds = {int(match[1]): path for path in first.parent.glob("*.json") if (match := re.fullmatch(pattern, path.stem))}
    return [*([first] if first.exists() else []), *(seeds[seed] for seed in sorted(seeds))]


def read_results(table: PublishedTable, out: Path) -> list[RowResult]:
    """Read the existing results of all rows, in the order of the table."""
    return [RowResult.load(path) for row in table.rows for path in result_paths(row, out)]


def by_row(results: Iterable[RowResult]) -> dict[str, list[RowResult]]:
    """Group results by row, one result for each seed."""
    rows: dict[str, list[RowResult]] = {}
    for result in results:
        rows.setdefault(result.row, []).append(result)
    return rows


def mean_score(seeds: Sequence[RowResult], score: str) -> MeanScore | None:
    """Average a score over the seeds of a row; None if no seed has it."""
    measured = [result.scores for result in seeds if score in result.scores]
    if not measured:
        return None
    values = [scores[score].value for scores in measured]
    if len(values) > 1:
        return MeanScore(float(np.mean(values)), float(np.std(values, ddof=1)))
    std = measured[0].get(f"{score}_std")
    return MeanScore(values[0], None if std is None else std.value)
