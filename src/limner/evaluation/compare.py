"""Systems side by side on the same sentences: scores, differences, and which differences are more than chance.

The first system is the baseline, the second another one, as in the tables of Calixto et al. (2017): † marks what is
significantly better than the first, ‡ what is significantly better than the second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from os.path import commonprefix
from pathlib import Path

import numpy as np
from pydantic import Field

from limner.errors import RunError, SettingsError
from limner.metrics import METRICS, Metric, MetricStatistics, require_metrics, sentence_statistics
from limner.metrics.significance import EXCHANGE, SEED, TRIALS, Exchange, Significance, approximate_randomisation
from limner.progress import offset_progress
from limner.runs.records import EvaluatedItem, Evaluation, Record, RunConfig
from limner.settings import Settings

DAGGERS = ("†", "‡")
"""Better than the first system, better than the second."""

Progress = Callable[[str, int, int], None]
Systems = Mapping[str, Mapping[str, Evaluation]]
"""By system and by run: what was found on the sentences that all are compared on."""
Counts = dict[str, dict[str, list[MetricStatistics]]]
"""By system and metric, one for each run."""
Tests = dict[tuple[str, str, str], Significance]
"""By system, baseline and metric."""

logger = logging.getLogger(__name__)


class ComparisonSettings(Settings):
    """What is compared, and how it is tested."""

    metrics: tuple[str, ...] = Field(default=("bleu4", "meteor", "ter", "chrf3"), min_length=1)
    """Names of sentence metrics; the default is the 2017 paper's."""
    trials: int = Field(default=TRIALS, ge=1)
    """Of approximate randomisation."""
    seed: int = Field(default=SEED, ge=0)
    exchange: Exchange = EXCHANGE
    """What a trial exchanges where systems have several runs: single outputs, or all runs together."""
    level: float = Field(default=0.05, gt=0, lt=1)
    """A difference is significant where p is below it."""


class ComparedSystem(Record):
    """A system, one or several runs of it."""

    name: str
    runs: tuple[str, ...]


class ComparedMetric(Record):
    """What was measured, and how."""

    name: str
    signature: str
    higher_is_better: bool


class SystemScore(Record):
    """What a system reached by a metric."""

    system: str
    metric: str
    value: float
    """Mean over the runs."""
    values: tuple[float, ...]
    """Of each run."""
    marks: str
    """† where it is significantly better than the first system, ‡ where it is than the second."""

    @property
    def spread(self) -> float | None:
        """Standard deviation over the runs, where there are several."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None


class Contrast(Record):
    """How far a system is from a baseline."""

    system: str
    baseline: str
    metric: str
    difference: float
    """The system's mean less the baseline's."""
    p: float
    """Two-sided."""


class Comparison(Record):
    """Systems side by side."""

    split: str
    systems: tuple[ComparedSystem, ...]
    metrics: tuple[ComparedMetric, ...]
    scores: tuple[SystemScore, ...]
    contrasts: tuple[Contrast, ...]
    """Of every system with the first, and of every further one with the second."""
    level: float
    signature: str
    """Of the test."""

    def score(self, system: str, metric: str) -> SystemScore:
        """One cell of the table; KeyError where there is none."""
        return {(one.system, one.metric): one for one in self.scores}[system, metric]

    def contrast(self, system: str, baseline: str, metric: str) -> Contrast:
        """One test; KeyError where there was none."""
        return {(one.system, one.baseline, one.metric): one for one in self.contrasts}[system, baseline, metric]


def compare(
    systems: Sequence[Sequence[Path]],
    *,
    split: str = "test",
    lang: str | None = None,
    settings: ComparisonSettings | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare systems by what `limner evaluate` found.

    Args:
        systems: two or more, each the run folders of its training seeds; the first two are the baselines.
        split: the name of the evaluation, RUN/evaluation/SPLIT.json, or SPLIT-part.json where that is newer.
        lang: of the sentences; none for what the first run says it writes.
        settings: what to compare, and how to test it.
        progress: told the part of the work, what is done of it and how much it is.

    Raises:
        SettingsError: fewer than two systems, one without a run, a run named twice, an unknown metric, or none that
            can be measured.
        RunError: a run has no such evaluation, or runs were not evaluated on the same sentences.
    """
    given = [run.resolve() for runs in systems for run in runs]
    if again := next((run for run in given if given.count(run) > 1), None):
        raise SettingsError(f"{again} is given twice: a run is not compared with itself, nor counted as two")
    read = [{str(run): _read(run, split) for run in runs} for runs in systems]
    names = [_name(runs) for runs in systems]
    if len(set(names)) < len(names):
        names = [",".join(runs) for runs in read]
    written = lang or (_language(given[0]) if given else "")
    return compare_evaluations(dict(zip(names, read, strict=True)), written, settings=settings, progress=progress)


