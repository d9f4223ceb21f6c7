"""Ambiguous source words of the generated scenes, whose translation depends on the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from limner.data.dataset import GenerationInput
from limner.data.examples import Item
from limner.synthetic.scenes import SENSES
from limner.synthetic.scenes.grammar import NOUNS, WEAK_NOUNS

SOURCE_LANG = "en"  # language of the ambiguous words


class AmbiguousInput(NamedTuple):
    """A source sentence with an ambiguous word, and the target nouns of both senses."""

    position: int  # position in the sequence of inputs
    correct: frozenset[str]  # case-folded target nouns of the sense that the image shows
    incorrect: frozenset[str]  # case-folded target nouns of the other sense


def find_ambiguous_inputs(
    inputs: Sequence[GenerationInput], words: Sequence[Sequence[str]], lang: str
) -> list[AmbiguousInput]:
    """Find the source sentences that contain the ambiguous word of their item's label.

    `words` are the words of each English source sentence. Words whose senses have the same translation (French 'grue')
    are left out.
    """
    ambiguous = []
    for position, (entry, sentence) in enumerate(zip(inputs, words, strict=True)):
        other_label = other_sense_label(entry.item)
        if other_label is None or entry.item.label is None:
            continue
        correct, incorrect = (_nouns(label, lang) for label in (entry.item.label, other_label))
        has_word = other_label.partition(":")[0] in {word.casefold() for word in sentence}
        if has_word and correct and not correct & incorrect:
            ambiguous.append(AmbiguousInput(position, correct, incorrect))
    return ambiguous


def expresses_sense(sentence: str, nouns: frozenset[str], other_nouns: frozenset[str]) -> bool:
    """Whether a tokenised sentence contains a noun of one sense and no noun of the other sense."""
    words = {word.casefold() for word in sentence.split()}
    return bool(words & nouns) and not words & other_nouns


def items_of_other_sense(items: Sequence[Item], seed: int) -> Mapping[str, Item]:
    """Choose for items, by id, a random item of the other sense of the word; items without one are left out."""
    by_label: dict[str, list[Item]] = {}
    for item in items:
        if item.label is not None:
            by_label.setdefault(item.label, []).append(item)
    rng = np.random.default_rng(seed)
    chosen = {}
    for item in items:
        if candidates := by_label.get(other_sense_label(item) or "", []):
            chosen[item.id] = candidates[int(rng.integers(len(candidates)))]
    return chosen


def other_sense_label(item: Item) -> str | None:
    """The label of the other sense, 'bat:club' for 'bat:animal'; None if the item has no sense label."""
    word, _, sense = (item.label or "").partition(":")
    senses = SENSES.get(word, ())
    if sense not in senses:
        return None
    return next(f"{word}:{other_sense}" for other_sense in senses if other_sense != sense)


def _nouns(label: str, lang: str) -> frozenset[str]:
    """All inflected forms of a label's noun that the sentences about scenes use."""
    if lang == "de":
        noun = NOUNS[label].german
        return frozenset({noun.casefold(), f"{noun}n".casefold()} if noun in WEAK_NOUNS else {noun.casefold()})
    return frozenset({NOUNS[label].french}) if lang == "fr" else frozenset()
