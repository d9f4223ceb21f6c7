"""Comparison of systems on the same sentences: scores, differences and their significance.

The first two systems are the baselines, as in the tables of Calixto et al. (2017): † marks a score that is
significantly better than the score of the first system, ‡ than the score of the second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from os.path import commonprefix
from pathlib import Path

import numpy as np

from limner.errors import RunError, SettingsError, counted
from limner.evaluation.comparison import (
    DAGGERS,
    ComparedMetric,
    ComparedSystem,
    Comparison,
    ComparisonSettings,
    Contrast,
    SystemScore,
)
from limner.metrics import CAPTION_SCORES, METRICS, MetricStatistics, available_statistics, require_metrics
from limner.metrics.base import Metric
from limner.metrics.classification import METRICS_OF_LABELS
from limner.metrics.ranks import RECALL_METRICS, recall_statistics
from limner.metrics.significance import (
    HierarchicalDifference,
    RunScores,
    approximate_randomisation,
    holm,
    too_few_segments,
)
from limner.progress import StageProgress, offset_progress
from limner.runs.evaluations import EvaluatedItem, Evaluation, load_evaluation
from limner.runs.pretrained import results_folder
from limner.runs.records import RunConfig

SENTENCE_METRICS = ("bleu4", "meteor", "ter", "chrf3")
"""Default metrics of sentences, as in Calixto et al. (2017)."""

Systems = Mapping[str, Mapping[str, Evaluation]]  # evaluations by system and run
StatisticsBySystem = dict[str, dict[str, list[MetricStatistics]]]  # metric statistics of each run, by system and metric
ScoresBySystem = dict[tuple[str, str], RunScores]
"""Scores of the runs, and their bootstrap samples, by system and metric."""

logger = logging.getLogger(__name__)


def compare(
    systems: Sequence[Sequence[Path]],
    *,
    split: str = "test",
    lang: str | None = None,
    settings: ComparisonSettings | None = None,
    on_progress: StageProgress | None = None,
) -> Comparison:
    """Compare systems by their stored evaluations.

    Each system is a list of run directories that differ in the training seed. The evaluations are
    RUN/evaluation/SPLIT.json, or a newer SPLIT-part.json; the language is by default the language of the first run.
    """
    folders = [run.resolve() for runs in systems for run in runs]
    if repeated := next((run for run in folders if folders.count(run) > 1), None):
        raise SettingsError(f"{repeated}: given twice; give each run once")
    evaluations = [{str(run): load_evaluation(run, split) for run in runs} for runs in systems]
    names = [_name(runs) for runs in systems]
    if len(set(names)) < len(names):
        names = [",".join(runs) for runs in evaluations]
    first = next((part for runs in evaluations for part in runs.values()), None)
    lang = lang or (first and first.lang) or (_language(folders[0]) if folders else "")
    by_system = dict(zip(names, evaluations, strict=True))
    return compare_evaluations(by_system, lang, settings=settings, on_progress=on_progress)


def _name(runs: Sequence[Path]) -> str:
    """Return the name of a system: the name of its run, or the common prefix of the names of its runs."""
    names = [results_folder(run).name for run in runs]
    if len(names) == 1:
        return names[0]
    start = commonprefix(names).rstrip("-_.")  # noqa: RUF071  (a prefix of characters, not of paths)
    return f"{start or ','.join(names)} ({len(names)} runs)"


def _language(run: Path) -> str:
    path = run / "config.json"
    try:
        return str(RunConfig.load(path).recipe["data"]["lang"])
    except (KeyError, TypeError):
        raise RunError(f"{path}: names no language of the sentences; name it with --lang") from None


def compare_evaluations(
    systems: Systems, lang: str, *, settings: ComparisonSettings | None = None, on_progress: StageProgress | None = None
) -> Comparison:
    """Compare systems by their evaluations; see `compare` for arguments and errors."""
    settings = settings or ComparisonSettings()
    ranks_only = all(part.retrieval and not part.items for runs in systems.values() for part in runs.values())
    default = tuple(RECALL_METRICS) if systems and ranks_only else METRICS_OF_LABELS.get(lang, SENTENCE_METRICS)
    metrics = settings.metrics or default
    require_metrics(name for name in metrics if name not in RECALL_METRICS and name not in CAPTION_SCORES)
    if len(systems) < 2 or not all(systems.values()):
        runs = ", ".join(str(len(evaluations)) for evaluations in systems.values())
        raise SettingsError(
            f"expected two or more systems with at least one run each, found {counted(len(systems), 'system')} "
            f"(numbers of runs: {runs or 'none'}); give them as RUN_A RUN_B, and several seeds of one system as A1,A2"
        )
    require_comparable(systems, metrics)
    parts = [part for runs in systems.values() for part in runs.values()]
    for name in sorted(set(metrics) & set(CAPTION_SCORES)):
        if len({score.signature for part in parts for score in part.scores if score.name == name}) > 1:
            raise RunError(f"{name}: different models or training captions; repeat 'limner evaluate' on each run")
    on_progress = on_progress or (lambda part, done, total: None)
    statistics = _statistics(systems, lang, metrics, on_progress)
    scores = _resample(statistics, settings, on_progress)
    contrasts = _contrasts(systems, statistics, scores, settings, on_progress)
    columns = [runs[0] for runs in next(iter(statistics.values())).values()]
    return _comparison(systems, columns, scores, contrasts, settings)


def _resample(
    statistics: StatisticsBySystem, settings: ComparisonSettings, on_progress: StageProgress
) -> ScoresBySystem:
    """Score all runs on the same bootstrap samples of the segments."""
    scores: ScoresBySystem = {}
    total = sum(map(len, statistics.values()))
    for system, by_metric in statistics.items():
        for metric, runs in by_metric.items():
            on_progress("resampling", len(scores), total)
            scores[system, metric] = RunScores.from_runs(
                [run.statistics for run in runs], runs[0].metric.value, samples=settings.samples, seed=settings.seed
            )
    on_progress("resampling", total, total)
    return scores


def _contrasts(
    systems: Systems,
    statistics: StatisticsBySystem,
    scores: ScoresBySystem,
    settings: ComparisonSettings,
    on_progress: StageProgress,
) -> tuple[Contrast, ...]:
    """Test every system against each baseline listed before the system, by every metric, and adjust the p-values."""
    baselines = list(statistics)[: len(DAGGERS)]
    metrics = list(statistics[baselines[0]])
    pairs = [(system, baseline) for baseline, system in combinations(statistics, 2) if baseline in baselines]
    total = len(pairs) * len(metrics) * settings.trials
    contrasts: list[Contrast] = []
    for (system, baseline), metric in product(pairs, metrics):
        progress = offset_progress(partial(on_progress, "testing"), len(contrasts) * settings.trials, total)
        same_runs = list(systems[system]) == list(systems[baseline])
        a, b = scores[system, metric], scores[baseline, metric]
        difference = HierarchicalDifference.from_scores(a, b, same_runs=same_runs)
        (run, *_), (baseline_run, *_) = statistics[system][metric], statistics[baseline][metric]
        if difference.degrees_of_freedom:
            p = difference.p
            progress(settings.trials, settings.trials)
        else:
            p = approximate_randomisation(
                run.statistics,
                baseline_run.statistics,
                run.metric.value,
                trials=settings.trials,
                seed=settings.seed,
                on_progress=progress,
            ).p
        contrasts.append(
            Contrast(
                system=system,
                baseline=baseline,
                metric=metric,
                difference=difference.difference,
                p=p,
                adjusted_p=p,
                interval=difference.interval(settings.level),
                over_runs=difference.degrees_of_freedom > 0,
            )
        )
    return adjust(contrasts)


def adjust(contrasts: Sequence[Contrast]) -> tuple[Contrast, ...]:
    """Adjust the p-values of all contrasts by one metric, which are a family of tests, by Holm's method."""
    adjusted = list(contrasts)
    for metric in {contrast.metric for contrast in contrasts}:
        rows = [row for row, contrast in enumerate(contrasts) if contrast.metric == metric]
        for row, p in zip(rows, holm([contrasts[row].p for row in rows]), strict=True):
            adjusted[row] = contrasts[row].model_copy(update={"adjusted_p": p})
    return tuple(adjusted)


