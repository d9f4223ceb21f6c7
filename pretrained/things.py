"""Things that people name: their nouns, the words that name them, and the labels and detector classes that mean them.

`things.tsv` has a row for each thing: `noun`, the usual word; `words`, other words that name it; `kinds`, more general
words that are true of it; `coco`, the class of the detector; `labels`, the labels of the pool; `de` and `zh`, the
German and Chinese names, the usual name first. The first German name has its article (`die Katze`), and after `/` what
follows "Ein Foto" where this is not `von einem` or `von einer` and the noun (`der Bär/von einem Bären`, `der Reis/von
Reis`); the other names include inflected forms. `kinds.tsv` has the German and Chinese names of the kinds.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_name("things.tsv")
IRREGULAR = {
    "knife": "knives", "sheep": "sheep", "person": "people", "leaf": "leaves", "shelf": "shelves", "wolf": "wolves",
    "mouse": "mice", "goose": "geese", "calf": "calves", "child": "children", "man": "men", "woman": "women",
    "loaf": "loaves", "potato": "potatoes", "tomato": "tomatoes", "deer": "deer", "fish": "fish", "ox": "oxen",
    "baby": "babies", "lady": "ladies", "bison": "bison", "scarf": "scarves", "buffalo": "buffalo",
}  # fmt: skip
"""Plurals that are not regular."""
LONGEST = 3
"""Number of words of the longest name."""
GROUPS = re.compile(r"\b(couple|family|band|pair) of\b")
"""A number of things, which is no group of people."""
NOT_A_FRUIT = re.compile(r"\borange (?!(is|on|in|and|with|next|sitting|that|sits|at|has|from|to|or)\b)(?=\w)")
"""The colour, as in 'an orange shirt'."""
YOUNG = re.compile(
    r"\bbaby (?=(elephant|giraffe|zebra|bear|cow|sheep|horse|bird|goat|animal|duck|panda|lamb|deer|cat|dog)s?\b)"
)
"""A young animal, which is no person."""


class Thing(NamedTuple):
    """A thing with the words for it."""

    noun: str
    words: tuple[str, ...]
    kinds: tuple[str, ...]
    coco: str
    labels: tuple[str, ...]
    de: tuple[str, ...]
    zh: tuple[str, ...]


@functools.cache
def things() -> dict[str, Thing]:
    """Read the things, by noun."""
    with TABLE.open(encoding="utf-8") as lines:
        rows = [Thing(*(_split(value) for value in row.values())) for row in csv.DictReader(lines, delimiter="\t")]
    return {
        row.noun[0]: row._replace(noun=row.noun[0], coco=row.coco[0] if row.coco else "")  # type: ignore[index]
        for row in rows
    }


def _split(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


@functools.cache
def by_label() -> dict[str, Thing]:
    """Map the labels of the pool to things."""
    return {label: thing for thing in things().values() for label in thing.labels}


@functools.cache
def by_coco() -> dict[str, Thing]:
    """Map the classes of the detector to things."""
    return {thing.coco: thing for thing in things().values() if thing.coco}


def plural(word: str) -> str:
    """Return the regular plural of an English noun."""
    if word.endswith(("s", "x", "ch", "sh")):
        return word if word.endswith("s") and not word.endswith("ss") else f"{word}es"
    if word.endswith("y") and word[-2:-1] not in tuple("aeiou"):
        return f"{word[:-1]}ies"
    return f"{word}s"


def many(word: str) -> str:
    """Return the plural of a noun of one or more words."""
    first, _, last = word.rpartition(" ")
    return f"{first} {IRREGULAR.get(last) or plural(last)}".strip()


@functools.cache
def names() -> dict[str, frozenset[str]]:
    """Map each name, singular and plural, to its things; the usual word of a thing names that thing alone."""
    found: dict[str, set[str]] = {}
    for thing in things().values():
        for word in (thing.noun, *thing.words):
            for form in {word, many(word)}:
                found.setdefault(form, set()).add(thing.noun)
    usual = {form: noun for noun in things() for form in (noun, many(noun))}
    return {name: frozenset([usual[name]] if name in usual else nouns) for name, nouns in found.items()}


def tokens(sentence: str) -> list[str]:
    """Split a sentence into lower-case words without punctuation."""
    return re.findall(r"[a-z0-9]+(?:[-'][a-z0-9]+)*", sentence.lower())


class Mention(NamedTuple):
    """A name in a sentence, and the things that it may mean."""

    start: int
    name: str
    nouns: frozenset[str]

    @property
    def is_plural(self) -> bool:
        """Whether the name is a plural."""
        return any(self.name == many(word) for noun in self.nouns for word in (noun, *things()[noun].words))


@functools.lru_cache(maxsize=400_000)
def mentions(sentence: str) -> tuple[Mention, ...]:
    """Find the names of things in a sentence; of names that overlap, the longest first."""
    lowered = YOUNG.sub("young ", NOT_A_FRUIT.sub("colour ", sentence.lower()))
    lowered = GROUPS.sub("number of", lowered)
    return tuple(_mentions(tokens(lowered)))


def _mentions(words: list[str]) -> Iterator[Mention]:
    table, position = names(), 0
    while position < len(words):
        for length in range(LONGEST, 0, -1):
            name = " ".join(words[position : position + length])
            if name in table:
                yield Mention(position, name, table[name])
                position += length
                break
        else:
            position += 1


@functools.cache
def is_named_by(noun: str) -> frozenset[str]:
    """Return every word that is true of a thing: its names, its kinds, and their plurals."""
    thing = things()[noun]
    words = (thing.noun, *thing.words, *thing.kinds)
    return frozenset([*words, *map(many, words)])
