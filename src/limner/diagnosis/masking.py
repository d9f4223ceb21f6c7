"""Hiding words of the source sentence, so that only the picture can tell what they were.

After Caglayan et al. (2019), "Probing the Need for ImageFeatures Context in Multimodal Machine Translation", who hide colours
("colour deprivation") and the end of the sentence ("progressive masking"). There the model learned from sentences with
hidden words as well; here whatever was learned is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from limner.data.readers.corpus_files import read_lines
from limner.data.readers.item_builder import SourceLocation
from limner.errors import CollectionError, SettingsError
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS

_STEMS = {
    "en": ("black", "white", "red", "green", "yellow", "blue", "brown", "orange", "pink", "purple violet", "grey gray"),
    "de": (
        "schwarz", "weiß", "rot", "grün", "gelb", "blau", "braun", "orang orangen orangefarben",
        "rosa rosafarben pink pinkfarben", "lila lilafarben violett", "grau",
    ),
    "fr": (
        "noir noire", "blanc blanche", "rouge", "vert verte", "jaune", "bleu bleue", "brun brune marron", "orange",
        "rose", "violet violette pourpre", "gris grise",
    ),
    "cs": (
        "čern", "bíl", "červen", "zelen", "žlut", "modr modř", "hněd", "oranžov", "růžov", "fialov", "šed šediv",
    ),
}  # fmt: skip
"""The eleven basic colour terms of Berlin and Kay (1969), at the same place in every language."""
_PREFIXES = {"de": ("", "hell", "dunkel"), "cs": ("", "světle", "tmavě", "tmavo")}
_ENDINGS = {
    "de": ("", "e", "em", "en", "er", "es"),
    "fr": ("", "s"),
    "cs": ("ý", "á", "é", "í", "ou", "ého", "ému", "ém", "ým", "ých", "ými", "ě"),
}

Forms = frozenset[str]
"""The ways to say one thing, in lower case."""


class Mask(Protocol):
    """What is hidden of a sentence."""

    name: str

    def hides(self, words: Sequence[str]) -> list[bool]:
        """Which words of a source sentence are hidden."""
        ...

    def expects(self, hidden: Sequence[str], reference: Sequence[str]) -> list[Forms]:
        """What a translation should say for the hidden words, as far as its reference says it."""
        ...


class Words:
    """Hides words of a list, which may know their translations."""

    def __init__(self, name: str, translations: Mapping[str, Forms]) -> None:
        """Hide the keys, in any case and as parts of words with hyphens; the values may be empty."""
        self.name, self.translations = name, translations

    def hides(self, words: Sequence[str]) -> list[bool]:
        """Those on the list."""
        return [any(part in self.translations for part in _parts(word)) for word in words]

    def expects(self, hidden: Sequence[str], reference: Sequence[str]) -> list[Forms]:
        """The translations of each hidden word, where the reference says one of them."""
        said = {part for word in reference for part in _parts(word)}
        wanted = (self.translations.get(part, frozenset()) for word in hidden for part in _parts(word))
        return [forms for forms in wanted if forms & said]


class LastWords:
    """Hides the end of the sentence, but for its signs."""

    def __init__(self, count: int) -> None:
        self.name, self.count = f"last:{count}", count

    def hides(self, words: Sequence[str]) -> list[bool]:
        """The last words that have a letter or a number."""
        chosen = set(_last(words, self.count))
        return [row in chosen for row in range(len(words))]

    def expects(self, hidden: Sequence[str], reference: Sequence[str]) -> list[Forms]:
        """As many of the last words of the reference; languages of another order say other things there."""
        return [frozenset({reference[row].casefold()}) for row in _last(reference, len(hidden))]


class Hiding(Tokenizer):
    """A source tokenizer that puts one `<unk>` in place of every hidden word, of however many pieces it is."""

    def __init__(self, tokenizer: Tokenizer, mask: Mask) -> None:
        super().__init__(tokenizer._inner, tokenizer.settings, tokenizer.splitter)
        self.mask = mask

    def encode(self, text: str) -> list[int]:
        """Ids of a sentence, without start and end signs."""
        words = self.words(text)
        return [
            piece
            for word, hidden in zip(words, self.mask.hides(words), strict=True)
            for piece in ((SPECIAL_TOKENS.unk,) if hidden else self.encode_word(word))
        ]


def read_mask(name: str, source: str, target: str) -> Mask:
    """The mask of a name.

    Args:
        name: 'colours'; 'last:3' for the last three words; or a file with a word a line, and after a tab, where they
            are known, its translations with blanks between them.
        source: language of the sentences.
        target: language they are translated to.

    Raises:
        SettingsError: there is no such mask, or no list of colours in the language.
        CollectionError: the file cannot be read.
    """
    if name == "colours":
        return Words(name, _colours(source, target))
    kind, separator, count = name.partition(":")
    if kind == "last" and separator:
        if not count.isdecimal() or int(count) < 1:
            raise SettingsError(f"mask '{name}': how many words? Expected last:1, last:2, …")
        return LastWords(int(count))
    if not Path(name).is_file():
        raise SettingsError(
            f"mask '{name}': expected 'colours', 'last:3' or a file of words, and there is no such file"
        )
    return Words(name, _read_words(Path(name)))


def recovered(expected: Sequence[Forms], said: Sequence[str]) -> int:
    """How many of the expected words a translation says; each of its words is counted once."""
    left = Counter(part for word in said for part in _parts(word))
    found = 0
    for forms in expected:
        form = next((form for form in forms if left[form]), None)
        if form is not None:
            left[form] -= 1
            found += 1
    return found


def _colours(source: str, target: str) -> dict[str, Forms]:
    if source not in _STEMS:
        raise SettingsError(
            f"mask 'colours': no list of colours in '{source}', only in {', '.join(_STEMS)}; give a file of words"
        )
    there = [_colour_forms(target, stems) for stems in _STEMS.get(target, [""] * len(_STEMS[source]))]
    return {
        form: translations
        for stems, translations in zip(_STEMS[source], there, strict=True)
        for form in _colour_forms(source, stems)
    }


def _colour_forms(lang: str, stems: str) -> Forms:
    return frozenset(
        f"{prefix}{stem}{ending}".casefold()
        for stem in stems.split()
        for prefix in _PREFIXES.get(lang, ("",))
        for ending in _ENDINGS.get(lang, ("",))
    )


def _read_words(path: Path) -> dict[str, Forms]:
    known: dict[str, Forms] = {}
    for number, line in enumerate(read_lines(path), start=1):
        word, _, translations = line.partition("\t")
        if len(word.split()) > 1:
            raise CollectionError(
                f"{SourceLocation(path, number)}: '{word}' is several words; expected one, and its translations after a tab"
            )
        if word.strip():
            known[word.strip().casefold()] = frozenset(translations.casefold().split())
    return known


def _parts(word: str) -> list[str]:
    """A word, or what hyphens join: 'light-blue' is blue."""
    return list(dict.fromkeys([word.casefold(), *word.casefold().split("-")]))


def _last(words: Sequence[str], count: int) -> list[int]:
    return [row for row, word in enumerate(words) if any(sign.isalnum() for sign in word)][-count:]
