"""Values of scores that a model must exceed: chance, simple baselines, image controls and published results."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb
from typing import NamedTuple

from limner.metrics import METRICS, higher_is_better, score_sentences
from limner.metrics.classification import LABEL_METRICS, METRICS_OF_LABELS
from limner.runs.records import EvaluatedItem, Evaluation
from limner.text.labels import LABEL_LANGUAGES, TRACK, read_position

COMPARED = ("bleu1", "bleu2", "bleu3", "bleu4", "sacrebleu", "chrf", "chrf3", "ter", "cider", "rouge_l")
"""Metrics of sentences that are computed again for the sentences of other items."""
REGION_BASELINES = {
    "frequent": "most frequent description",
    "nearest": "description of the nearest training region",
    "caption": "caption of the whole image",
}
"""Labels of the baselines of a dense captioner."""


class Baseline(NamedTuple):
    """A value to compare a score with."""

    label: str
    value: float


def baselines(
    evaluation: Evaluation,
    names: Sequence[str],
    others: Sequence[Evaluation],
    published: Mapping[str, float],
    *,
    row: str = "published",
    vocabulary: int | None = None,
    lang: str = "en",
) -> dict[str, list[Baseline]]:
    """Collect the baselines of some scores of an evaluation.

    Args:
        evaluation: the evaluation of the right images.
        names: names of the scores.
        others: all evaluations of the run; those of image controls and of baselines of regions are compared.
        published: published values by name.
        row: label of the published values.
        vocabulary: number of words of the vocabulary, for the perplexity of a uniform distribution.
        lang: target language of the model.

    Returns:
        Baselines by the name of the score, those of chance first.
    """
    found: dict[str, list[Baseline]] = {name: [] for name in names}
    chance = {**_of_labels(evaluation.items, names, lang), **_of_other_items(evaluation.items, names, lang)}
    signatures = {score.name: score.signature for score in evaluation.scores}
    for name in names:
        if name in chance:
            found[name].append(chance[name])
        elif (by_rank := random_ranking(name, signatures.get(name, ""))) is not None:
            found[name].append(Baseline("random ranking", by_rank))
        elif name == "perplexity" and vocabulary and lang not in LABEL_LANGUAGES:
            found[name].append(Baseline(f"uniform over {vocabulary:,} tokens", float(vocabulary)))
        found[name] += _recorded(evaluation, name, others)
        if name in published:
            found[name].append(Baseline(row, published[name]))
    return found


def random_ranking(name: str, signature: str) -> float | None:
    """Compute the expected value of a retrieval score for a random ranking, from the counts in its signature.

    The first of m relevant candidates among n has at most rank k with probability 1 - C(n-m, k) / C(n, k). The number m
    is that of all candidates divided by that of the queries, at least 1. None for other scores.
    """
    counts = {key: int(value) for key, value in re.findall(r"(queries|candidates):(\d+)(?=\||$)", signature)}
    match = re.fullmatch(r"(image_to_text|text_to_image|region)_(r\d+|median_rank)", name)
    if match is None or len(counts) < 2 or not all(counts.values()):
        return None
    relevant = max(1, round(counts["candidates"] / counts["queries"])) if match[1] == "image_to_text" else 1
    n = counts["candidates"]
    if match[2] == "median_rank":
        return float(1 + bisect_left(range(1, n + 1), 0.5, key=lambda k: _matched(n, relevant, k)))
    return 100 * _matched(n, relevant, min(n, int(match[2][1:])))


def _matched(candidates: int, relevant: int, retrieved: int) -> float:
    """Probability that a relevant candidate is among the first of a random ranking."""
    return 1 - comb(candidates - relevant, retrieved) / comb(candidates, retrieved)


def other_sentences(values: Sequence[str]) -> list[str]:
    """Give each item the sentence of an item half the split away."""
    half = len(values) // 2
    return [*values[half:], *values[:half]]


def _of_other_items(items: Sequence[EvaluatedItem], names: Sequence[str], lang: str) -> dict[str, Baseline]:
    """Scores of the model's own sentences for other items than those they were generated for."""
    compared = [name for name in names if name in COMPARED]
    if lang in LABEL_LANGUAGES or len(items) < 2 or not compared or not all(item.reference_tokens for item in items):
        return {}
    what = "translations of other sentences" if items[0].source is not None else "captions of other images"
    scores = score_sentences(
        other_sentences([item.tokens for item in items]),
        [item.reference_tokens for item in items],
        compared,
        texts=(other_sentences([item.hypothesis for item in items]), [item.references for item in items]),
        lang=lang,
    )
    return {score.name: Baseline(what, score.value) for score in scores}


def _of_labels(items: Sequence[EvaluatedItem], names: Sequence[str], lang: str) -> dict[str, Baseline]:
    """Scores of the most frequent label, or of the mean position, for every item."""
    compared = [metric for metric in LABEL_METRICS if metric.name in names and metric.name != "calibration_error"]
    if not compared or not items or not all(item.references for item in items):
        return {}
    references = [item.references for item in items]
    lengths = [len(own[0].split()) for own in references]
    if any(metric.name in METRICS_OF_LABELS[TRACK] for metric in compared):
        points = [read_position(label) for own in references for label in own[0].split()]
        mean = [sum(axis) / len(points) for axis in zip(*points, strict=True)] if points else [50.0, 50.0]
        one, label = f"{mean[0]:.2f},{mean[1]:.2f} (1.0000)", "always the mean position"
    else:
        counts = Counter(label for own in references for label in own[0].split())
        one = max(counts, key=lambda label: (counts[label], label), default="")
        label = f"always '{one}'"
    constant = [" ".join([one] * length) for length in lengths]
    return {
        metric.name: Baseline(label, metric.value(metric.statistics(constant, references).sum(axis=0)))
        for metric in compared
    }


def _recorded(evaluation: Evaluation, name: str, others: Sequence[Evaluation]) -> list[Baseline]:
    """Values of a score in the evaluations of the same split with an image control or a baseline of regions."""
    found = []
    for other in others:
        if (other.split, other.decoding) != (evaluation.split, evaluation.decoding):
            continue
        value = next((score.value for score in other.scores if score.name == name), None)
        region = re.search(r"region_(\w+)", other.measured)
        if value is None:
            continue
        if other.image_control != "right" and other.measured == evaluation.measured:
            found.append(Baseline(f"images: {other.image_control}", value))
        elif region and evaluation.measured == "":
            found.append(Baseline(REGION_BASELINES.get(region[1], region[1]), value))
    return found


def is_lower_better(name: str) -> bool:
    """Whether lower values of a score are better."""
    if name in METRICS or name == "perplexity":
        return not higher_is_better(name)
    return name.endswith(("median_rank", "_std"))
