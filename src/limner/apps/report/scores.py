"""Scores of an evaluation: tables beside published values, and headline numbers beside baselines."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb, isfinite
from typing import Any, NamedTuple

from limner.files.yaml_text import read_resource
from limner.media.modality import Modality
from limner.metrics import METRICS, higher_is_better, score_sentences
from limner.metrics.base import SCIENTIFIC, Score, format_value
from limner.metrics.classification import LABEL_METRICS, METRICS_OF_LABELS
from limner.runs.evaluations import EvaluatedItem, Evaluation
from limner.text.labels import LABEL_LANGUAGES, TRACK, read_position

_LABELS = read_resource("limner.apps.report", "labels.yaml")
LABELS: dict[str, str] = _LABELS["scores"]
GATE_PREFIX = "gate_above_"
RETRIEVAL_LABELS: dict[str, str] = _LABELS["retrieval"]
"""Labels of retrieval scores by name, without the direction."""
HEADLINES, MAX_BASELINES = 4, 3
"""Number of headline numbers, and of baselines beside each."""
PRIORITY = (
    "map", "localisation_map", "region_r5", "accuracy", "f1", "position_error", "hidden_position_error", "bleu4",
    "text_to_image_r1", "image_to_text_r1", "cider", "chrf3", "ter", "meteor", "perplexity", "calibration_error",
    "bleu1", "sacrebleu", "chrf", "rouge_l", "region_median_rank", "text_to_image_r5", "image_to_text_r5",
)  # fmt: skip
"""Scores in the order in which headline numbers are chosen."""
COMPARED = ("bleu1", "bleu2", "bleu3", "bleu4", "sacrebleu", "chrf", "chrf3", "ter", "cider", "rouge_l")
"""Metrics that are also computed for the sentences of other items, as a baseline."""
REGION_BASELINES: dict[str, str] = _LABELS["region_baselines"]


class ScoreRow(NamedTuple):
    """A row of a table of scores."""

    label: str
    value: str
    published: str  # published value, or a dash
    signature: str


class Baseline(NamedTuple):
    """A value that a score must exceed: chance, a simple baseline, an image control or a published result."""

    label: str
    value: float


def retrieval_titles(modality: Modality) -> dict[str, str]:
    """Titles of the two directions of retrieval, by the prefix of their scores."""
    return {
        "image_to_text": f"{modality.name.capitalize()}-to-text retrieval",
        "text_to_image": f"Text-to-{modality.name} retrieval",
    }


def label(name: str, direction: str | None = None) -> str:
    """The label of a score, without its direction of retrieval."""
    if direction is not None:
        return RETRIEVAL_LABELS.get(name.removeprefix(f"{direction}_"), name)
    if name.startswith(GATE_PREFIX):
        return f"Words with a gate above {name.removeprefix(GATE_PREFIX)}, %"
    return LABELS.get(name, name)


def full_label(name: str, modality: Modality) -> str:
    """The label of a score, with the direction of a retrieval score."""
    for direction, title in retrieval_titles(modality).items():
        if name.startswith(f"{direction}_"):
            return f"{title}: {label(name, direction)}"
    return label(name)


def title_of(evaluation: Evaluation) -> str:
    """The split, with decoding and evaluation settings that differ from the recipe."""
    differences = [part for name in (evaluation.decoding, evaluation.measured) for part in name.split(",") if part]
    return ", ".join((evaluation.split, *differences))


def format_score(score: Score, value: float | None = None) -> str:
    """Format a value with the decimals of the scale of a score."""
    value = score.value if value is None else value
    if "scale:" in score.signature:
        return format_value(value, 1)
    if abs(value) >= SCIENTIFIC:
        return format_value(value)
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def score_tables(
    scores: Sequence[Score], published: Mapping[str, float], modality: Modality, task: str
) -> dict[str, list[ScoreRow]]:
    """Tables of scores by title: scores of the task, and scores of both directions of retrieval."""
    titles = retrieval_titles(modality)
    tables: dict[str, list[ScoreRow]] = {title: [] for title in (task, *titles.values())}
    for score in scores:
        direction = next((name for name in titles if score.name.startswith(f"{name}_")), None)
        value = published.get(score.name)
        printed = "–" if value is None else format_score(score, value)
        title = task if direction is None else titles[direction]
        tables[title].append(ScoreRow(label(score.name, direction), format_score(score), printed, score.signature))
    return {title: rows for title, rows in tables.items() if rows}


def control_tables(evaluations: Sequence[Evaluation], modality: Modality) -> list[dict[str, Any]]:
    """Tables of the scores under each image control, one table for each split and its settings."""
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in sorted(evaluations, key=lambda candidate: candidate.image_control != "right"):
        groups.setdefault(title_of(evaluation), []).append(evaluation)
    tables = []
    for title, group in groups.items():
        if group[-1].image_control == "right":
            continue
        names = dict.fromkeys(score.name for evaluation in group for score in evaluation.scores)
        values = [{score.name: format_score(score) for score in evaluation.scores} for evaluation in group]
        rows = [(full_label(name, modality), [column.get(name, "–") for column in values]) for name in names]
        columns = [evaluation.image_control for evaluation in group]
        tables.append({"title": title, "columns": columns, "rows": rows})
    return tables


def headlines(
    evaluation: Evaluation,
    evaluations: Sequence[Evaluation],
    published: Mapping[str, Any],
    modality: Modality,
    **options: Any,  # noqa: ANN401
) -> list[dict[str, Any]]:
    """Choose the scores of the first section of the report, each beside at most `MAX_BASELINES` of its `baselines`."""
    by_name = {score.name: score for score in evaluation.scores}
    names = [name for name in (*PRIORITY, *by_name) if name in by_name and ":" not in name]  # not of single labels
    chosen = [by_name[name] for name in list(dict.fromkeys(names))[:HEADLINES]]
    by_score = baselines(evaluation, chosen, evaluations, published, **options)
    return [_headline(score, by_score[score.name][:MAX_BASELINES], modality) for score in chosen]


def baselines(
    evaluation: Evaluation,
    scores: Sequence[Score],
    evaluations: Sequence[Evaluation],
    published: Mapping[str, Any],
    *,
    vocabulary: int | None = None,
    lang: str = "en",
) -> dict[str, list[Baseline]]:
    """Collect the baselines of scores by their names, chance baselines first.

    `published` is the row of the recipe, its name and its values; `vocabulary` the number of tokens, for the perplexity
    of a uniform distribution.
    """
    names = [score.name for score in scores]
    chance = {**_constant_scores(evaluation.items, names, lang), **_other_item_scores(evaluation.items, names, lang)}
    by_score: dict[str, list[Baseline]] = {name: [chance[name]] if name in chance else [] for name in names}
    for score in scores:
        values = by_score[score.name]
        if not values and (by_rank := random_ranking(score)) is not None:
            values.append(Baseline("random ranking", by_rank))
        if score.name == "perplexity" and vocabulary and lang not in LABEL_LANGUAGES:
            values.append(Baseline(f"uniform over {vocabulary:,} tokens", float(vocabulary)))
        values += _recorded_scores(evaluation, score.name, evaluations)
        if score.name in published.get("values", {}):
            values.append(Baseline(published.get("row") or "published", published["values"][score.name]))
    return by_score


def random_ranking(score: Score) -> float | None:
    """Compute the expected value of a retrieval score for a random ranking, from the counts in its signature.

    The first of m relevant candidates among n has at most rank k with probability 1 - C(n-m, k) / C(n, k). The number m
    is the number of candidates divided by the number of queries, at least 1. None for other scores.
    """
    counts = {key: int(value) for key, value in re.findall(r"(queries|candidates):(\d+)(?=\||$)", score.signature)}
    match = re.fullmatch(r"(image_to_text|text_to_image|region)_(r\d+|median_rank)", score.name)
    if match is None or len(counts) < 2 or not all(counts.values()):
        return None
    n = counts["candidates"]
    relevant = max(1, round(n / counts["queries"])) if match[1] == "image_to_text" else 1

    def matched(retrieved: int) -> float:
        return 1 - comb(n - relevant, retrieved) / comb(n, retrieved)

    if match[2] == "median_rank":
        return float(1 + bisect_left(range(1, n + 1), 0.5, key=matched))
    return 100 * matched(min(n, int(match[2][1:])))


def _headline(score: Score, compared: Sequence[Baseline], modality: Modality) -> dict[str, Any]:
    """A headline number with bars of the model and its baselines, relative to the longest; none if not finite."""
    values = [Baseline("this model", score.value), *compared]
    longest = max((bar.value for bar in values if isfinite(bar.value)), default=0.0)
    shares = [bar.value / longest if isfinite(bar.value) and longest > 0 else 0.0 for bar in values]
    is_lower_better = score.name.endswith(("median_rank", "_std"))
    if score.name in METRICS or score.name == "perplexity":
        is_lower_better = not higher_is_better(score.name)
    bars = [
        {"label": bar.label, "value": format_score(score, bar.value), "share": min(1.0, max(0.0, share))}
        for bar, share in zip(values, shares, strict=True)
    ]
    note = "lower is better" if is_lower_better else "higher is better"
    return {"label": full_label(score.name, modality), "value": format_score(score), "note": note, "bars": bars}


def _other_item_scores(items: Sequence[EvaluatedItem], names: Sequence[str], lang: str) -> dict[str, Baseline]:
    """Scores of the model's sentences for other items: each item gets the sentence of the item half a split away."""
    compared = [name for name in names if name in COMPARED]
    if lang in LABEL_LANGUAGES or len(items) < 2 or not compared or not all(item.reference_tokens for item in items):
        return {}
    half = len(items) // 2
    shifted = [*items[half:], *items[:half]]
    tokens, references = [item.tokens for item in shifted], [item.reference_tokens for item in items]
    texts = [item.hypothesis for item in shifted], [item.references for item in items]
    scores = score_sentences(tokens, references, compared, texts=texts, lang=lang)
    what = "translations of other sentences" if items[0].source is not None else "captions of other images"
    return {score.name: Baseline(what, score.value) for score in scores}


