"""Stored results of the rows of a table, so that finished rows are not repeated; significance of differences."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from limner.apps.reproduce.tables import PublishedRow, PublishedTable
from limner.data.collection import Collection
from limner.errors import RunError
from limner.evaluation.compare import adjust, compare_evaluations
from limner.evaluation.comparison import DAGGERS, ComparisonSettings, Contrast
from limner.evaluation.gradients import GradientNorms
from limner.metrics import Score, higher_is_better
from limner.progress import StageProgress
from limner.runs.evaluations import Evaluation
from limner.runs.records import Record

SIGNIFICANCE = "significance.json"
"""File of the comparisons of rows."""
TEST = "hierarchical t-test, 3: a deterministic system says nothing about the variance of one run"
"""Name and version of the test; a stored comparison with another test or version is repeated."""

logger = logging.getLogger(__name__)


class InitialRun(Record):
    """A run outside the table whose weights initialise the first training stage of a row."""

    run: str
    weights_sha256: str
    command: str | None = None
    seconds: float | None = None
    """Time of its training steps."""

    def __str__(self) -> str:
        return f"run '{self.run}' (weights {self.weights_sha256[:12]})"


class CorpusRecord(Record):
    """A collection of sentence pairs that rows train with, besides the table's own collection."""

    name: str
    """Name of the folder of the collection."""
    fingerprint: str

    @classmethod
    def from_collection(cls, collection: Collection) -> Self:
        """Create the record of a collection."""
        return cls(name=collection.path.resolve().name, fingerprint=collection.fingerprint())

    def __str__(self) -> str:
        return f"corpus '{self.name}' (fingerprint {self.fingerprint[:12]})"


class RowResult(Record):
    """The result of one row with one seed."""

    table: str
    row: str
    recipe: dict[str, Any]
    """All settings of training and evaluation."""
    recipe_folder: str
    overrides: tuple[str, ...] = ()
    """Recipe overrides KEY=VALUE of the call."""
    pretraining: tuple[dict[str, Any], ...] = ()
    """All settings of the preceding training stages, in order."""
    initialised_from: InitialRun | None = None
    """Run that initialised the first training stage."""
    back_translated_by: str | None = None
    """Run that generated the source sentences of a derived collection, if a stage was trained on it."""
    corpus: CorpusRecord | None = None
    """Collection of sentence pairs that the row trained with, besides the collection of the table."""
    features: tuple[str, ...] = ()
    """Fingerprints of the features of the model."""
    run: str
    """Run directory of the model, relative to the folder of the table."""
    image_control: str
    budget: float = 1.0
    """Fraction of the recipe's epochs and samples."""
    seconds: float
    """Training time in seconds of all alternatives and preceding stages, and of the model that translated back."""
    processor_seconds: float | None = None
    """Processor time in seconds of the same trainings."""
    evaluation: Evaluation
    gradients: GradientNorms | None = None
    """Gradients through time of the trained model, in a table that measures them."""

    @property
    def scores(self) -> dict[str, Score]:
        """Scores by name: metrics of the evaluation, the training time and the norms of gradients."""
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
    std: float | None
    """Standard deviation over the seeds, or over the samples of a single seed; None if there is neither."""


class Reproduction(NamedTuple):
    """A reproduced table and its files."""

    table: PublishedTable
    results: tuple[RowResult, ...]  # results of every row and seed, in the order of the table
    markdown: Path
    json: Path
    figures: tuple[Path, ...]


def result_path(row: PublishedRow, out: Path, seed: int | None = None) -> Path:
    """File of the result of a row with its first or a later seed."""
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


class RowSignificance(Record):
    """The comparison of two rows by all metrics."""

    rows: tuple[str, str]
    """Names of the rows, in the order of the table."""
    digest: str
    """SHA-256 of the compared evaluations and of the settings of the test."""
    contrasts: tuple[Contrast, ...]
    """Difference of the second row from the first, one for each metric."""
    signature: str

    def contrasts_of(self, row: str) -> tuple[Contrast, ...]:
        """Return the differences of one of the two rows from the other."""
        first, second = self.rows
        if row == second:
            return self.contrasts
        reversed_contrasts = []
        for contrast in self.contrasts:
            low, high = contrast.interval
            values = {"difference": -contrast.difference, "interval": (-high, -low)}
            reversed_contrasts.append(contrast.model_copy(update={"system": first, "baseline": second, **values}))
        return tuple(reversed_contrasts)


class TableComparison(Record):
    """The comparisons between the rows of a table, stored because the tests take minutes."""

    remedy: ClassVar[str] = "remove it; 'limner reproduce' writes it again"
    pairs: tuple[RowSignificance, ...] = ()