def _name(runs: Sequence[Path]) -> str:
    """A system's name: its run's, or what the names of its runs begin with."""
    names = [run.name for run in runs]
    if len(names) == 1:
        return names[0]
    start = commonprefix(names).rstrip("-_.")  # noqa: RUF071  (of letters, these are not paths)
    return f"{start or ','.join(names)} ({len(names)} runs)"


def _read(run: Path, split: str) -> Evaluation:
    path = run / "evaluation" / f"{split}.json"
    # An evaluation by fewer metrics is stored beside the whole one; its sentences are all there, and all that is read.
    if there := [one for one in (path, path.with_name(f"{split}-part.json")) if one.exists()]:
        newest = max(there, key=lambda one: one.stat().st_mtime_ns)
        if newest != path:
            logger.info("%s: is newer than %s, and compared in its place", newest, path.name)
        return Evaluation.load(newest)
    if not run.is_dir():
        raise RunError(f"{run}: no such run folder")
    others = ", ".join(sorted(other.stem for other in path.parent.glob("*.json")))
    raise RunError(
        f"{path}: there is no such evaluation; make it with 'limner evaluate --model {run} --collection COLLECTION'"
        + (f", or name one that is there with --split: {others}" if others else "")
    )


def _language(run: Path) -> str:
    path = run / "config.json"
    try:
        return str(RunConfig.load(path).recipe["data"]["lang"])
    except (KeyError, TypeError):
        raise RunError(f"{path}: does not say which language it writes; name it with --lang") from None


