"""Significance of the differences between the rows of a table, adjusted for their number and cached on disk."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from limner.apps.reproduce.results import RowResult, by_row
from limner.apps.reproduce.tables import PublishedRow, PublishedTable
from limner.errors import RunError
from limner.evaluation.compare import adjust, compare_evaluations
from limner.evaluation.comparison import DAGGERS, ComparisonSettings, Contrast
from limner.metrics import higher_is_better
from limner.progress import StageProgress
from limner.runs.records import Record

FILE = "significance.json"
TEST = "hierarchical t-test, 3: a deterministic system says nothing about the variance of one run"
"""The test and its version: a stored comparison of another one is made again."""

logger = logging.getLogger(__name__)


class RowSignificance(Record):
    """The comparison of two rows by all metrics."""

    rows: tuple[str, str]
    """Names of the rows, in the order of the table."""
    digest: str
    """SHA-256 of the compared evaluations and of the settings of the test."""
    contrasts: tuple[Contrast, ...]
    """Difference of the second row from the first, one for each metric."""
    signature: str
    """Signature of the significance test."""

    def contrasts_of(self, row: str) -> tuple[Contrast, ...]:
        """The differences of one of the rows from the other one."""
        first, second = self.rows
        if row == second:
            return self.contrasts
        systems = {"system": first, "baseline": second}
        return tuple(
            contrast.model_copy(
                update={
                    **systems,
                    "difference": -contrast.difference,
                    "interval": (-contrast.interval[1], -contrast.interval[0]),
                }
            )
            for contrast in self.contrasts
        )


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
    path, rows = out / FILE, by_row(results)
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
    systems = {
        name: {result.run: result.evaluation for result in group}
        for name, group in zip(names, (baseline, row), strict=True)
    }
    try:
        comparison = compare_evaluations(
            systems,
            str(row[0].recipe["data"]["lang"]),
            settings=settings,
            on_progress=lambda stage, done, total: on_progress(f"{stage} {names[1]}", done, total),
        )
    except RunError as error:
        logger.warning("'%s' is not compared with '%s': %s", *reversed(names), error)
        return None
    return RowSignificance(rows=names, digest=digest, contrasts=comparison.contrasts, signature=comparison.signature)


def _digest(results: Sequence[RowResult], settings: ComparisonSettings) -> str:
    digest = hashlib.sha256(f"{TEST} {settings.model_dump_json()}".encode())
    for result in results:
        digest.update(f"\n{result.row} {result.run} {result.evaluation.model_dump_json()}".encode())
    return digest.hexdigest()
