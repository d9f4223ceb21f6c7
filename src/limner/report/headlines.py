"""The beginning of the report: four headline numbers with baselines, and one sentence on what the model can do."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from limner.media.modality import Modality
from limner.metrics.base import Score
from limner.report.baselines import Baseline, is_lower_better
from limner.report.score_tables import format_score, full_label
from limner.runs.records import Evaluation

HEADLINES = 4
"""Number of headline numbers."""
PRIORITY = (
    "map", "localisation_map", "region_r5", "accuracy", "f1", "position_error", "hidden_position_error", "bleu4",
    "text_to_image_r1", "image_to_text_r1", "cider", "chrf3", "ter", "meteor", "perplexity", "calibration_error",
    "bleu1", "sacrebleu", "chrf", "rouge_l", "region_median_rank", "text_to_image_r5", "image_to_text_r5",
)  # fmt: skip
"""Scores in the order in which they are chosen."""
MAX_BASELINES = 3
"""Number of baselines shown beside a headline number."""


class Bar(NamedTuple):
    """One bar of a headline number."""

    label: str
    value: str
    share: float
    """Length as a share of the longest one, 0 to 1."""
    is_model: bool = False


class Headline(NamedTuple):
    """A headline number with the bars of the model and of its baselines."""

    label: str
    value: str
    note: str
    """Whether higher or lower is better."""
    bars: tuple[Bar, ...]


def choose_headlines(scores: Sequence[Score]) -> list[Score]:
    """Choose the scores of the beginning of the report, in the order of `PRIORITY`, then in their own."""
    by_name = {score.name: score for score in scores}
    names = [name for name in (*PRIORITY, *by_name) if name in by_name and ":" not in name]  # not of single labels
    return [by_name[name] for name in list(dict.fromkeys(names))[:HEADLINES]]


def headline(score: Score, compared: Sequence[Baseline], modality: Modality) -> Headline:
    """Build a headline number with its bars; values that are not finite have no bar."""
    shown = compared[:MAX_BASELINES]
    longest = max((one for one in (score.value, *(one.value for one in shown)) if isfinite(one)), default=0.0)

    def share(value: float) -> float:
        return min(1.0, max(0.0, value / longest)) if isfinite(value) and longest > 0 else 0.0

    bars = [Bar("this model", format_score(score), share(score.value), is_model=True)]
    bars += [Bar(one.label, format_score(score._replace(value=one.value)), share(one.value)) for one in shown]
    note = "lower is better" if is_lower_better(score.name) else "higher is better"
    return Headline(full_label(score.name, modality), format_score(score), note, tuple(bars))


class WordShares(NamedTuple):
    """Percentages of right words among the words that are marked."""

    own: float
    """That of the model's sentences."""
    others: float | None
    """That of its sentences for other items; None for a single item."""
    unit: str = "words"
    """What is counted: 'words', or 'characters' of a script without spaces."""


def abilities(
    evaluation: Evaluation, modality: Modality, compared: dict[str, list[Baseline]], words: WordShares | None
) -> str:
    """Say in one plain sentence what the model can do, beside chance and baselines.

    Args:
        evaluation: the evaluation of the beginning of the report.
        modality: modality of the features.
        compared: baselines by the name of the score.
        words: shares of right words of generated sentences; None if there are none.
    """
    scores = {score.name: score for score in evaluation.scores}
    count = f"{len(evaluation.items):,}"
    parts = []
    if "map" in scores or "localisation_map" in scores:
        name = "map" if "map" in scores else "localisation_map"
        what = "regions that the model finds and describes" if name == "map" else "regions that the model finds"
        parts.append(f"the {what} reach a mean average precision of {_beside(scores[name], compared)}")
    elif "accuracy" in scores:
        parts.append(
            f"the model gives the right label in {_beside(scores['accuracy'], compared, ' %', ' of the cases')}"
        )
    elif "position_error" in scores:
        error = _beside(scores["position_error"], compared, " %", " of the width of the frame")
        parts.append(f"the model's positions differ from the right ones on average by {error}")
    elif words is not None:
        task = "translations" if any(item.source is not None for item in evaluation.items) else "captions"
        other = (
            "" if words.others is None else f" ({task} of other {units_of(evaluation, modality)}: {words.others:.0f} %)"
        )
        parts.append(f"{words.own:.0f} % of the {words.unit} of the model's {task} are in a reference{other}")
    if (score := scores.get("text_to_image_r1")) is not None:
        found = f"the {modality.noun} that a sentence describes is the first result"
        parts.append(f"{found} of {_beside(score, compared, ' %', ' of the searches')}")
    if not parts:
        first = choose_headlines(evaluation.scores)
        if not first:
            return ""
        parts.append(f"the model has a score of {_beside(first[0], compared)} in {full_label(first[0].name, modality)}")
    on = (
        f"On {count} {units_of(evaluation, modality)} of the split '{evaluation.split}'"
        if evaluation.items
        else "On the split '" + evaluation.split + "'"
    )
    return f"{on}, {', and '.join(parts)}."


def units_of(evaluation: Evaluation, modality: Modality) -> str:
    """Name what the items of an evaluation are."""
    if any(item.source is not None for item in evaluation.items):
        return "sentences"
    return "regions" if evaluation.regions else modality.plural


def _beside(score: Score, compared: dict[str, list[Baseline]], unit: str = "", of: str = "") -> str:
    """A value with its unit and what it is a share of, and its first baseline."""
    first = next(iter(compared.get(score.name, ())), None)
    other = "" if first is None else f" ({first.label}: {format_score(score._replace(value=first.value))}{unit})"
    return f"{format_score(score)}{unit}{of}{other}"
