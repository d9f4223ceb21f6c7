"""Numbered words of a corpus with their stems, synonym sets and paraphrases, which the matching modules compare.

Sentences are normalised by the rules of the tokeniser of Moses (Koehn et al., 2007) with simplified quotes and dashes;
the differences of METEOR 1.5 (`-norm`) were determined by comparing its output with ours for every character and for
random strings. Every distinct word and phrase of the corpus is looked up once; the search compares numbers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.errors import extra_module
from limner.files.yaml_text import read_resource
from limner.metrics.meteor import data
from limner.metrics.meteor.data import PARAPHRASE

Ids = NDArray[np.int32]
LONGEST_PHRASE = 7
"""Number of words of the longest phrase in the tables of METEOR 1.5."""
STEMMERS = {"de": "German", "en": "English", "es": "Spanish", "fr": "French", "ru": "Russian"}
_RULES = read_resource("limner.metrics.meteor", "rules.yaml")
DETACHMENT: list[tuple[str, str]] = [(ending, replacement) for ending, replacement in _RULES["detachment"]]
LETTERS: str = _RULES["letters"]


class RaggedArray(NamedTuple):
    """Lists of numbers of different lengths: list n is `values[starts[n]:starts[n + 1]]`."""

    starts: NDArray[np.int64]
    values: Ids

    @classmethod
    def from_lists(cls, lists: Iterable[Sequence[int]]) -> RaggedArray:
        """Join lists of numbers."""
        lists = list(lists)
        starts = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(row) for row in lists], out=starts[1:])
        return cls(starts, np.array([value for row in lists for value in row], np.int32))


class Corpus(NamedTuple):
    """Distinct sentences of a corpus as numbers, and the properties of its words and phrases."""

    words: RaggedArray
    """Words of a sentence."""
    phrases: RaggedArray
    """Phrases of a sentence with paraphrases: first word, number of words, number of the phrase; three values each."""
    is_function_word: NDArray[np.bool_]
    """Whether a word is a function word."""
    stems: Ids
    """Stem of a word."""
    synsets: RaggedArray
    """Synonym sets of a word, ascending."""
    paraphrases: RaggedArray
    """Paraphrases that the table lists for a phrase, ascending."""
    entries: Ids
    """Position in the table of each entry of `paraphrases`."""
    slots: Ids
    """Index of the modules exact, stem, synonym and paraphrase in the statistics; -1 for unused modules."""


def number_corpus(lang: str, sentences: Iterable[str]) -> tuple[dict[str, int], Corpus]:
    """Normalise a corpus and look up its words and phrases; also the index of every distinct sentence."""
    place, used = data.folder(), data.modules(lang)
    normalise = Normaliser(lang, data.prefixes(place, lang))
    numbers: dict[str, int] = {}
    ids: dict[str, int] = {}
    texts: list[list[str]] = []
    for sentence in sentences:
        if sentence not in numbers:
            numbers[sentence] = len(texts)
            texts.append(normalise(sentence))
    rows = [[ids.setdefault(word, len(ids)) for word in text] for text in texts]
    functions = data.function_words(place)
    stems = _stems(lang, ids) if "stem" in used else ids.values()
    table = _paraphrases(data.paraphrase_file(lang), texts) if PARAPHRASE in used else ([[]] * len(texts), [], [])
    phrases, paraphrases, entries = table
    slots = [used.index(module) if module in used else -1 for module in ("exact", "stem", "synonym", PARAPHRASE)]
    return numbers, Corpus(
        RaggedArray.from_lists(rows),
        RaggedArray.from_lists(phrases),
        np.array([word in functions for word in ids], bool),
        np.fromiter(stems, np.int32),
        RaggedArray.from_lists(_synsets(place, ids) if "synonym" in used else [[]] * len(ids)),
        RaggedArray.from_lists(paraphrases),
        np.array(entries, np.int32),
        np.array(slots, np.int32),
    )


@cache
def _stemmer(lang: str) -> Any:  # noqa: ANN401  (an untyped class)
    # The classes in Python, not PyStemmer: their version is pinned.
    name = STEMMERS[lang]
    module = extra_module(f"snowballstemmer.{name.lower()}_stemmer", "METEOR", "coco")
    return getattr(module, f"{name}Stemmer")()


def _stems(lang: str, words: Iterable[str]) -> list[int]:
    stem, ids = _stemmer(lang).stemWord, dict[str, int]()
    return [ids.setdefault(stem(word), len(ids)) for word in words]


def _synsets(place: Path, words: Iterable[str]) -> list[list[int]]:
    known, ids = data.synonyms(place), dict[str, int]()
    phrases = []
    for word in words:
        names = {name for lemma in _lemmas(word, known) for name in known.synsets.get(lemma, ())}
        phrases.append(sorted(ids.setdefault(name, len(ids)) for name in names))
    return phrases


def _lemmas(word: str, known: data.Synonyms) -> list[str]:
    if word in known.lemmas:
        return [word, *known.lemmas[word]]
    if len(word) > 2:
        for ending, replacement in DETACHMENT:
            lemma = word.removesuffix(ending) + replacement
            if word.endswith(ending) and lemma in known.synsets and not (ending == "s" and word.endswith("ss")):
                return [word, lemma]
    return [word]


def _paraphrases(table: Path, texts: Sequence[Sequence[str]]) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Find the entries of the table whose phrases are both in the texts.

    The results are the phrases of each text, the paraphrases of each phrase, and the places of these entries in the
    table.
    """
    encoded = [[word.encode() for word in text] for text in texts]
    listed_phrases = {phrase for text in encoded for _, _, phrase in _phrases(text)}
    ids: dict[bytes, int] = {}
    listed: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for entry, pair in enumerate(data.paraphrases(table, listed_phrases)):
        phrase, paraphrase = (ids.setdefault(text, len(ids)) for text in pair)
        listed[phrase].append((paraphrase, entry))
    del listed_phrases
    phrases = [
        [value for first, length, phrase in _phrases(text) if phrase in ids for value in (first, length, ids[phrase])]
        for text in encoded
    ]
    rows = [sorted(listed[number]) for number in range(len(ids))]
    return phrases, [[number for number, _ in row] for row in rows], [entry for row in rows for _, entry in row]


