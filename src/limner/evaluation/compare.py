"""Comparison of systems on the same sentences: scores, differences and their significance.

The first two systems are the baselines, as in the tables of Calixto et al. (2017): † marks a score that is
significantly better than that of the first system, ‡ one that is significantly better than that of the second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from os.path import commonprefix
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from limner.bounds import Level, Seed, Trials
from limner.errors import RunError, SettingsError, counted
from limner.metrics import METRICS, Metric, MetricStatistics, require_metrics, sentence_statistics
from limner.metrics.classification import METRICS_OF_LABELS
from limner.metrics.significance import (
    EXCHANGE,
    LEVEL,
    SEED,
    TRIALS,
    Exchange,
    Significance,
    approximate_randomisation,
    check_trials,
)
from limner.progress import offset_progress
from limner.runs.records import EvaluatedItem, Evaluation, Record, RunConfig
from limner.settings import Settings
from limner.storage.names import require_name

SENTENCE_METRICS = ("bleu4", "meteor", "ter", "chrf3")
"""Default metrics of sentences, those of Calixto et al. (2017)."""
DAGGERS = ("†", "‡")
"""Marks of scores that are significantly better than those of the first and of the second system."""

Systems = Mapping[str, Mapping[str, Evaluation]]
"""Evaluations by system and run."""
StatisticsBySystem = dict[str, dict[str, list[MetricStatistics]]]
"""Metric statistics of each run, by system and metric."""
Tests = dict[tuple[str, str, str], Significance]
"""Test results by system, baseline and metric."""
PartProgress = Callable[[str, int, int], None]
"""Called with the name of a part of the work, the number of units done and their total."""

logger = logging.getLogger(__name__)


class ComparisonSettings(Settings):
    """Metrics of a comparison and settings of the significance test."""

    metrics: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Names of metrics; None for those of Calixto et al. (2017), or for labels all metrics of their kind."""
    trials: Trials = TRIALS
    """Number of trials of approximate randomisation."""
    seed: Seed = SEED
    """Seed of the trials."""
    exchange: Exchange = EXCHANGE
    """Unit that a trial exchanges if systems have several runs, see `approximate_randomisation`."""
    level: Level = LEVEL
    """Significance level: a difference is significant if p is below it."""

    @model_validator(mode="after")
    def _enough_trials(self) -> Self:
        check_trials(self.trials, self.level)
        return self


class ComparedSystem(Record):
    """A system with one or several runs."""

    name: str
    runs: tuple[str, ...]
    """Paths of the run directories."""


class ComparedMetric(Record):
    """A metric of a comparison."""

    name: str
    signature: str
    """Settings of the metric."""
    higher_is_better: bool


