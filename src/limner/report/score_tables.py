"""Figures for people: their names, beside the published ones, and beside those of control pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from limner.metrics.base import Score
from limner.runs.records import Evaluation

LABELS = {
    "perplexity": "Perplexity",
    **{f"bleu{order}": f"BLEU-{order}" for order in (1, 2, 3, 4)},
    "sacrebleu": "BLEU (sacrebleu)",
    "chrf": "chrF",
    "chrf3": "chrF3",
    "chrf3_precision": "chrF3, precision",
    "chrf3_recall": "chrF3, recall",
    "chrf3_text": "chrF3 of running text",
    "ter": "TER",
    "ter_text": "TER of running text",
    "cider": "CIDEr",
    "rouge_l": "ROUGE-L",
    "meteor": "METEOR",
    "novel": "Novel sentences, %",
    "distinct_words": "Distinct words",
    **{f"sampled_bleu{order}": f"BLEU-{order} of samples" for order in (1, 2, 3)},
    **{f"sampled_bleu{order}_std": f"BLEU-{order} of samples, standard deviation" for order in (1, 2, 3)},
    "gate_mean": "Mean gate",
    "recovered": "Recovered, %",
    "correct_sense": "Correct sense, %",
    "other_sense": "Other sense, %",
}
GATE = "gate_above_"
SEARCH_LABELS = {
    "r1": "R@1",
    "r5": "R@5",
    "r10": "R@10",
    "median_rank": "Median rank",
    "curve_area": "Area under the recall curve",
    "match_area": "Area under the match curve",
}


class Row(NamedTuple):
    """A line of a table of scores."""

    label: str
    value: str
    published: str
    signature: str


def directions(media: str) -> dict[str, str]:
    """What is found for what, by the first part of a score's name."""
    return {
        "image_to_text": f"Sentences found for an {media.removesuffix('s')}",
        "text_to_image": f"{media.capitalize()} found for a sentence",
    }


def label(name: str) -> str:
    """The name of a figure that is not of a search."""
    if name.startswith(GATE):
        return f"Words whose gate is above {name.removeprefix(GATE)}, %"
    return LABELS.get(name, name)


def title_of(evaluation: Evaluation) -> str:
    """Split, and search and measure where they are not the recipe's."""
    others = [part for named in (evaluation.decoding, evaluation.measured) for part in named.split(",") if part]
    return ", ".join((evaluation.split, *others))


def sentence_rows(scores: Sequence[Score], published: Mapping[str, float], media: str) -> list[Row]:
    """All figures that are not of a search."""
    ways = tuple(directions(media))
    return [_row(label(score.name), score, published) for score in scores if not score.name.startswith(ways)]


def search_rows(scores: Sequence[Score], published: Mapping[str, float], media: str) -> dict[str, list[Row]]:
    """The figures of each direction of search that there are any of, by its title."""
    rows = {}
    for direction, title in directions(media).items():
        own = [score for score in scores if score.name.startswith(f"{direction}_")]
        if own:
            rows[title] = [_row(_search_label(score.name, direction), score, published) for score in own]
    return rows


def control_tables(evaluations: Sequence[Evaluation], media: str) -> list[dict[str, Any]]:
    """Beside the right pictures' figures, those of the same measure with other pictures shown; one table a measure."""
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in sorted(evaluations, key=lambda one: one.image_control != "right"):
        groups.setdefault(title_of(evaluation), []).append(evaluation)
    tables = []
    for title, group in groups.items():
        if group[-1].image_control == "right":
            continue
        names = dict.fromkeys(score.name for evaluation in group for score in evaluation.scores)
        found = [{score.name: _shown(score) for score in evaluation.scores} for evaluation in group]
        tables.append(
            {
                "title": title,
                "columns": [evaluation.image_control for evaluation in group],
                "rows": [(_full_label(name, media), [values.get(name, "–") for values in found]) for name in names],
            }
        )
    return tables


def _search_label(name: str, direction: str) -> str:
    return SEARCH_LABELS.get(name.removeprefix(f"{direction}_"), name)


def _full_label(name: str, media: str) -> str:
    """A score's name, with the direction of a search."""
    for direction, title in directions(media).items():
        if name.startswith(f"{direction}_"):
            return f"{title}: {_search_label(name, direction)}"
    return label(name)


def _row(name: str, score: Score, published: Mapping[str, float]) -> Row:
    theirs = published.get(score.name)
    beside = "–" if theirs is None else _shown(score._replace(value=theirs))
    return Row(name, _shown(score), beside, score.signature)


def _shown(score: Score) -> str:
    if "scale:" in score.signature:
        return f"{score.value:.1f}"
    return f"{score.value:,.2f}".rstrip("0").rstrip(".")
