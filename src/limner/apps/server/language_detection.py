"""The language of a text, among the languages of the served models.

py3langid classifies byte n-grams by naive Bayes; its model is part of the package and is read at the first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from limner.errors import MissingExtraError

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

MAX_CHARACTERS = 2_000
"""Characters of a text that are read."""
_NAMES = {
    "ar": "Arabic",
    "ca": "Catalan",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fi": "Finnish",
    "fr": "French",
    "hi": "Hindi",
    "hu": "Hungarian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sv": "Swedish",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "vi": "Vietnamese",
    "zh": "Chinese",
}


class Detection(NamedTuple):
    """A language with the confidence that a text is in it."""

    lang: str
    confidence: float
    """From 0 to 1."""


def language_name(code: str) -> str:
    """Return the English name of a language, or its code."""
    return _NAMES.get(code, code)


def detect_language(text: str, languages: Sequence[str]) -> list[Detection]:
    """Return the languages that a text may be in, the most probable first.

    The confidences add up to one; without letters they are equal. Languages that the detection does not know have 0.

    Raises:
        MissingExtraError: py3langid is not installed.
    """
    identifier = _identifier()
    known = [lang for lang in dict.fromkeys(languages) if lang in identifier.labels]
    unknown = [Detection(lang, 0.0) for lang in dict.fromkeys(languages) if lang not in known]
    if not known:
        return unknown
    scores = _of(tuple(known)).rank(text[:MAX_CHARACTERS])
    return [Detection(lang, float(score)) for lang, score in scores] + unknown


@cache
def _identifier() -> LanguageIdentifier:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise MissingExtraError("detecting languages", "serve") from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@cache
def _of(languages: tuple[str, ...]) -> LanguageIdentifier:
    """Return the classifier of some languages only."""
    from copy import copy

    identifier = copy(_identifier())
    identifier.set_languages(languages)
    return identifier
