"""Masks of source words, whose translation then depends on the image.

They follow Caglayan et al. (2019), "Probing the Need for Visual Context in Multimodal Machine Translation": colour
deprivation, entity masking and progressive masking, of the training sentences (`training.source_masks`) and of the
input of a trained model (`limner diagnose --mask`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from limner.bounds import Length, bounds_of
from limner.data.readers.corpus_files import read_lines
from limner.data.readers.item_builder import SourceLocation
from limner.errors import CollectionError, SettingsError
from limner.files.yaml_text import read_resource
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS

_COLOURS: dict[str, dict[str, list[str]]] = read_resource("limner.data", "colours.yaml")
"""Stems, prefixes and endings of the basic colour terms by language, each with the terms in the same order."""

WordForms = frozenset[str]  # case-folded inflected forms and synonyms of one word


class WordListMask:
    """Mask of the words of a list, whose translations may be known."""

    def __init__(self, name: str, translations: Mapping[str, WordForms]) -> None:
        """Create a mask; translations, possibly none, by case-folded source word or part of a hyphenated word."""
        self.name, self.translations = name, translations

    def select(self, words: Sequence[str]) -> list[bool]:
        """Select the words that are on the list."""
        return [any(part in self.translations for part in _word_parts(word)) for word in words]

    def expected_words(self, masked: Sequence[str], reference: Sequence[str]) -> list[WordForms]:
        """Return, for each masked word whose translation is in the reference, its translations."""
        reference_parts = {part for word in reference for part in _word_parts(word)}
        translations = (self.translations.get(part, frozenset()) for word in masked for part in _word_parts(word))
        return [forms for forms in translations if forms & reference_parts]


class LastWordsMask:
    """Mask of the last words of a sentence; punctuation is kept."""

    def __init__(self, count: int) -> None:
        """Create a mask of the last `count` words."""
        self.name, self.count = f"last:{count}", count

    def select(self, words: Sequence[str]) -> list[bool]:
        """Select the last words that contain a letter or a digit."""
        selected = set(_last_words(words, self.count))
        return [index in selected for index in range(len(words))]

    def expected_words(self, masked: Sequence[str], reference: Sequence[str]) -> list[WordForms]:
        """Return the last words of the reference, as many as are masked; the word order of the languages may differ."""
        return [frozenset({reference[index].casefold()}) for index in _last_words(reference, len(masked))]


SourceMask = WordListMask | LastWordsMask  # a rule that selects source words to be masked


class MaskedTokenizer(Tokenizer):
    """A source tokenizer that encodes every masked word as a single `<unk>` token."""

    def __init__(self, tokenizer: Tokenizer, mask: SourceMask) -> None:
        """Apply a mask to the sentences of a tokenizer."""
        super().__init__(tokenizer._inner, tokenizer.settings, tokenizer.splitter)
        self.mask = mask

    def encode(self, text: str) -> list[int]:
        """Encode a sentence as token ids, without special tokens at its ends."""
        words = self.words(text)
        return [
            piece
            for word, masked in zip(words, self.mask.select(words), strict=True)
            for piece in ((SPECIAL_TOKENS.unk,) if masked else self.encode_word(word))
        ]


def create_mask(name: str, source: str, target: str) -> SourceMask:
    """Create a mask from its name.

    The name is 'colours'; 'last:3' for the last three words; or the path of a file with one source word a line,
    followed by a tab and its translations, separated by spaces, where they are known.
    """
    if name == "colours":
        return WordListMask(name, _colours(source, target))
    kind, separator, count = name.partition(":")
    if kind == "last" and separator:
        try:
            return LastWordsMask(int(bounds_of(Length).parse(count)))
        except ValueError as error:
            raise SettingsError(f"mask 'last:N': number of words: {error}; try 'last:3'") from None
    if not Path(name).is_file():
        raise SettingsError(f"mask '{name}': expected 'colours', 'last:3' or the path of a word list; no such file")
    return WordListMask(name, _read_word_list(Path(name)))


def count_recovered(expected: Sequence[WordForms], hypothesis: Sequence[str]) -> int:
    """Count the expected words that occur in a hypothesis; each word of the hypothesis is counted once."""
    available = Counter(part for word in hypothesis for part in _word_parts(word))
    recovered = 0
    for forms in expected:
        form = next((form for form in forms if available[form]), None)
        if form is not None:
            available[form] -= 1
            recovered += 1
    return recovered


def _colours(source: str, target: str) -> dict[str, WordForms]:
    """The translations of all forms of the source language's colour terms."""
    if source not in _COLOURS:
        raise SettingsError(
            f"mask 'colours': no list of colours for '{source}', only for {', '.join(_COLOURS)}; use a word list"
        )
    terms = _COLOURS[source]["stems"]
    targets = _COLOURS.get(target, {}).get("stems", [""] * len(terms))
    return {
        form: _colour_forms(target, translated)
        for stems, translated in zip(terms, targets, strict=True)
        for form in _colour_forms(source, stems)
    }


def _colour_forms(lang: str, stems: str) -> WordForms:
    parts = _COLOURS.get(lang, {})
    affixes = [*product(parts.get("prefixes", [""]), parts.get("endings", [""]))]
    return frozenset(f"{prefix}{stem}{end}".casefold() for stem in stems.split() for prefix, end in affixes)


def _read_word_list(path: Path) -> dict[str, WordForms]:
    translations: dict[str, WordForms] = {}
    for number, line in enumerate(read_lines(path), start=1):
        word, _, translated = line.partition("\t")
        if len(word.split()) > 1:
            raise CollectionError(
                f"{SourceLocation(path, number)}: expected one source word before the tab, got '{word}'"
            )
        if word.strip():
            translations[word.strip().casefold()] = frozenset(translated.casefold().split())
    return translations


def _word_parts(word: str) -> list[str]:
    """A case-folded word, and its parts if it is hyphenated: 'light-blue', 'light', 'blue'."""
    return list(dict.fromkeys([word.casefold(), *word.casefold().split("-")]))


def _last_words(words: Sequence[str], count: int) -> list[int]:
    """Indices of the last words that contain a letter or a digit."""
    return [index for index, word in enumerate(words) if any(character.isalnum() for character in word)][-count:]
