"""Published tables and the results of their rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from limner.diagnosis.gradients import GradientNorms
from limner.errors import SettingsError
from limner.features.controls import ImageControl
from limner.metrics import METRICS, Score
from limner.metrics.base import format_value
from limner.report.provenance import duration
from limner.reproduce.datasets import DataSet
from limner.runs.records import Evaluation, Record

CorpusUse = Literal["pretraining", "pairs", "sentences"]
"""How a row uses the sentence pairs of another collection: its preceding stages are trained on them, they are added to
its training pairs, or their target sentences are added without sources, for the language model."""


class TableColumn(NamedTuple):
    """A column of a published table."""

    score: str
    """Name of the score in an evaluation."""
    label: str
    """Heading of the column."""
    digits: int
    """Number of decimal places."""
    scale: float = 1.0
    """Factor from our scale to that of the paper."""

    def format(self, value: float | None) -> str:
        """Write a score of our scale on that of the paper, with the digits of the column; '–' if there is none."""
        return "–" if value is None else format_value(value * self.scale, self.digits)


class PublishedRow(NamedTuple):
    """A row of a published table."""

    name: str
    """Name of the system as printed in the paper."""
    recipe: str | None
    """Name of the recipe in the table's recipe folder, where '{dataset}' is replaced by the key of the data set; None
    for a system that Limner does not implement, which is shown with its published scores only."""
    image_control: ImageControl = "right"
    """Image control of the evaluation."""
    alternatives: tuple[tuple[str, ...], ...] = ((),)
    """Alternative recipe overrides KEY=VALUE; the one with the lowest validation perplexity is evaluated."""
    published: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """Published scores on our scale, by data set and score name."""
    published_marks: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    """Published significance marks († ‡), by data set and score name."""
    pretraining: tuple[str, ...] = ()
    """Recipes of preceding training stages in the same folder; each stage is initialised from the previous one."""
    baselines: tuple[str, ...] = ()
    """Rows that this row is compared with: † marks a significant improvement over the first, ‡ over the second. A row
    that is its own baseline is compared with the other one."""
    level: float = 0.05
    """Significance level."""
    changes: tuple[str, ...] = ()
    """Recipe changes KEY=VALUE of all alternatives; they are part of the name of the run directory."""
    evaluation: tuple[str, ...] = ()
    """Changes KEY=VALUE of `decoding` and `evaluation` after training. Rows that differ in these alone share a run."""
    features: tuple[str, ...] = ()
    """Feature tables of the paper's backbone. The row reads the first one that the collection has, or else the tables
    of its recipe. Empty for those of the recipe."""
    corpus: CorpusUse | None = None
    """Use of the sentence pairs of another collection; None for a row that trains on the table's collection alone."""
    other_authors: bool = False
    """Whether the paper cites the system from other authors."""

    def published_cell(self, dataset: str, column: TableColumn) -> str:
        """Return a published score with the digits of its column and its significance marks; '–' if there is none."""
        mark = self.published_marks.get(dataset, {}).get(column.score, "")
        return column.format(self.published.get(dataset, {}).get(column.score)) + mark


class PublishedTable(NamedTuple):
    """A table of a paper."""

    name: str
    """Name of the table, 'paper/table'."""
    title: str
    recipes: str
    """Folder of the table's recipes."""
    columns: tuple[TableColumn, ...]
    datasets: tuple[str, ...]
    """Data sets that the paper reports scores for."""
    rows: tuple[PublishedRow, ...]
    notes: str
    """Paragraph printed below the table."""
    retrieval: bool = True
    """Whether image-text retrieval is evaluated, which is slow for models without a faster all-pairs scoring."""
    gradients: bool = False
    """Whether gradients through time are measured on the validation split."""
    reverse: str | None = None
    """Recipe of the opposite direction, in the same folder, which translates descriptions for rows that train with
    generated source sentences."""
    trained_on: tuple[DataSet, ...] = ()
    """Data sets that the rows can be trained on, those of `datasets` first; empty if the rows have the same recipe for
    any collection."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the columns that are sentence metrics."""
        return tuple(column.score for column in self.columns if column.score in METRICS)

    @property
    def has_normalised_retrieval(self) -> bool:
        """Whether a column is a score of image-to-text retrieval among all sentences, Mao et al. (2015), eq. 7."""
        return any(re.fullmatch(r"image_to_text_(r\d+|median_rank)", column.score) for column in self.columns)

    def on(self, dataset: DataSet) -> PublishedTable:
        """Return the part of the table about one data set: its rows with the recipes for it, and its scores.

        Scores on data sets that no row can be trained on stay part of it. Rows without scores on the data set are
        left out, unless they have none at all. A data set without any score has all rows and all scores: those of
        the paper, on its own data, beside ours.
        """
        is_other_data = not any(dataset.name in row.published for row in self.rows)
        others = set() if is_other_data else {other.name for other in self.trained_on} - {dataset.name}
        rows = tuple(
            row._replace(recipe=row.recipe and row.recipe.format(dataset=dataset.key))
            for row in self.rows
            if is_other_data or dataset.name in row.published or not row.published
        )
        names = {row.name for row in rows}
        rows = tuple(
            row._replace(baselines=tuple(baseline for baseline in row.baselines if baseline in names)) for row in rows
        )
        datasets = tuple(name for name in self.datasets if name not in others)
        return self._replace(rows=rows, datasets=datasets, trained_on=(dataset,))

    def data_set(self, key: str) -> DataSet:
        """Return one of the table's data sets by its key.

        Raises:
            SettingsError: the table has no scores on a data set of this name.
        """
        for dataset in self.trained_on:
            if dataset.key == key:
                return dataset
        known = ", ".join(dataset.key for dataset in self.trained_on)
        expected = f"expected one of {known}" if known else "its rows are the same for every collection; leave it out"
        raise SettingsError(f"data set '{key}' of {self.name}: {expected}")