def _phrases(text: Sequence[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Yield first word, number of words and text of the phrases, from left to right, the shortest first."""
    for first, phrase in enumerate(text):
        yield first, 1, phrase
        for length, word in enumerate(text[first + 1 : first + LONGEST_PHRASE], 2):
            phrase += b" " + word
            yield first, length, phrase


QUOTES = str.maketrans("`‘’“”", "'''\"\"")
CONTROL = "".join(map(chr, range(33)))
SIMPLE = re.compile("[a-z ]*")


class Normaliser:
    """Normalisation of sentences in one language."""

    def __init__(self, lang: str, prefixes: Mapping[str, bool]) -> None:
        """Prepare the rules. Abbreviations have a full stop that belongs to them; true if only before digits."""
        apostrophes = _RULES["apostrophes"]
        rules = [*_RULES["steps"], *apostrophes.get(lang, apostrophes["others"])]
        self._steps = [
            (re.compile(pattern.replace("WORD", "0-9LETTERS").replace("LETTERS", LETTERS)), replacement)
            for pattern, replacement in rules
        ]
        self._prefixes = prefixes
        self._letter = re.compile(f"[{LETTERS}]")

    def __call__(self, sentence: str) -> list[str]:
        """Return the normalised words of a sentence."""
        if SIMPLE.fullmatch(sentence):
            return sentence.split()
        text = f" {sentence.strip(CONTROL).translate(QUOTES)} "
        for pattern, replacement in self._steps:
            text = pattern.sub(replacement, text)
        words = [word for word in text.split(" ") if word]
        parts: list[str] = []
        for word, following in zip(words, [*words[1:], ""], strict=True):
            parts += self._full_stop(word, following) if word[-1] == "." else [word]
        return " ".join(parts).lower().split(" ") if parts else []

    def _full_stop(self, word: str, following: str) -> list[str]:
        """Decide whether the full stop at the end of a word belongs to it."""
        if not word.strip("."):
            return [word]
        prefix = word[:-1]
        if "." in prefix and self._letter.search(prefix):
            return [word.replace(".", "")]  # U.S.: us
        only_before_digits = self._prefixes.get(prefix)
        if only_before_digits is False or "a" <= following[:1] <= "z":
            return [word]
        return [word] if only_before_digits and "0" <= following[:1] <= "9" else [prefix, "."]