def compare_rows(
    table: PublishedTable, results: Sequence[RowResult], out: Path, on_progress: StageProgress
) -> TableComparison:
    """Compare every row with its baselines; unchanged pairs are read from the cache.

    A pair that cannot be compared, for example because the rows were evaluated on different sentences, is left out
    with a warning.
    """
    path, rows = out / SIGNIFICANCE, by_row(results)
    stored = TableComparison.load(path) if TableComparison.is_in(path) else None
    cache = {} if stored is None else {pair.digest: pair for pair in stored.pairs}
    pairs = [
        _compare_pair(rows[first], rows[second], table.metrics, cache, on_progress)
        for first, second in _compared_pairs(table)
        if first in rows and second in rows
    ]
    comparison = TableComparison(pairs=_adjusted([pair for pair in pairs if pair is not None]))
    is_damaged = stored is None and path.exists()
    if is_damaged or {pair.digest for pair in comparison.pairs} != set(cache):
        comparison.save(path)
    return comparison


def contrasts(row: PublishedRow, comparison: TableComparison) -> dict[str, tuple[Contrast, ...]]:
    """The differences of a row from each of its baselines, by the name of the baseline."""
    pairs = {frozenset(pair.rows): pair for pair in comparison.pairs}
    keys = {baseline: frozenset({row.name, baseline}) for baseline in row.baselines}
    return {baseline: pairs[key].contrasts_of(row.name) for baseline, key in keys.items() if key in pairs}


def significance_marks(row: PublishedRow, score: str, comparison: TableComparison) -> str:
    """Return † if the row is significantly better than its first baseline, and ‡ if it is better than its second."""
    sign = 1 if higher_is_better(score) else -1
    worse_baselines = {
        contrast.baseline
        for of_baseline in contrasts(row, comparison).values()
        for contrast in of_baseline
        if contrast.metric == score and contrast.adjusted_p < row.level and sign * contrast.difference > 0
    }
    return "".join(
        dagger for dagger, baseline in zip(DAGGERS, row.baselines, strict=False) if baseline in worse_baselines
    )


def _compared_pairs(table: PublishedTable) -> list[tuple[str, str]]:
    """Pairs of a row and a baseline, each pair once and in the order of the table."""
    order = {row.name: position for position, row in enumerate(table.rows)}
    pairs = {
        (min(order[row.name], order[baseline]), max(order[row.name], order[baseline]))
        for row in table.rows
        for baseline in row.baselines
        if baseline != row.name
    }
    return [(table.rows[first].name, table.rows[second].name) for first, second in sorted(pairs)]


def _adjusted(pairs: Sequence[RowSignificance]) -> tuple[RowSignificance, ...]:
    """Adjust the p-values of all pairs of the table by Holm's method, for each metric by itself."""
    contrasts = iter(adjust([contrast for pair in pairs for contrast in pair.contrasts]))
    return tuple(
        pair.model_copy(update={"contrasts": tuple(next(contrasts) for _ in pair.contrasts)}) for pair in pairs
    )


def _compare_pair(
    baseline: Sequence[RowResult],
    row: Sequence[RowResult],
    metrics: Sequence[str],
    cache: Mapping[str, RowSignificance],
    on_progress: StageProgress,
) -> RowSignificance | None:
    """Compare two rows by their common metrics; None if they cannot be compared."""
    results, names = [*baseline, *row], (baseline[0].row, row[0].row)
    measured = tuple(metric for metric in metrics if all(metric in result.scores for result in results))
    if not measured:
        return None
    settings = ComparisonSettings(metrics=measured)
    digest = _digest(results, settings)
    if digest in cache:
        return cache[digest]
    groups, lang = zip(names, (baseline, row), strict=True), str(row[0].recipe["data"]["lang"])
    systems = {name: {result.run: result.evaluation for result in group} for name, group in groups}

    def show(stage: str, done: int, total: int) -> None:
        on_progress(f"{stage} {names[1]}", done, total)

    try:
        comparison = compare_evaluations(systems, lang, settings=settings, on_progress=show)
    except RunError as error:
        logger.warning("'%s' is not compared with '%s': %s", *reversed(names), error)
        return None
    return RowSignificance(rows=names, digest=digest, contrasts=comparison.contrasts, signature=comparison.signature)


def _digest(results: Sequence[RowResult], settings: ComparisonSettings) -> str:
    digest = hashlib.sha256(f"{TEST} {settings.model_dump_json()}".encode())
    for result in results:
        digest.update(f"\n{result.row} {result.run} {result.evaluation.model_dump_json()}".encode())
    return digest.hexdigest()
