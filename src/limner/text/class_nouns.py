"""Everyday nouns of the 1,000 classes of ImageNet (ILSVRC 2012), in the languages of the built-in captioner.

`class_nouns.tsv` has a row for each noun: its kind, its classes (numbers from 0 in the order of their WordNet ids), and
in each language the words that people say, separated by |, the usual one first. Several classes share a noun: all
breeds of dogs are 'dog'. A sentence with any of the words names the noun, so that more general words are among them
('owl|bird').
"""

from __future__ import annotations

import csv
import functools
from importlib.resources import files
from typing import NamedTuple

from limner.errors import SettingsError

CLASSES = 1000
"""Number of classes."""
LANGUAGES = ("en", "de", "zh")
"""Languages of the nouns."""
_TABLE = "class_nouns.tsv"


class ClassNoun(NamedTuple):
    """An everyday noun of one or more classes."""

    kind: str
    """Kind of thing, such as animal, vehicle, food."""
    classes: tuple[int, ...]
    """Numbers of the classes."""
    words: tuple[str, ...]
    """Words that name the thing, the usual one first; inflected forms follow."""

    @property
    def word(self) -> str:
        """The usual word."""
        return self.words[0]


@functools.cache
def class_nouns(lang: str) -> tuple[ClassNoun, ...]:
    """Read the nouns of a language; each class belongs to one of them.

    Raises:
        SettingsError: there are no nouns of this language.
    """
    if lang not in LANGUAGES:
        raise SettingsError(f"tags: expected one of the languages {', '.join(LANGUAGES)}, got '{lang}'")
    with files("limner.text").joinpath(_TABLE).open(encoding="utf-8") as lines:
        rows = csv.DictReader(lines, delimiter="\t")
        return tuple(
            ClassNoun(row["kind"], _numbers(row["classes"]), _words(row[lang].split("|"), lang)) for row in rows
        )


def _numbers(text: str) -> tuple[int, ...]:
    """Parse ranges of numbers, such as '7-8,12'."""
    ranges = (part.partition("-") for part in text.split(","))
    return tuple(number for first, _, last in ranges for number in range(int(first), int(last or first) + 1))


def _words(words: list[str], lang: str) -> tuple[str, ...]:
    """Add the regular plurals of English words; the table has the forms of other words."""
    plurals = [plural(word) for word in words] if lang == "en" else []
    return tuple(dict.fromkeys([*words, *plurals]))


def plural(word: str) -> str:
    """Return the regular plural of an English noun."""
    if word.endswith(("s", "x", "ch", "sh")):
        return word if word.endswith("s") and not word.endswith("ss") else f"{word}es"
    if word.endswith("y") and word[-2:-1] not in tuple("aeiou"):
        return f"{word[:-1]}ies"
    return f"{word}s"