class SystemScore(Record):
    """Score of a system by a metric."""

    system: str
    metric: str
    value: float
    """Mean score over the runs."""
    values: tuple[float, ...]
    """Score of each run."""
    marks: str
    """† if significantly better than the first system, ‡ if significantly better than the second."""

    @property
    def spread(self) -> float | None:
        """Standard deviation over the runs; None for a single run."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None


class Contrast(Record):
    """Difference between a system and a baseline by a metric."""

    system: str
    baseline: str
    metric: str
    difference: float
    """Mean score of the system minus that of the baseline."""
    p: float
    """Two-sided p-value."""


class Comparison(Record):
    """Scores of several systems and the significance of their differences."""

    split: str
    """Name of the evaluations."""
    systems: tuple[ComparedSystem, ...]
    metrics: tuple[ComparedMetric, ...]
    scores: tuple[SystemScore, ...]
    """Score of every system by every metric."""
    contrasts: tuple[Contrast, ...]
    """Differences of every other system to the first, and of every further one to the second."""
    level: float
    """Significance level."""
    signature: str
    """Settings of the significance test."""

    def score(self, system: str, metric: str) -> SystemScore:
        """Return the score of a system by a metric; KeyError if there is none."""
        return {(one.system, one.metric): one for one in self.scores}[system, metric]

    def contrast(self, system: str, baseline: str, metric: str) -> Contrast:
        """Return the difference of two systems by a metric; KeyError if it was not tested."""
        return {(one.system, one.baseline, one.metric): one for one in self.contrasts}[system, baseline, metric]


def compare(
    systems: Sequence[Sequence[Path]],
    *,
    split: str = "test",
    lang: str | None = None,
    settings: ComparisonSettings | None = None,
    on_progress: PartProgress | None = None,
) -> Comparison:
    """Compare systems by their stored evaluations.

    Args:
        systems: two or more systems, each a list of run directories that differ in the training seed; the first two are
            the baselines.
        split: name of the evaluations, RUN/evaluation/SPLIT.json; a newer SPLIT-part.json is read instead.
        lang: language of the sentences; None for the language of the first run.
        settings: metrics and settings of the test.
        on_progress: called with the name of a part of the work, the number of units done and their total.

    Raises:
        SettingsError: fewer than two systems, a system without runs, a run given twice, an unknown metric, or no metric
            that can be computed on this machine.
        RunError: a run has no such evaluation, or the runs were not evaluated on the same sentences.
    """
    folders = [run.resolve() for runs in systems for run in runs]
    if repeated := next((run for run in folders if folders.count(run) > 1), None):
        raise SettingsError(f"{repeated}: given twice; give each run once")
    evaluations = [{str(run): load_evaluation(run, split) for run in runs} for runs in systems]
    names = [_name(runs) for runs in systems]
    if len(set(names)) < len(names):
        names = [",".join(runs) for runs in evaluations]
    lang = lang or (_language(folders[0]) if folders else "")
    by_system = dict(zip(names, evaluations, strict=True))
    return compare_evaluations(by_system, lang, settings=settings, on_progress=on_progress)


def _name(runs: Sequence[Path]) -> str:
    """Return the name of a system: that of its run, or the common prefix of the names of its runs."""
    names = [run.name for run in runs]
    if len(names) == 1:
        return names[0]
    start = commonprefix(names).rstrip("-_.")  # noqa: RUF071  (a prefix of characters, not of paths)
    return f"{start or ','.join(names)} ({len(names)} runs)"


def load_evaluation(run: Path, split: str) -> Evaluation:
    """Read the stored evaluation of a run that is compared: RUN/evaluation/SPLIT.json, or a newer partial one.

    Raises:
        RunError: there is none, or it is damaged.
    """
    path = run / "evaluation" / f"{require_name(split, 'the split')}.json"
    # A partial evaluation has fewer scores but all hypotheses, and only these are read.
    if stored := [one for one in (path, path.with_name(f"{split}-part.json")) if one.exists()]:
        newest = max(stored, key=lambda one: one.stat().st_mtime_ns)
        if newest != path:
            logger.info("%s: read instead of %s, because it is newer", newest, path.name)
        return Evaluation.load(newest)
    if not run.is_dir():
        raise RunError(f"{run}: no such run directory")
    others = ", ".join(sorted(other.stem for other in path.parent.glob("*.json")))
    raise RunError(
        f"{path}: no such evaluation; create it with 'limner evaluate --model {run} --collection COLLECTION'"
        + (f", or name an existing one with --split: {others}" if others else "")
    )


def _language(run: Path) -> str:
    path = run / "config.json"
    try:
        return str(RunConfig.load(path).recipe["data"]["lang"])
    except (KeyError, TypeError):
        raise RunError(f"{path}: names no language of the sentences; name it with --lang") from None


def compare_evaluations(
    systems: Systems,
    lang: str,
    *,
    settings: ComparisonSettings | None = None,
    on_progress: PartProgress | None = None,
) -> Comparison:
    """Compare systems by their evaluations; arguments and errors are those of `compare`."""
    settings = settings or ComparisonSettings()
    metrics = settings.metrics or METRICS_OF_LABELS.get(lang, SENTENCE_METRICS)
    require_metrics(metrics)
    if len(systems) < 2 or not all(systems.values()):
        runs = ", ".join(str(len(evaluations)) for evaluations in systems.values())
        raise SettingsError(
            f"expected two or more systems with at least one run each, found {len(systems)} systems of {runs or 'no'} "
            "runs; give them as RUN_A RUN_B, and several seeds of one system as A1,A2"
        )
    _require_same_sentences(systems)
    _require_same_tokens(systems, metrics)
    on_progress = on_progress or (lambda part, done, total: None)
    statistics = _statistics(systems, lang, metrics, on_progress)
    return _comparison(systems, statistics, _test(statistics, settings, on_progress), settings)


def _test(statistics: StatisticsBySystem, settings: ComparisonSettings, on_progress: PartProgress) -> Tests:
    """Test the difference of every system to each baseline before it, by every metric."""
    baselines = list(statistics)[: len(DAGGERS)]
    pairs = [(system, baseline) for baseline, system in combinations(statistics, 2) if baseline in baselines]
    total = len(pairs) * len(statistics[baselines[0]]) * settings.trials
    tests: Tests = {}
    for (system, baseline), metric in product(pairs, statistics[baselines[0]]):
        runs, baseline_runs = statistics[system][metric], statistics[baseline][metric]
        tests[system, baseline, metric] = approximate_randomisation(
            [run.statistics for run in runs],
            [run.statistics for run in baseline_runs],
            runs[0].metric.value,
            trials=settings.trials,
            seed=settings.seed,
            exchange=settings.exchange,
            on_progress=offset_progress(partial(on_progress, "testing"), len(tests) * settings.trials, total),
        )
    return tests


def _runs(systems: Systems) -> list[tuple[str, Evaluation]]:
    return [(run, evaluation) for evaluations in systems.values() for run, evaluation in evaluations.items()]


def _require_same_sentences(systems: Systems) -> None:
    """Check that all runs were evaluated on the same sentences.

    Raises:
        RunError: names two runs and their first difference.
    """
    (first_run, first), *others = _runs(systems)
    for run, other in others:
        where = f"{first_run} and {run} cannot be compared"
        if other.split != first.split:
            raise RunError(f"{where}: evaluated on split '{first.split}' and on split '{other.split}'")
        for number, (ours, theirs) in enumerate(zip(first.items, other.items, strict=False), start=1):
            if difference := _difference(ours, theirs, number):
                raise RunError(f"{where}: {difference}")
        if len(other.items) != len(first.items):
            raise RunError(f"{where}: {counted(len(first.items), 'sentence')} and {len(other.items):,}")


def _difference(ours: EvaluatedItem, theirs: EvaluatedItem, number: int) -> str:
    """Describe the difference between the inputs of two evaluations of a sentence; empty if there is none.

    The fingerprint of the collection is not compared, because generated sentences in the training split change it.
    """
    if ours.id != theirs.id:
        return f"sentence {number} is of item '{ours.id}' and of item '{theirs.id}'"
    item = f"item '{ours.id}' (sentence {number})"
    if ours.references != theirs.references:
        return f"{item} has the references '{' / '.join(ours.references)}' and '{' / '.join(theirs.references)}'"
    # A captioner has no source sentences, and the items of a text-only translator may have no images.
    if ours.source and theirs.source and ours.source != theirs.source:
        return f"{item} was translated from '{ours.source}' and from '{theirs.source}'"
    if ours.image and theirs.image and Path(ours.image).name != Path(theirs.image).name:
        return f"{item} has the images {ours.image} and {theirs.image}"
    return ""


def _require_same_tokens(systems: Systems, metrics: Sequence[str]) -> None:
    """Check that tokens are stored and, if a metric reads tokens, that all runs tokenised the references alike.

    Raises:
        RunError: names a run without tokens, or two runs and the first item with different tokens.
    """
    (first_run, first), *others = _runs(systems)
    for run, evaluation in ((first_run, first), *others):
        if not all(item.reference_tokens for item in evaluation.items):
            raise RunError(
                f"{run}: expected an evaluation with tokens, found one of an older version; evaluate it again: "
                f"limner evaluate --model {run} --collection COLLECTION"
            )
    if not any(METRICS[name].reads == "tokens" for name in metrics):
        return
    for run, other in others:
        for ours, theirs in zip(first.items, other.items, strict=True):
            if ours.reference_tokens != theirs.reference_tokens:
                text = ", ".join(name for name, metric in METRICS.items() if metric.reads == "text")
                raise RunError(
                    f"{first_run} and {run} have different tokens (item '{ours.id}': "
                    f"'{' / '.join(ours.reference_tokens)}' and '{' / '.join(theirs.reference_tokens)}'); "
                    f"compare them by metrics of running text: {text}"
                )


def _statistics(systems: Systems, lang: str, metrics: Sequence[str], on_progress: PartProgress) -> StatisticsBySystem:
    """Compute the metric statistics of all runs.

    Raises:
        SettingsError: no metric can be computed on this machine.
    """
    runs = [(system, evaluation) for system, evaluations in systems.items() for evaluation in evaluations.values()]
    # Without case or punctuation in any model, the evaluations gave tokens to all metrics; the comparison does, too.
    tokens_only = all(any("|input:tokens" in score.signature for score in one.scores) for _, one in _runs(systems))
    statistics: StatisticsBySystem = {system: {} for system in systems}
    for done, (system, evaluation) in enumerate(runs):
        on_progress("metrics", done, len(runs))
        items = evaluation.items
        tokens = [item.tokens for item in items], [item.reference_tokens for item in items]
        texts = [item.hypothesis for item in items], [item.references for item in items]
        for one in sentence_statistics(*tokens, metrics, texts=None if tokens_only else texts, lang=lang):
            statistics[system].setdefault(one.metric.name, []).append(one)
        metrics = list(statistics[system])  # metrics that cannot be computed are logged once
        if not metrics:
            raise SettingsError("none of these metrics can be computed on this machine; see the log")
    on_progress("metrics", len(runs), len(runs))
    return statistics


def _comparison(
    systems: Systems, statistics: StatisticsBySystem, tests: Tests, settings: ComparisonSettings
) -> Comparison:
    columns = [runs[0] for runs in next(iter(statistics.values())).values()]
    scores = []
    for system, metric in product(systems, (column.metric for column in columns)):
        values = tuple(run.score.value for run in statistics[system][metric.name])
        better = [_is_better(system, baseline, metric, tests, settings.level) for baseline in systems]
        marks = "".join(dagger for dagger, is_better in zip(DAGGERS, better, strict=False) if is_better)
        mean = float(np.mean(values))
        scores.append(SystemScore(system=system, metric=metric.name, value=mean, values=values, marks=marks))
    several = any(len(runs) > 1 for runs in systems.values())
    return Comparison(
        split=next(iter(next(iter(systems.values())).values())).name,
        systems=tuple(ComparedSystem(name=name, runs=tuple(runs)) for name, runs in systems.items()),
        metrics=tuple(
            ComparedMetric(
                name=column.metric.name, signature=column.signature, higher_is_better=column.metric.higher_is_better
            )
            for column in columns
        ),
        scores=tuple(scores),
        contrasts=tuple(
            Contrast(system=system, baseline=baseline, metric=metric, difference=test.difference, p=test.p)
            for (system, baseline, metric), test in tests.items()
        ),
        level=settings.level,
        signature=f"ar:{settings.trials}|seed:{settings.seed}" + (f"|exchange:{settings.exchange}" if several else ""),
    )


def _is_better(system: str, baseline: str, metric: Metric, tests: Tests, level: float) -> bool:
    """Whether a system is significantly better than a baseline; each pair is tested in one order only."""
    sign = 1 if metric.higher_is_better else -1
    test = tests.get((system, baseline, metric.name))
    if test is None:
        sign, test = -sign, tests.get((baseline, system, metric.name))
    return test is not None and test.p < level and sign * test.difference > 0