def _statistics(systems: Systems, lang: str, metrics: Sequence[str], on_progress: StageProgress) -> StatisticsBySystem:
    """Compute the metric statistics of all runs; SettingsError if no metric can be computed."""
    runs = [(system, evaluation) for system, evaluations in systems.items() for evaluation in evaluations.values()]
    # Without case or punctuation in any model, the evaluations gave tokens to all metrics; the comparison does, too.
    tokens_only = all(any("|input:tokens" in score.signature for score in evaluation.scores) for _, evaluation in runs)
    statistics: StatisticsBySystem = {system: {} for system in systems}
    for done, (system, evaluation) in enumerate(runs):
        on_progress("metrics", done, len(runs))
        stored = [name for name in metrics if name in RECALL_METRICS or name in CAPTION_SCORES]
        for measured in _stored(evaluation, stored):
            statistics[system].setdefault(measured.metric.name, []).append(measured)
        if len(stored) == len(metrics):
            continue
        items = evaluation.items
        tokens = [item.tokens for item in items], [item.reference_tokens for item in items]
        texts = [item.hypothesis for item in items], [item.references for item in items]
        parts = (part for score in evaluation.scores for part in score.signature.split("|"))
        words = next((f"|{part}" for part in parts if part.startswith("words:")), "")  # how text was split into words
        computed, left_out = available_statistics(
            *tokens, [name for name in metrics if name not in stored], texts=None if tokens_only else texts, lang=lang
        )
        if not computed:
            why = "; ".join(left_out) or f"{', '.join(metrics)}: no reference has what they measure"
            raise SettingsError(f"no metric to compare by: {why}; name another metric with --metric")
        for reason in left_out:
            logger.warning("%s", reason)
        for measured in computed:
            if tokens_only or measured.metric.reads == "tokens":
                measured = measured._replace(signature=measured.signature + words)
            statistics[system].setdefault(measured.metric.name, []).append(measured)
        metrics = list(statistics[system])  # metrics that cannot be computed are logged once
    on_progress("metrics", len(runs), len(runs))
    return statistics


