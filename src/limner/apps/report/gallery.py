"""Selection of the items of an evaluation for the report, with marks of right and wrong words."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from limner.apps.report.images import Thumbnails, open_regions
from limner.metrics.classification import METRICS_OF_LABELS, POSITION_ERROR, position_statistics
from limner.runs.evaluations import EvaluatedItem, Evaluation
from limner.text import scripts
from limner.text.labels import TRACK, read_predictions

SEED = 0  # random seed of the samples that reports show
FIRST = 6  # number of items at the beginning of the report
ITEMS_PER_GROUP = 12  # number of items of the best, of the worst and of the random sample of a gallery
EXPLAINED = 6  # number of sentences shown with their attention
GROUPS = {"sample": "Random sample", "best": "Best", "worst": "Worst"}
"""Labels of the groups of a gallery; the first is shown at first."""

Mark = Literal["right", "wrong", ""]


class MarkedWord(NamedTuple):
    """A part of a sentence with its mark."""

    text: str
    mark: Mark = ""  # whether a reference has the word; empty for spaces, punctuation and sentences without references


class Card(NamedTuple):
    """An item as it is shown."""

    item: EvaluatedItem
    thumbnail: str | None
    words: tuple[MarkedWord, ...]
    group: str  # group of the gallery: 'best', 'worst' or 'sample'; empty at the beginning of the report

    @property
    def wrong(self) -> tuple[str, ...]:
        """Words of the hypothesis that no reference has."""
        return tuple(dict.fromkeys(part.text for part in self.words if part.mark == "wrong"))

    @property
    def alt(self) -> str:
        """Alternative text of the image: a reference, which people wrote, or the id."""
        return self.item.references[0] if self.item.references and self.item.source is None else self.item.id


def choose_first(items: Sequence[EvaluatedItem], seed: int) -> list[int]:
    """Draw the rows of the items shown first: items with an image before items without, no image twice."""
    order = random.Random(seed).sample(range(len(items)), len(items))
    order.sort(key=lambda row: items[row].image is None)
    return _distinct(order, items, FIRST, set())


def choose_gallery(items: Sequence[EvaluatedItem], seed: int) -> dict[int, str]:
    """Choose the best items by their sentence score, best first; the worst, worst first; and a random sample.

    The result is the groups by the row of the item. No image occurs twice, unless the sample needs further sentences of
    the same images.
    """
    scored = [row for row, item in enumerate(items) if item.sentence_score is not None]
    scored.sort(key=lambda row: items[row].sentence_score or 0.0, reverse=True)
    per_group = min(ITEMS_PER_GROUP, len({_image_of(items[row]) for row in scored}) // 3)
    taken: set[str] = set()
    groups = dict.fromkeys(_distinct(scored, items, per_group, taken), "best")
    groups |= dict.fromkeys(_distinct(reversed(scored), items, per_group, taken), "worst")
    order = random.Random(seed).sample(range(len(items)), len(items))
    sample = _distinct(order, items, ITEMS_PER_GROUP, taken)
    sample += [row for row in order if row not in groups and row not in sample][: ITEMS_PER_GROUP - len(sample)]
    return groups | dict.fromkeys(sample, "sample")


def choose_to_explain(chosen: dict[int, str], items: Sequence[EvaluatedItem]) -> list[EvaluatedItem]:
    """Choose two sentences each of the best, the sample and the worst, then more, at most `EXPLAINED` in total."""
    groups = {name: [row for row, group in chosen.items() if group == name] for name in ("best", "sample", "worst")}
    rows = [row for name in groups for row in groups[name][:2]]
    return [items[row] for row in dict.fromkeys((*rows, *range(len(items)))) if items[row].hypothesis][:EXPLAINED]


def cards(
    chosen: dict[int, str], items: Sequence[EvaluatedItem], thumbnails: Thumbnails, *, side: int, labels: bool = False
) -> list[Card]:
    """Build the cards of items, chosen as groups by row, with images of at most `side` pixels and the box of a region.

    `labels` says that the hypotheses are labels with probabilities.
    """
    built = []
    for row, group in chosen.items():
        item = items[row]
        drawing = None if item.box is None else open_regions(item.image, [(item.box, "")])
        if drawing is not None:
            drawing.thumbnail((side, side))
        url = thumbnails(item.image, side) if drawing is None else thumbnails.of_image(drawing)
        words = (mark_labels if labels else mark_words)(item.hypothesis, item.references)
        built.append(Card(item, url, tuple(words), group))
    return built


def mark_words(text: str, references: Sequence[str]) -> list[MarkedWord]:
    """Mark the words of a sentence: right if a reference has them, else wrong; without references, none is marked.

    Occurrences of a word beyond its maximum count in a reference are wrong, as in BLEU. The joined parts are `text`.
    """
    allowed: Counter[str] = Counter()
    for reference in references:
        allowed |= Counter(token.casefold() for token in scripts.split(reference))
    parts, end = [], 0
    for token in scripts.split(text):
        start = text.index(token, end)
        if start > end:
            parts.append(MarkedWord(text[end:start]))
        end = start + len(token)
        if not references or not any(character.isalnum() for character in token):
            parts.append(MarkedWord(token))
            continue
        allowed[token.casefold()] -= 1
        parts.append(MarkedWord(token, "right" if allowed[token.casefold()] >= 0 else "wrong"))
    if end < len(text):
        parts.append(MarkedWord(text[end:]))
    return parts


def mark_labels(text: str, references: Sequence[str]) -> list[MarkedWord]:
    """Mark labels with probabilities, as `positive (0.9312)`: right if the first reference has the label there."""
    right = references[0].split() if references else []
    parts: list[MarkedWord] = []
    for number, (label, probability) in enumerate(read_predictions(text)):
        is_right = number < len(right) and label == right[number]
        mark: Mark = "right" if is_right else "wrong" if right else ""
        parts += [MarkedWord(label, mark), MarkedWord(f" ({probability:.2f}) ")]
    return parts or [MarkedWord(text)]


def is_of_tracks(evaluation: Evaluation) -> bool:
    """Whether an evaluation is of positions."""
    return any(score.name in METRICS_OF_LABELS[TRACK] for score in evaluation.scores)


def by_position_error(items: Sequence[EvaluatedItem]) -> list[EvaluatedItem]:
    """Return the items with their negative position error as score, so that the best have the highest."""
    rows = position_statistics([item.hypothesis for item in items], [item.references for item in items])
    return [
        item.model_copy(update={"sentence_score": -POSITION_ERROR.value(row)})
        for item, row in zip(items, rows, strict=True)
    ]


def _image_of(item: EvaluatedItem) -> str:
    return item.image or item.id


def _distinct(rows: Iterable[int], items: Sequence[EvaluatedItem], count: int, taken: set[str]) -> list[int]:
    """Return the first `count` rows whose images are not in `taken`, and add these images to `taken`."""
    chosen: list[int] = []
    for row in rows:
        if len(chosen) == count:
            break
        if (image := _image_of(items[row])) not in taken:
            taken.add(image)
            chosen.append(row)
    return chosen
