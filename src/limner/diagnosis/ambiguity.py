"""The generated scenes' words with two meanings: is the one in the picture translated?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from limner.data.dataset import GenerationInput
from limner.data.examples import Item
from limner.synthetic.scenes import SENSES
from limner.synthetic.scenes.grammar import NOUNS, WEAK

SOURCE = "en"
"""The language whose words have two meanings."""


class SenseQuery(NamedTuple):
    """A sentence with such a word."""

    row: int
    """Its place among all that is asked."""
    right: frozenset[str]
    """The nouns that say the meaning in the picture, in lower case."""
    wrong: frozenset[str]
    """The nouns that say the other one."""


def sense_queries(asked: Sequence[GenerationInput], words: Sequence[Sequence[str]], lang: str) -> list[SenseQuery]:
    """The sentences whose item is labelled with a word of two meanings and that say it.

    Args:
        asked: English sentences to be translated.
        words: of each.
        lang: that they are translated to. Words that it does not tell apart ('grue' in French) are passed over.
    """
    found = []
    for row, (query, said) in enumerate(zip(asked, words, strict=True)):
        other = other_sense(query.item)
        if other is None or query.item.label is None:
            continue
        right, wrong = (_nouns(name, lang) for name in (query.item.label, other))
        if right and not right & wrong and word_of(other) in {word.casefold() for word in said}:
            found.append(SenseQuery(row, right, wrong))
    return found


def says(sentence: str, nouns: frozenset[str], others: frozenset[str]) -> bool:
    """Whether a translation has one of the nouns and none of the others."""
    words = {word.casefold() for word in sentence.split()}
    return bool(words & nouns) and not words & others


def wrong_pictures(items: Sequence[Item], seed: int) -> Mapping[str, Item]:
    """For each item, by id, one whose picture shows the same word's other meaning; not for those that have none."""
    by_label: dict[str, list[Item]] = {}
    for item in items:
        if item.label is not None:
            by_label.setdefault(item.label, []).append(item)
    random = np.random.default_rng(seed)
    chosen = {}
    for item in items:
        others = by_label.get(other_sense(item) or "", [])
        if others:
            chosen[item.id] = others[int(random.integers(len(others)))]
    return chosen


def other_sense(item: Item) -> str | None:
    """The label of the other meaning, 'bat:club' of 'bat:animal'; None where the item has no such label."""
    word, _, sense = (item.label or "").partition(":")
    senses = SENSES.get(word, ())
    if sense not in senses:
        return None
    return next(f"{word}:{other}" for other in senses if other != sense)


def word_of(label: str) -> str:
    """The word of a label, 'bat' of 'bat:animal'."""
    return label.partition(":")[0]


def _nouns(name: str, lang: str) -> frozenset[str]:
    """A thing's noun in all the forms that sentences about scenes have."""
    if lang == "de":
        noun = NOUNS[name].german
        return frozenset({noun.casefold(), f"{noun}n".casefold()} if noun in WEAK else {noun.casefold()})
    return frozenset({NOUNS[name].french}) if lang == "fr" else frozenset()
