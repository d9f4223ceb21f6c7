"""Verdicts on a reproduced table, computed by stated rules: the order of its rows, and the effects between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from limner.evaluation.comparison import DAGGERS
from limner.metrics import higher_is_better
from limner.metrics.significance import holm
from limner.reproduce.book.record import RowRecord, TableRecord
from limner.reproduce.tables import PublishedRow, PublishedTable, TableColumn

SIGNIFICANCE_LEVEL = 0.05


class Swap(NamedTuple):
    """Two rows whose order by a score is not the published one."""

    better: str
    """Row with the better published score."""
    worse: str
    p: float | None
    """p-value over the seeds, not adjusted; None if a row has a single seed."""

    @property
    def is_significant(self) -> bool:
        """Whether the seeds show that the order is not the published one."""
        return self.p is not None and self.p < SIGNIFICANCE_LEVEL


class Order(NamedTuple):
    """Order of the rows by one column: the published scores of a data set against ours."""

    column: TableColumn
    dataset: str
    pairs: int
    """Pairs of rows with different published scores."""
    tau: float | None
    """Kendall's τ-b of the published and our scores; None if all of ours are equal."""
    swapped: tuple[Swap, ...]
    """Pairs of rows whose order is the opposite with us."""


class Effect(NamedTuple):
    """Difference of a row from a baseline by one column."""

    row: str
    baseline: str
    column: TableColumn
    dataset: str
    published: float
    """Published difference, on our scale."""
    mark: str
    """Published mark of a significant difference between the two rows, † or ‡."""
    ours: float
    """Difference of our means over the seeds."""
    p: float | None
    """p-value, adjusted by Holm's method; None with a single seed and no test over sentences."""
    level: float
    """Significance level of the row."""
    over_sentences: bool
    """Whether p is that of the test over sentences and seeds, not over the seeds alone."""

    @property
    def verdict(self) -> str:
        """Whether the effect is the published one, in words."""
        if self.published == 0:
            return "no published difference"
        if self.ours == 0:
            return "no difference with us"
        direction = "same" if self.published * self.ours > 0 else "opposite"
        if self.p is None:
            return f"{direction} direction, not tested"
        return f"{direction} effect" if self.p < self.level else f"{direction} direction, not significant"


def orders(table: PublishedTable, record: TableRecord) -> Iterator[Order]:
    """Compare the order of the rows by every column, for each data set with at least two published scores."""
    from scipy.stats import kendalltau

    ours = {row.row: row for row in record.rows}
    for dataset in table.datasets:
        for column in table.columns:
            scored = [
                (row.name, row.published[dataset][column.score], mean)
                for row in table.rows
                if column.score in row.published.get(dataset, {})
                and row.name in ours
                and (mean := mean_of(ours[row.name], column.score)) is not None
            ]
            pairs = [(a, b) for a, b in combinations(scored, 2) if a[1] != b[1]]
            if pairs:
                theirs, own = ([one[place] for one in scored] for place in (1, 2))
                tau = float(kendalltau(theirs, own).statistic) if len(set(own)) > 1 else None
                swapped = tuple(_swap(a, b, column, record) for a, b in pairs if (a[1] - b[1]) * (a[2] - b[2]) < 0)
                yield Order(column, dataset, len(pairs), tau, swapped)


def effects(table: PublishedTable, record: TableRecord) -> list[Effect]:
    """Compare the differences from the baselines that the paper reports with ours.

    The p-value of a pair is that of the test over sentences in the record; without one, that of the test over seeds.
    Both are adjusted together by Holm's method, for all pairs of the table by the same score.
    """
    found = [effect for row in table.rows for effect in _effects_of(row, table, record)]
    for column in dict.fromkeys(effect.column for effect in found):
        tested = {
            frozenset((row.row, one.baseline)): one.p
            for row in record.rows
            for one in row.contrasts
            if one.metric == column.score
        }
        pairs = {number: frozenset((one.row, one.baseline)) for number, one in enumerate(found) if one.column == column}
        p_values = dict(tested)
        for number, pair in pairs.items():
            if pair not in p_values and (p := _seeds_p(record, *found[number][:2], column.score)) is not None:
                p_values[pair] = p
        adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
        for number, pair in pairs.items():
            found[number] = found[number]._replace(p=adjusted.get(pair), over_sentences=pair in tested)
    return found