def _constant_scores(items: Sequence[EvaluatedItem], names: Sequence[str], lang: str) -> dict[str, Baseline]:
    """Scores of the most frequent label, or of the mean position, for every item."""
    compared = [metric for metric in LABEL_METRICS if metric.name in names and metric.name != "calibration_error"]
    if not compared or not items or not all(item.references for item in items):
        return {}
    references = [item.references for item in items]
    labels = [label for labels in references for label in labels[0].split()]
    if any(metric.name in METRICS_OF_LABELS[TRACK] for metric in compared):
        points = [read_position(label) for label in labels]
        mean = [sum(axis) / len(points) for axis in zip(*points, strict=True)] if points else [50.0, 50.0]
        constant, name = f"{mean[0]:.2f},{mean[1]:.2f} (1.0000)", "always the mean position"
    else:
        counts = Counter(labels)
        constant = max(counts, key=lambda label: (counts[label], label), default="")
        name = f"always '{constant}'"
    predicted = [" ".join([constant] * len(labels[0].split())) for labels in references]
    return {
        metric.name: Baseline(name, metric.value(metric.statistics(predicted, references).sum(axis=0)))
        for metric in compared
    }


def _recorded_scores(evaluation: Evaluation, name: str, evaluations: Sequence[Evaluation]) -> list[Baseline]:
    """Values of a score in the evaluations of the same split with an image control or a baseline of regions."""
    recorded = []
    for candidate in evaluations:
        value = next((score.value for score in candidate.scores if score.name == name), None)
        if value is None or (candidate.split, candidate.decoding) != (evaluation.split, evaluation.decoding):
            continue
        region = re.search(r"region_(\w+)", candidate.measured)
        if candidate.image_control != "right" and candidate.measured == evaluation.measured:
            recorded.append(Baseline(f"images: {candidate.image_control}", value))
        elif region and evaluation.measured == "":
            recorded.append(Baseline(REGION_BASELINES.get(region[1], region[1]), value))
    return recorded
