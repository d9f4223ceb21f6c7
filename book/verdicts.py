"""Verdicts on a reproduced table, computed by stated rules: the order of its rows, and the effects between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.stats import kendalltau, ttest_1samp, ttest_ind

from limner.apps.reproduce import PublishedRow, PublishedTable, TableColumn
from limner.evaluation.comparison import DAGGERS
from limner.metrics import higher_is_better
from limner.metrics.significance import holm
from records import RowRecord, TableRecord

SIGNIFICANCE_LEVEL = 0.05


class Swap(NamedTuple):
    """Two rows whose order by a score is not the published one."""

    better: str
    """Row with the better published score."""
    worse: str
    p: float | None
    """Adjusted p-value of the effect, if the pair is an effect, else over the seeds; None if it was not tested."""

    @property
    def is_significant(self) -> bool:
        """Whether the test shows that the order is not the published one."""
        return self.p is not None and self.p < SIGNIFICANCE_LEVEL


class Order(NamedTuple):
    """Order of the rows by one column: the published scores of a data set against ours."""

    column: TableColumn
    dataset: str
    pairs: int
    """Pairs of rows with different published scores."""
    tau: float | None
    """Kendall's τ-b of the published and our scores; None if all of ours are equal."""
    ties: int
    """Pairs of them that have equal scores in our runs."""
    swapped: tuple[Swap, ...]
    """Pairs of rows whose order is the opposite in our runs."""


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
    paper_tests: bool
    """Whether the paper marks significant differences of this score."""
    ours: float
    """Difference of our means over the seeds."""
    p: float | None
    """p-value, adjusted by Holm's method; None with a single seed and no test over sentences."""
    level: float
    """Significance level of the row."""
    over: tuple[str, ...]
    """What the test of p samples: sentences, seeds, or both."""
    daggers: tuple[str, str]
    """Marks that stand for the baseline in the row, and for the row among the baselines of its baseline; † or ‡."""

    @property
    def dagger(self) -> str:
        """Mark of the row in our runs: the mark of the baseline if the row is significantly better, else empty."""
        return self.daggers[0] if self._is_significant and is_better(self.column.score, self.ours, 0) else ""

    @property
    def reversed_dagger(self) -> str:
        """Mark of the baseline in our runs: the mark of the row if the baseline is significantly better, else empty."""
        return self.daggers[1] if self._is_significant and not is_better(self.column.score, self.ours, 0) else ""

    @property
    def in_the_paper(self) -> str:
        """What the paper says of the significance of the difference."""
        if not self.paper_tests:
            return "not tested"
        return "significant" if self.mark else "not marked"

    @property
    def verdict(self) -> str:
        """Whether the effect is the published one, in words."""
        if self.published == 0:
            return "no published difference"
        if self.ours == 0:
            return "no difference in our runs"
        direction = "same" if self.published * self.ours > 0 else "opposite"
        if self.p is None:
            return f"{direction} direction, not tested"
        if self._is_significant and self.in_the_paper == "not marked":
            return f"significant, {direction} direction, not marked in the paper"
        return f"{direction} effect" if self._is_significant else f"{direction} direction, not significant"

    @property
    def _is_significant(self) -> bool:
        return self.p is not None and self.p < self.level


class _Scored(NamedTuple):
    """Published score of a row, and the mean of ours."""

    row: str
    published: float
    ours: float


def orders(table: PublishedTable, record: TableRecord) -> Iterator[Order]:
    """Compare the order of the rows by every column, for each data set with at least two published scores.

    p-values of pairs that are no effects come from the test over seeds, adjusted together by Holm's method.
    """
    of_effects = effects(table, record)
    for dataset in table.datasets:
        for column in table.columns:
            scored = _scored(table, record, column, dataset)
            pairs = [
                (a, b) if is_better(column.score, a.published, b.published) else (b, a)
                for a, b in combinations(scored, 2)
                if a.published != b.published
            ]
            if not pairs:
                continue
            p_values = {frozenset((a.row, b.row)): _seeds_p(record, a.row, b.row, column.score) for a, b in pairs}
            p_values = _adjusted({pair: p for pair, p in p_values.items() if p is not None})
            p_values |= {frozenset((each.row, each.baseline)): each.p for each in of_effects if each.column == column}
            ours = [row.ours for row in scored]
            tau = kendalltau([row.published for row in scored], ours).statistic if len(set(ours)) > 1 else None
            swapped = [(a, b) for a, b in pairs if (a.published - b.published) * (a.ours - b.ours) < 0]
            yield Order(
                column,
                dataset,
                len(pairs),
                None if tau is None else float(tau),
                sum(a.ours == b.ours for a, b in pairs),
                tuple(Swap(a.row, b.row, p_values.get(frozenset((a.row, b.row)))) for a, b in swapped),
            )