def read_published(columns: Sequence[TableColumn], printed: str) -> dict[str, float]:
    """Read published scores, in the order of the columns and '-' where there is none, on our scale.

    Raises:
        ValueError: the number of scores is not that of the columns, or one of them is not a number.
    """
    cells = zip(columns, printed.split(), strict=True)
    return {column.score: round(float(cell) / column.scale, 6) for column, cell in cells if cell != "-"}


class InitialRun(Record):
    """A run outside the table whose weights initialise the first training stage of a row."""

    run: str
    """Name of the run."""
    weights_sha256: str
    """SHA-256 of the weights file."""
    command: str | None = None
    """Command that trained it; None in records of older versions."""
    seconds: float | None = None
    """Time of its training steps; None in records of older versions."""

    def __str__(self) -> str:
        trained = [] if self.command is None else [self.command]
        trained += [] if self.seconds is None else [duration(self.seconds)]
        return f"run '{self.run}'" + (f" ({'; '.join(trained)})" if trained else "")


class CorpusRecord(Record):
    """A collection of sentence pairs that rows train with, besides the table's own collection."""

    name: str
    """Name of the folder of the collection."""
    fingerprint: str
    """Fingerprint of the collection."""

    def __str__(self) -> str:
        return f"corpus '{self.name}' (fingerprint {self.fingerprint[:12]})"


class RowResult(Record):
    """The result of one row with one seed, stored so that the row is not trained and evaluated again."""

    table: str | None = None
    """Name of the table; None in records of older versions."""
    row: str
    """Name of the row."""
    recipe: dict[str, Any]
    """All settings of training and evaluation."""
    recipe_folder: str | None = None
    """Folder of the recipe; None in records of older versions."""
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
    features: tuple[str, ...] | None = None
    """Fingerprints of the features of the model; None in records of older versions."""
    run: str
    """Run directory of the model, relative to the folder of the table."""
    image_control: str
    """Image control of the evaluation."""
    budget: float = 1.0
    """Fraction of the recipe's epochs and samples."""
    ensemble: tuple[InitialRun, ...] = ()
    """Runs that decoded together; empty for a single run."""
    seconds: float
    """Training time in seconds of all alternatives and preceding stages, and of the model that translated back."""
    processor_seconds: float | None = None
    """Processor time of the same; None in records of older versions."""
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
        whole, signature = (
            self.gradients.curves[0],
            f"sentences:{self.gradients.sentences}|split:{self.gradients.split}",
        )
        for distance, norm in enumerate(whole.norms):
            yield Score(f"gradient_{distance}", norm, signature)
        if decay := self.gradients.decays.get(whole.name):
            fitted = f"{signature}|distances:{decay.distances}|weights:pairs"
            yield Score("gradient_factor", decay.factor, fitted)

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


def by_row(results: Iterable[RowResult]) -> dict[str, list[RowResult]]:
    """Group results by row, one result for each seed."""
    rows: dict[str, list[RowResult]] = {}
    for result in results:
        rows.setdefault(result.row, []).append(result)
    return rows


def total(times: Iterable[float | None]) -> float | None:
    """Sum the times of some trainings; None if one is unknown."""
    known = list(times)
    return None if None in known else round(sum(time for time in known if time is not None), 1)


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
