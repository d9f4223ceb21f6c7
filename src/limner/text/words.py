"""Splitting of sentences into words, and its settings."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Literal, Self

from pydantic import model_validator

from limner.bounds import Count
from limner.settings import Settings
from limner.text import compounds, moses, scripts
from limner.text.vocab import SPECIAL_TOKEN_STRINGS

_WORD_CATEGORIES = ("L", "M", "N", "So")  # Unicode categories: letters, marks, numbers, pictographs


class TextSettings(Settings):
    """Splitting of sentences into words, and size and level of the vocabulary."""

    lang: str = "en"
    """Language code of the Moses rules (en, de, fr, cs, …). Recipes set it once as `data.lang`."""
    tokenise: Literal["auto", "moses", "unicode", "space"] = "auto"
    """Splitting into words: 'moses' normalises and tokenises with the rules of the language; 'unicode' separates words
    and punctuation by the categories of Unicode, and splits scripts without spaces between words (Han, kana, Thai, Lao,
    Khmer, Myanmar) into characters; 'space' splits tokenised text at white space. 'auto' is resolved when the
    vocabulary is built: 'unicode' for scripts without spaces and for languages without Moses rules, else 'moses'."""
    lowercase: bool = True
    """Whether words are converted to lower case."""
    punctuation: bool = True
    """Whether tokens without a letter, number or pictograph are kept; tokens such as "T-shirt" and "'s" always are."""
    split_compounds: bool = False
    """Whether compound words are represented by their parts only (`limner.text.compounds`), as in papers on German;
    BPE subwords are then learned from the parts. Decoded text and metrics use whole words."""
    level: Literal["word", "bpe"] = "word"
    """Vocabulary entries: whole words, or subwords from byte-pair encoding (Sennrich et al., 2016). With tokenise
    'unicode', the words of scripts without spaces are characters, and subwords are learned from the text between
    punctuation, spaces and words of other scripts."""
    min_count: Count = 1
    """Minimum frequency of a word (BPE: of a pair to merge) to receive a vocabulary entry."""
    max_size: Count | None = None
    """Maximum number of vocabulary entries, special tokens included, most frequent first; with BPE, the size at
    which merging stops. None for no limit."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.tokenise == "moses" and self.lang not in moses.LANGUAGES:
            raise ValueError(moses.unsupported_language(self.lang))
        if self.level == "bpe" and self.max_size is None:
            raise ValueError("level 'bpe' needs max_size, for example 8000")
        if self.max_size is not None and self.max_size <= len(SPECIAL_TOKEN_STRINGS):
            raise ValueError(f"max_size must be above {len(SPECIAL_TOKEN_STRINGS)}, the number of special tokens")
        return self

    @property
    def signature(self) -> str:
        """Settings of the words that change the value of a metric of tokens: tokenisation, case and punctuation."""
        case = "lowercase" if self.lowercase else "cased"
        return f"words:{self.tokenise},{case},{'punctuation' if self.punctuation else 'no-punctuation'}"

    @property
    def units(self) -> str:
        """Units of the vocabulary, on which a perplexity depends; empty for the words themselves."""
        return ",".join(["bpe"] * (self.level == "bpe") + ["compounds split"] * self.split_compounds)

    def resolve(self, sentences: Iterable[str]) -> Self:
        """Replace tokenise 'auto' by the rules for the language and the script of sentences."""
        if self.tokenise != "auto":
            return self
        by_unicode = self.lang not in moses.LANGUAGES or scripts.has_no_spaces(sentences)
        return self.model_copy(update={"tokenise": "unicode" if by_unicode else "moses"})


def split_words(text: str, settings: TextSettings) -> list[str]:
    """Split a sentence into words; compounds stay whole, and neither vocabulary nor special tokens are applied.

    Tokenise 'auto' is resolved for the sentence alone; tokenizers have resolved it for their training sentences.
    """
    if settings.tokenise == "auto":
        settings = settings.resolve([text])
    if settings.split_compounds:
        text = text.replace(compounds.JOINER, compounds.JOINER_REPLACEMENT)
    if settings.tokenise == "moses":
        words = moses.tokenise(moses.normalise(text, settings.lang), settings.lang)
    elif settings.tokenise == "unicode":
        words = scripts.split(moses.clean(text))
    else:
        words = moses.clean(text).split()
    if settings.lowercase:
        words = [word.lower() for word in words]
    if not settings.punctuation:
        words = [word for word in words if not _is_punctuation(word)]
    return words


def _is_punctuation(word: str) -> bool:
    return not word.isalnum() and not any(
        unicodedata.category(character).startswith(_WORD_CATEGORIES) for character in word
    )