def _stored(evaluation: Evaluation, metrics: Sequence[str]) -> Iterator[MetricStatistics]:
    """Yield the statistics of recall@k and of caption scores; RunError for an evaluation without them."""
    ranks = {} if evaluation.retrieval is None else evaluation.retrieval.ranks
    signatures = {score.name: score.signature for score in evaluation.scores}
    for name in metrics:
        if name in CAPTION_SCORES and name in signatures:
            values = [item.caption_scores[name] for item in evaluation.items]
            rows = np.stack([values, np.ones(len(values))], 1)
            yield MetricStatistics(CAPTION_SCORES[name], rows, signatures[name])
            continue
        if name in CAPTION_SCORES:
            remedy = f"run 'limner evaluate --metric {name}'"
            raise RunError(f"evaluation '{evaluation.name}': has no {name}; {remedy}")
        if not ranks:
            raise RunError(f"evaluation '{evaluation.name}': has no ranks of retrieval; repeat 'limner evaluate'")
        rows, metric = recall_statistics(name, ranks), RECALL_METRICS[name]
        yield MetricStatistics(metric, rows, f"queries:{len(rows)}|{metric.settings()}")


def _comparison(
    systems: Systems,
    columns: Sequence[MetricStatistics],
    run_scores: ScoresBySystem,
    contrasts: tuple[Contrast, ...],
    settings: ComparisonSettings,
) -> Comparison:
    scores = []
    for system, column in product(systems, columns):
        metric, runs = column.metric, run_scores[system, column.metric.name]
        better = [_is_better(system, baseline, metric, contrasts, settings.level) for baseline in systems]
        marks = "".join(dagger for dagger, is_better in zip(DAGGERS, better, strict=False) if is_better)
        scores.append(
            SystemScore(
                system=system,
                metric=metric.name,
                value=runs.mean,
                values=tuple(runs.values.tolist()),
                interval=runs.interval(settings.level),
                marks=marks,
            )
        )
    segments = len(columns[0].statistics)
    doubt = too_few_segments(segments, settings.level)
    if doubt and all(len(runs) > 1 for runs in systems.values()):
        doubt = f"the bootstrap has {counted(segments, 'segment')} to sample, too few for its p-values and intervals"
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
        contrasts=contrasts,
        segments=segments,
        settings=settings,
        notes=(doubt,) if doubt else (),
    )


def _is_better(system: str, baseline: str, metric: Metric, contrasts: Sequence[Contrast], level: float) -> bool:
    """Whether a system is significantly better than a baseline; each pair is tested in one order only."""
    sign = 1 if metric.higher_is_better else -1
    signs = {(system, baseline): sign, (baseline, system): -sign}
    return any(
        contrast.metric == metric.name
        and contrast.adjusted_p < level
        and signs.get((contrast.system, contrast.baseline), 0) * contrast.difference > 0
        for contrast in contrasts
    )


def require_comparable(systems: Systems, metrics: Sequence[str]) -> None:
    """Raise RunError if two runs have different sentences, or different tokens of the references for their metrics."""
    (first_run, first), *further = ((run, runs[run]) for runs in systems.values() for run in runs)
    for run, evaluation in further:
        if difference := _difference(first, evaluation):
            raise RunError(
                f"{first_run} and {run} cannot be compared: {difference}; evaluate both on the same split of the same "
                "collection with 'limner evaluate'"
            )
    by_tokens = any(name in METRICS and METRICS[name].reads == "tokens" for name in metrics)
    for run, evaluation in further if by_tokens else ():
        for ours, theirs in zip(first.items, evaluation.items, strict=True):
            if ours.reference_tokens != theirs.reference_tokens:
                text = ", ".join(name for name, metric in METRICS.items() if metric.reads == "text")
                raise RunError(
                    f"{first_run} and {run} have different tokens (item '{ours.id}': "
                    f"'{' / '.join(ours.reference_tokens)}' and '{' / '.join(theirs.reference_tokens)}'); "
                    f"compare them by metrics of running text: {text}"
                )


def _difference(first: Evaluation, other: Evaluation) -> str:
    """Describe the first difference between the inputs of two evaluations; empty if there is none."""
    if other.split != first.split:
        return f"evaluated on split '{first.split}' and on split '{other.split}'"
    for number, (ours, theirs) in enumerate(zip(first.items, other.items, strict=False), start=1):
        if difference := _difference_of_items(ours, theirs, number):
            return difference
    if len(other.items) != len(first.items):
        return f"{counted(len(first.items), 'sentence')} and {len(other.items):,}"
    queries = [
        sorted((key, len(ranks)) for key, ranks in part.retrieval.ranks.items()) if part.retrieval else []
        for part in (first, other)
    ]
    if all(queries) and queries[0] != queries[1]:
        return f"retrieval has other numbers of queries: {queries[0]} and {queries[1]}"
    return ""


def _difference_of_items(ours: EvaluatedItem, theirs: EvaluatedItem, number: int) -> str:
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