def effects(table: PublishedTable, record: TableRecord) -> list[Effect]:
    """Compare the differences from the baselines that the paper reports with ours.

    The p-value of a pair comes from the test over sentences in the record, or else from the test over seeds.
    Both are adjusted together by Holm's method, for all pairs of the table by the same score.
    """
    result = [effect for row in table.rows for effect in _effects_of(row, table, record)]
    seeds = {row.row: len(row.seeds) for row in record.rows}
    for column in dict.fromkeys(effect.column for effect in result):
        tested = {
            frozenset((row.row, contrast.baseline)): contrast
            for row in record.rows
            for contrast in row.contrasts
            if contrast.metric == column.score
        }
        p_values = {pair: contrast.p for pair, contrast in tested.items()}
        numbers = [number for number, effect in enumerate(result) if effect.column == column]
        for row, baseline, *_ in (result[number] for number in numbers):
            pair = frozenset((row, baseline))
            if pair not in p_values and (p := _seeds_p(record, row, baseline, column.score)) is not None:
                p_values[pair] = p
        adjusted = _adjusted(p_values)
        for number in numbers:
            pair, over = frozenset(result[number][:2]), ("seeds",)
            if pair in tested:
                over_runs = tested[pair].over_runs
                if over_runs is None:  # a record of an older version
                    over_runs = any(seeds.get(name, 0) > 1 for name in pair)
                over = ("sentences", "seeds") if over_runs else ("sentences",)
            result[number] = result[number]._replace(p=adjusted.get(pair), over=over)
    return result


def mean_of(row: RowRecord, score: str) -> float | None:
    """Mean score over the seeds; None if it was not measured."""
    values = values_of(row, score)
    return float(np.mean(values)) if values else None


def values_of(row: RowRecord, score: str) -> list[float]:
    """Scores of the seeds."""
    return [seed.scores[score] for seed in row.seeds if score in seed.scores]


def is_better(score: str, value: float, other: float) -> bool:
    """Whether a score is better than another one, or equal."""
    return value >= other if higher_is_better(score) else value <= other


def p_over_seeds(a: Sequence[float], b: Sequence[float]) -> float | None:
    """p-value of Student's t-test over the seeds of two rows; None if one has a single seed, or neither varies.

    The variance is pooled, as in `limner.metrics.significance`. Welch's test, with a variance of each row, rejects
    about 2 % of true null hypotheses at the level of 5 % with two seeds a row. A row with the same score for all seeds,
    such as a model of counts, is a constant for the other one; seeds tell nothing about two constants.
    """
    if min(len(a), len(b)) < 2:
        return None
    if np.ptp(a) == 0:
        return _p_of_constant(b, a[0])
    if np.ptp(b) == 0:
        return _p_of_constant(a, b[0])
    return float(ttest_ind(a, b).pvalue)


def _p_of_constant(values: Sequence[float], constant: float) -> float | None:
    """p-value of Student's t-test of the mean of several values; None if they do not vary."""
    return None if np.ptp(values) == 0 else float(ttest_1samp(values, constant).pvalue)


def _seeds_p(record: TableRecord, row: str, baseline: str, score: str) -> float | None:
    """p-value over the seeds; rows that are evaluations of the same runs, seed by seed, are compared run by run."""
    by_name = {each.row: each for each in record.rows}
    rows = by_name[row], by_name[baseline]
    a, b = (values_of(each, score) for each in rows)
    runs = [[(seed.seed, seed.run) for seed in each.seeds if score in seed.scores] for each in rows]
    if runs[0] == runs[1] and len(a) > 1 and all(run for _, run in runs[0]):
        return _p_of_constant([x - y for x, y in zip(a, b, strict=True)], 0.0)
    return p_over_seeds(a, b)


def _adjusted(p_values: dict[frozenset[str], float]) -> dict[frozenset[str], float | None]:
    return dict(zip(p_values, holm(list(p_values.values())), strict=True))


def _scored(table: PublishedTable, record: TableRecord, column: TableColumn, dataset: str) -> list[_Scored]:
    ours = {row.row: row for row in record.rows}
    return [
        _Scored(row.name, row.published[dataset][column.score], mean)
        for row in table.rows
        if column.score in row.published.get(dataset, {})
        and row.name in ours
        and (mean := mean_of(ours[row.name], column.score)) is not None
    ]


def _effects_of(row: PublishedRow, table: PublishedTable, record: TableRecord) -> Iterator[Effect]:
    ours, rows = {each.row: each for each in record.rows}, {each.name: each for each in table.rows}
    for name in row.baselines:
        if row.name not in ours or name not in ours or name == row.name:
            continue
        baseline = rows[name]
        if row.name in baseline.baselines and row.baselines[0] != name:
            continue  # listed once, for the row whose first baseline is the other one
        for dataset in table.datasets:
            theirs, of_baseline = row.published.get(dataset, {}), baseline.published.get(dataset, {})
            for column in (each for each in table.columns if each.score in theirs and each.score in of_baseline):
                score = column.score
                means = mean_of(ours[row.name], score), mean_of(ours[name], score)
                if means[0] is None or means[1] is None:
                    continue
                yield Effect(
                    row.name,
                    name,
                    column,
                    dataset,
                    published=round(theirs[score] - of_baseline[score], 6),
                    mark=_mark(row, baseline, dataset, score) or _mark(baseline, row, dataset, score),
                    paper_tests=any(score in each.published_marks.get(dataset, {}) for each in table.rows),
                    ours=means[0] - means[1],
                    p=None,
                    level=row.level,
                    over=(),
                    daggers=(_dagger_of(name, row), _dagger_of(row.name, baseline)),
                )


def _mark(row: PublishedRow, baseline: PublishedRow, dataset: str, score: str) -> str:
    """The mark of a published score that stands for this baseline."""
    dagger = _dagger_of(baseline.name, row)
    return dagger if dagger in row.published_marks.get(dataset, {}).get(score, "") else ""


def _dagger_of(baseline: str, row: PublishedRow) -> str:
    """The mark that stands for a baseline in a row; empty if it is none of its baselines."""
    return dict(zip(row.baselines, DAGGERS, strict=False)).get(baseline, "")