def compare_evaluations(
    systems: Systems,
    lang: str,
    *,
    settings: ComparisonSettings | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare evaluations that are at hand; arguments and errors as of `compare`."""
    settings = settings or ComparisonSettings()
    require_metrics(settings.metrics)
    if len(systems) < 2 or not all(systems.values()):
        runs = ", ".join(str(len(found_of)) for found_of in systems.values())
        raise SettingsError(
            f"{len(systems)} systems of {runs or 'no'} runs: expected two systems or more, and a run of each; "
            "say RUN_A RUN_B, and the seeds of one system as A1,A2"
        )
    _require_alike(systems)
    _require_same_tokens(systems, settings.metrics)
    note = progress or (lambda part, done, total: None)
    counted = _count(systems, lang, settings.metrics, note)
    return _record(systems, counted, _test(counted, settings, note), settings)


def _test(counted: Counts, settings: ComparisonSettings, note: Progress) -> Tests:
    baselines = list(counted)[: len(DAGGERS)]
    pairs = [(system, baseline) for baseline, system in combinations(counted, 2) if baseline in baselines]
    total = len(pairs) * len(counted[baselines[0]]) * settings.trials
    tested: Tests = {}
    for (system, baseline), metric in product(pairs, counted[baselines[0]]):
        ours, theirs = counted[system][metric], counted[baseline][metric]
        tested[system, baseline, metric] = approximate_randomisation(
            [run.statistics for run in ours],
            [run.statistics for run in theirs],
            ours[0].metric.value,
            trials=settings.trials,
            seed=settings.seed,
            exchange=settings.exchange,
            progress=offset_progress(partial(note, "testing"), len(tested) * settings.trials, total),
        )
    return tested


def _runs(systems: Systems) -> list[tuple[str, Evaluation]]:
    return [(run, found) for found_of in systems.values() for run, found in found_of.items()]


def _require_alike(systems: Systems) -> None:
    """Refuse runs that were not evaluated on the same sentences.

    Raises:
        RunError: names two runs and the first thing in which they differ.
    """
    (first, one), *others = _runs(systems)
    for run, found in others:
        where = f"{first} and {run} cannot be compared"
        if found.split != one.split:
            raise RunError(f"{where}: evaluated on split '{one.split}' and on split '{found.split}'")
        for place, (ours, theirs) in enumerate(zip(one.items, found.items, strict=False), start=1):
            if difference := _difference(ours, theirs, place):
                raise RunError(f"{where}: {difference}")
        if len(found.items) != len(one.items):
            raise RunError(f"{where}: {len(one.items):,} sentences and {len(found.items):,}")


def _difference(ours: EvaluatedItem, theirs: EvaluatedItem, place: int) -> str:
    """In what two evaluations of a sentence were not asked the same; empty where they were.

    The collection's fingerprint does not tell: it changes with what a model writes into the training split, too.
    """
    if ours.id != theirs.id:
        return f"sentence {place} is of item '{ours.id}' and of item '{theirs.id}'"
    item = f"item '{ours.id}' (sentence {place})"
    if ours.references != theirs.references:
        return f"{item} has the references '{' / '.join(ours.references)}' and '{' / '.join(theirs.references)}'"
    # A model that describes translates nothing, and one that reads texts alone may have had them without pictures.
    if ours.source and theirs.source and ours.source != theirs.source:
        return f"{item} was translated from '{ours.source}' and from '{theirs.source}'"
    if ours.image and theirs.image and Path(ours.image).name != Path(theirs.image).name:
        return f"{item} has the pictures {ours.image} and {theirs.image}"
    return ""


def _require_same_tokens(systems: Systems, wanted: Sequence[str]) -> None:
    """Refuse sentences that were not kept as tokens, or that metrics of tokens would read cut in different ways.

    Raises:
        RunError: names a run, or two runs and the first item whose references were not cut alike.
    """
    (first, one), *others = _runs(systems)
    for run, found in ((first, one), *others):
        if not all(item.reference_tokens for item in found.items):
            raise RunError(
                f"{run}: its evaluation kept no tokens, it is of an older Limner; evaluate it again: "
                f"limner evaluate --model {run} --collection COLLECTION"
            )
    if not any(METRICS[name].reads == "tokens" for name in wanted):
        return
    for run, found in others:
        for ours, theirs in zip(one.items, found.items, strict=True):
            if ours.reference_tokens != theirs.reference_tokens:
                text = ", ".join(name for name, metric in METRICS.items() if metric.reads == "text")
                raise RunError(
                    f"{first} and {run} cut sentences into different tokens (item '{ours.id}': "
                    f"'{' / '.join(ours.reference_tokens)}' and '{' / '.join(theirs.reference_tokens)}'); "
                    f"compare them by metrics of running text: {text}"
                )


def _count(systems: Systems, lang: str, wanted: Sequence[str], note: Progress) -> Counts:
    """Statistics by system and metric, one for each run.

    Raises:
        SettingsError: none of the metrics can be measured here.
    """
    runs = [(system, found) for system, found_of in systems.items() for found in found_of.values()]
    # Models without capitals or punctuation: their evaluation gave every metric the tokens, and so is it here.
    bare = all(any("|input:tokens" in score.signature for score in found.scores) for _, found in _runs(systems))
    counted: Counts = {system: {} for system in systems}
    for done, (system, found) in enumerate(runs):
        note("counting", done, len(runs))
        tokens = [item.tokens for item in found.items], [item.reference_tokens for item in found.items]
        texts = [item.hypothesis for item in found.items], [item.references for item in found.items]
        for one in sentence_statistics(*tokens, wanted, texts=None if bare else texts, lang=lang):
            counted[system].setdefault(one.metric.name, []).append(one)
        wanted = list(counted[system])  # what cannot run here is said once
        if not wanted:
            raise SettingsError("none of these metrics can be measured here; the log says why")
    note("counting", len(runs), len(runs))
    return counted


def _record(systems: Systems, counted: Counts, tested: Tests, settings: ComparisonSettings) -> Comparison:
    columns = [runs[0] for runs in next(iter(counted.values())).values()]
    scores = []
    for system, metric in product(systems, (column.metric for column in columns)):
        values = tuple(run.score.value for run in counted[system][metric.name])
        better = [_better(system, baseline, metric, tested, settings.level) for baseline in systems]
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
            Contrast(system=system, baseline=baseline, metric=metric, difference=found.difference, p=found.p)
            for (system, baseline, metric), found in tested.items()
        ),
        level=settings.level,
        signature=f"ar:{settings.trials}|seed:{settings.seed}" + (f"|exchange:{settings.exchange}" if several else ""),
    )


def _better(system: str, baseline: str, metric: Metric, tested: Tests, level: float) -> bool:
    """Whether it is significantly better; each pair was tested once, in one of its orders."""
    sign = 1 if metric.higher_is_better else -1
    found = tested.get((system, baseline, metric.name))
    if found is None:
        sign, found = -sign, tested.get((baseline, system, metric.name))
    return found is not None and found.p < level and sign * found.difference > 0