def mean_of(row: RowRecord, score: str) -> float | None:
    """Mean score over the seeds; None if it was not measured."""
    values = values_of(row, score)
    return float(np.mean(values)) if values else None


def values_of(row: RowRecord, score: str) -> list[float]:
    """Scores of the seeds."""
    return [seed.scores[score] for seed in row.seeds if score in seed.scores]


def p_over_seeds(a: Sequence[float], b: Sequence[float]) -> float | None:
    """p-value of Student's t-test over the seeds of two rows; None if one has a single seed.

    The variance is pooled, as in `limner.metrics.hierarchical`. Welch's test, with a variance of each row, rejects
    about 2 % of true null hypotheses at the level of 5 % with two seeds a row. A row with the same score for all seeds,
    such as a model of counts, is a constant for the other one.
    """
    from scipy.stats import ttest_ind

    if min(len(a), len(b)) < 2:
        return None
    if np.ptp(a) == 0:
        return _p_of_constant(b, a[0])
    if np.ptp(b) == 0:
        return _p_of_constant(a, b[0])
    return float(ttest_ind(a, b).pvalue)


def _p_of_constant(values: Sequence[float], constant: float) -> float:
    """p-value of Student's t-test of the mean of several values; 0 if they are all equal, but not to the constant."""
    from scipy.stats import ttest_1samp

    if np.ptp(values) == 0:
        return float(values[0] == constant)
    return float(ttest_1samp(values, constant).pvalue)


def is_better(score: str, value: float, other: float) -> bool:
    """Whether a score is better than another one, or equal."""
    return value >= other if higher_is_better(score) else value <= other


def _swap(a: tuple[str, float, float], b: tuple[str, float, float], column: TableColumn, record: TableRecord) -> Swap:
    better, worse = (a[0], b[0]) if is_better(column.score, a[1], b[1]) else (b[0], a[0])
    return Swap(better, worse, _seeds_p(record, better, worse, column.score))


def _effects_of(row: PublishedRow, table: PublishedTable, record: TableRecord) -> Iterator[Effect]:
    ours, rows = {one.row: one for one in record.rows}, {one.name: one for one in table.rows}
    compared = [name for name in row.baselines if name in ours and row.name in ours and name != row.name]
    for baseline in (name for name in compared if not _is_counted_by(row, rows[name])):
        for dataset in table.datasets:
            theirs, of_baseline = row.published.get(dataset, {}), rows[baseline].published.get(dataset, {})
            for column in (one for one in table.columns if one.score in theirs and one.score in of_baseline):
                means = mean_of(ours[row.name], column.score), mean_of(ours[baseline], column.score)
                if means[0] is None or means[1] is None:
                    continue
                yield Effect(
                    row.name,
                    baseline,
                    column,
                    dataset,
                    published=round(theirs[column.score] - of_baseline[column.score], 6),
                    mark=_mark(row, rows[baseline], dataset, column.score)
                    or _mark(rows[baseline], row, dataset, column.score),
                    ours=means[0] - means[1],
                    p=None,
                    level=row.level,
                    over_sentences=False,
                )


def _is_counted_by(row: PublishedRow, baseline: PublishedRow) -> bool:
    """Whether two rows are baselines of each other, and their difference is listed as an effect of the second one.

    It is listed for the row whose first baseline is the other one, so that it is counted once.
    """
    return row.name in baseline.baselines and row.baselines[0] != baseline.name


def _mark(row: PublishedRow, baseline: PublishedRow, dataset: str, score: str) -> str:
    """The mark of a published score that stands for this baseline."""
    marks = row.published_marks.get(dataset, {}).get(score, "")
    daggers = dict(zip(row.baselines, DAGGERS, strict=False))
    return daggers[baseline.name] if daggers.get(baseline.name, "none") in marks else ""


def _seeds_p(record: TableRecord, row: str, baseline: str, score: str) -> float | None:
    """p-value over the seeds; rows that are evaluations of the same runs, seed by seed, are compared run by run."""
    by_name = {one.row: one for one in record.rows}
    rows = by_name[row], by_name[baseline]
    a, b = (values_of(one, score) for one in rows)
    runs = [[(seed.seed, seed.run) for seed in one.seeds if score in seed.scores] for one in rows]
    if runs[0] == runs[1] and len(a) > 1 and all(run for _, run in runs[0]):
        return _p_of_constant([x - y for x, y in zip(a, b, strict=True)], 0.0)
    return p_over_seeds(a, b)
