"""Tables of scores, beside published scores and beside those of image controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from limner.media.modality import Modality
from limner.metrics.base import SCIENTIFIC, Score, format_value
from limner.runs.records import Evaluation

LABELS = {
    "perplexity": "Perplexity",
    **{f"bleu{order}": f"BLEU-{order}" for order in (1, 2, 3, 4)},
    "sacrebleu": "BLEU (sacrebleu)",
    "chrf": "chrF",
    "chrf3": "chrF3",
    "chrf3_precision": "chrF3 precision",
    "chrf3_recall": "chrF3 recall",
    "chrf3_spaces": "chrF3 with spaces",
    "chrf3_spaces_precision": "chrF3 precision, with spaces",
    "chrf3_spaces_recall": "chrF3 recall, with spaces",
    "chrf3_text": "chrF3 (detokenised)",
    "ter": "TER",
    "ter_text": "TER (detokenised)",
    "cider": "CIDEr",
    "rouge_l": "ROUGE-L",
    "meteor": "METEOR",
    "accuracy": "Accuracy, %",
    "f1": "Macro F1",
    "calibration_error": "Expected calibration error, %",
    "position_error": "Mean position error, % of the width",
    "hidden_position_error": "Mean position error of hidden objects, % of the width",
    "map": "mAP, boxes and sentences",
    "localisation_map": "mAP, boxes alone",
    "region_r1": "R@1 of regions",
    "region_r5": "R@5 of regions",
    "region_r10": "R@10 of regions",
    "region_median_rank": "Median rank of regions",
    "novel": "Novel sentences, %",
    "distinct_words": "Distinct words",
    **{f"sampled_bleu{order}": f"BLEU-{order} of samples" for order in (1, 2, 3)},
    **{f"sampled_bleu{order}_std": f"BLEU-{order} of samples, standard deviation" for order in (1, 2, 3)},
    "gate_mean": "Mean gate",
    "recovered": "Recovered, %",
    "correct_sense": "Correct sense, %",
    "other_sense": "Other sense, %",
}
"""Labels of scores by name."""
GATE_PREFIX = "gate_above_"
RETRIEVAL_LABELS = {
    "r1": "R@1",
    "r5": "R@5",
    "r10": "R@10",
    "median_rank": "Median rank",
    "curve_area": "Area under the recall curve",
    "match_area": "Area under the first-match curve",
}
"""Labels of retrieval scores by name, without the direction."""


class ScoreRow(NamedTuple):
    """A row of a table of scores."""

    label: str
    value: str
    published: str
    """Published value, or a dash."""
    signature: str


def retrieval_titles(modality: Modality) -> dict[str, str]:
    """Titles of the two directions of retrieval, by the prefix of their scores."""
    return {
        "image_to_text": f"{modality.name.capitalize()}-to-text retrieval",
        "text_to_image": f"Text-to-{modality.name} retrieval",
    }


def label(name: str) -> str:
    """The label of a score other than a retrieval score."""
    if name.startswith(GATE_PREFIX):
        return f"Words with a gate above {name.removeprefix(GATE_PREFIX)}, %"
    return LABELS.get(name, name)


def title_of(evaluation: Evaluation) -> str:
    """The split, with decoding and evaluation settings that differ from those of the recipe."""
    differences = [part for name in (evaluation.decoding, evaluation.measured) for part in name.split(",") if part]
    return ", ".join((evaluation.split, *differences))


def generation_rows(scores: Sequence[Score], published: Mapping[str, float], modality: Modality) -> list[ScoreRow]:
    """Rows of all scores other than retrieval scores."""
    directions = tuple(retrieval_titles(modality))
    return [_row(label(score.name), score, published) for score in scores if not score.name.startswith(directions)]


def retrieval_rows(
    scores: Sequence[Score], published: Mapping[str, float], modality: Modality
) -> dict[str, list[ScoreRow]]:
    """Rows of the retrieval scores by the title of their direction, for directions with scores."""
    rows = {}
    for direction, title in retrieval_titles(modality).items():
        of_direction = [score for score in scores if score.name.startswith(f"{direction}_")]
        if of_direction:
            rows[title] = [_row(_retrieval_label(score.name, direction), score, published) for score in of_direction]
    return rows


def control_tables(evaluations: Sequence[Evaluation], modality: Modality) -> list[dict[str, Any]]:
    """Tables of the scores under each image control, one table for each split and its settings."""
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in sorted(evaluations, key=lambda one: one.image_control != "right"):
        groups.setdefault(title_of(evaluation), []).append(evaluation)
    tables = []
    for title, group in groups.items():
        if group[-1].image_control == "right":
            continue
        names = dict.fromkeys(score.name for evaluation in group for score in evaluation.scores)
        values = [{score.name: format_score(score) for score in evaluation.scores} for evaluation in group]
        tables.append(
            {
                "title": title,
                "columns": [evaluation.image_control for evaluation in group],
                "rows": [(full_label(name, modality), [column.get(name, "–") for column in values]) for name in names],
            }
        )
    return tables


def _retrieval_label(name: str, direction: str) -> str:
    return RETRIEVAL_LABELS.get(name.removeprefix(f"{direction}_"), name)


def full_label(name: str, modality: Modality) -> str:
    """Return the label of a score, with the direction of a retrieval score."""
    for direction, title in retrieval_titles(modality).items():
        if name.startswith(f"{direction}_"):
            return f"{title}: {_retrieval_label(name, direction)}"
    return label(name)


def _row(name: str, score: Score, published: Mapping[str, float]) -> ScoreRow:
    value = published.get(score.name)
    return ScoreRow(
        name, format_score(score), "–" if value is None else format_score(score._replace(value=value)), score.signature
    )


def format_score(score: Score) -> str:
    """Write the value of a score with the decimals of its scale."""
    if "scale:" in score.signature:
        return format_value(score.value, 1)
    if abs(score.value) >= SCIENTIFIC:
        return format_value(score.value)
    return f"{score.value:,.2f}".rstrip("0").rstrip(".")
