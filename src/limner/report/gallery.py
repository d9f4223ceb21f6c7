"""Items of an evaluation for the report: six at the beginning, and a gallery with the best, the worst and a sample.

No image occurs twice among the best and the worst.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from PIL import Image

from limner.report.error_kinds import LABELS, SentenceErrors
from limner.report.thumbnails import Thumbnails
from limner.report.word_marks import MarkedWord, closest_reference, mark_labels, mark_words
from limner.runs.records import EvaluatedItem

FIRST = 6
"""Number of items at the beginning of the report."""
BEST_AND_WORST = 12
"""Number of items among the best and among the worst."""
SAMPLE = 12
"""Number of items of the random sample."""
PER_KIND = 6
"""Number of items with each kind of error, at least, if there are so many."""
EXPLAINED = 6
"""Number of sentences shown with their attention."""
LARGE, MEDIUM = 512, 320
"""Longer side of the images of the beginning and of the gallery in pixels."""

Draw = Callable[..., Image.Image | None]


class Chosen(NamedTuple):
    """An item of a gallery, by its row in the evaluation."""

    row: int
    groups: tuple[str, ...]
    """Groups of the gallery that it belongs to: 'best', 'worst' or 'sample'; 'right' or kinds of errors."""


class Card(NamedTuple):
    """An item as it is shown."""

    item: EvaluatedItem
    thumbnail: str | None
    words: tuple[MarkedWord, ...]
    """Parts of the hypothesis with their marks."""
    wrong: tuple[str, ...]
    """Words of the hypothesis that no reference has."""
    closest: int | None
    """Index of the reference that is closest to the hypothesis."""
    groups: tuple[str, ...]
    error_labels: tuple[str, ...]
    """Labels of the kinds of errors of the sentence."""

    @property
    def alt(self) -> str:
        """Alternative text of the image: the closest reference, which people wrote, or the id."""
        references = self.item.references
        return references[self.closest or 0] if references and self.item.source is None else self.item.id


def choose_first(items: Sequence[EvaluatedItem], seed: int) -> list[int]:
    """Draw the rows of the items at the beginning at random, those with an image first, no image twice."""
    order = random.Random(seed).sample(range(len(items)), len(items))
    order.sort(key=lambda row: items[row].image is None)
    return _distinct(order, items, FIRST, set())


def choose_gallery(
    items: Sequence[EvaluatedItem], seed: int, errors: Sequence[SentenceErrors] | None = None
) -> list[Chosen]:
    """Choose the best and the worst items, a random sample, and items with each kind of error.

    Args:
        items: items of the evaluation; the score of a sentence orders them.
        seed: random seed of the sample.
        errors: errors of each item; None if they are not known.

    Returns:
        The best, best first; the worst, worst first; the others in random order. No image occurs twice, unless the
        sample needs further sentences of the same images.
    """
    scored = [row for row, item in enumerate(items) if item.sentence_score is not None]
    scored.sort(key=lambda row: items[row].sentence_score or 0.0, reverse=True)
    different = len({_image_of(items[row]) for row in scored})
    each = min(BEST_AND_WORST, different // 3)
    taken: set[str] = set()
    groups = dict.fromkeys(_distinct(scored, items, each, taken), "best")
    groups |= dict.fromkeys(_distinct(reversed(scored), items, each, taken), "worst")
    order = random.Random(seed).sample(range(len(items)), len(items))
    sample = _distinct(order, items, SAMPLE, taken)
    sample += [row for row in order if row not in groups and row not in sample][: SAMPLE - len(sample)]
    groups |= dict.fromkeys(sample, "sample")
    if errors is not None:
        for kind in LABELS:
            having = [row for row in order if kind in errors[row].kinds]
            missing = PER_KIND - sum(kind in errors[row].kinds for row in groups)
            groups |= dict.fromkeys(_distinct(having, items, max(0, missing), taken), "")
    return [Chosen(row, _groups(group, None if errors is None else errors[row])) for row, group in groups.items()]


def choose_to_explain(chosen: Sequence[Chosen], items: Sequence[EvaluatedItem]) -> list[EvaluatedItem]:
    """Choose a few sentences of the best, the sample and the worst, then others, at most `EXPLAINED` in total."""
    named = [
        [items[one.row] for one in chosen if name in one.groups and items[one.row].hypothesis]
        for name in ("best", "sample", "worst")
    ]
    present = [group for group in named if group]
    few = [item for group in present for item in group[: EXPLAINED // len(present)]]
    others = [item for item in items if item.hypothesis]
    return list(dict.fromkeys((*few, *others)))[:EXPLAINED]


def cards(
    chosen: Iterable[Chosen],
    items: Sequence[EvaluatedItem],
    thumbnails: Thumbnails,
    *,
    side: int,
    unmarked: frozenset[str] = frozenset(),
    labels: bool = False,
    draw: Draw | None = None,
) -> list[Card]:
    """Build the cards of chosen items.

    Args:
        chosen: rows of the items, with their groups.
        items: items of the evaluation.
        thumbnails: thumbnails of the page.
        side: longer side of an image in pixels.
        unmarked: words that are neither right nor wrong.
        labels: whether the hypotheses are labels with probabilities.
        draw: function from an item and the longer side to its drawing; a plain thumbnail replaces None.
    """
    built = []
    for one in chosen:
        item = items[one.row]
        drawing = None if draw is None else draw(item, side=side)
        url = thumbnails(item.image, side) if drawing is None else thumbnails.of_image(drawing)
        words = mark(item, unmarked, labels=labels)
        wrong = tuple(dict.fromkeys(part.text for part in words if part.mark == "wrong"))
        closest = closest_reference(item.hypothesis, item.references)
        kinds = tuple(label for kind, label in LABELS.items() if kind in one.groups)
        built.append(Card(item, url, words, wrong, closest, one.groups, kinds))
    return built


def mark(item: EvaluatedItem, unmarked: frozenset[str], *, labels: bool) -> tuple[MarkedWord, ...]:
    """Mark the words or the labels of the hypothesis of an item."""
    if labels:
        return tuple(mark_labels(item.hypothesis, item.references))
    return tuple(mark_words(item.hypothesis, item.references, unmarked))


def filters(shown: Sequence[Card], labels: Mapping[str, str]) -> list[tuple[str, str, int]]:
    """List the groups of a gallery that have cards: name, label and number of cards."""
    counted = [(name, label, sum(name in card.groups for card in shown)) for name, label in labels.items()]
    return [entry for entry in counted if entry[2]]


def _groups(group: str, errors: SentenceErrors | None) -> tuple[str, ...]:
    own = (group,) if group else ()
    return own if errors is None else (*own, *(errors.kinds or ("right",)))


def _image_of(item: EvaluatedItem) -> str:
    return item.image or item.id


def _distinct(rows: Iterable[int], items: Sequence[EvaluatedItem], count: int, taken: set[str]) -> list[int]:
    """Take the first rows whose images are not taken yet, and take these."""
    chosen: list[int] = []
    for row in rows:
        if len(chosen) == count:
            break
        if (image := _image_of(items[row])) not in taken:
            taken.add(image)
            chosen.append(row)
    return chosen
