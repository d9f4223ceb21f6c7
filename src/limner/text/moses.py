"""Moses normalisation, tokenisation and detokenisation by language, with sacremoses.

Characters are not escaped as HTML entities: an apostrophe remains an apostrophe. sacremoses, whose import takes a third
of the time of torch's, is imported for text that needs it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from limner.errors import SettingsError

LANGUAGES: tuple[str, ...] = (
    "as", "bn", "ca", "cs", "de", "el", "en", "es", "et", "fi", "fr", "ga", "gu", "hi", "hu", "is", "it",
    "kn", "lt", "lv", "ml", "mni", "mr", "nl", "or", "pa", "pl", "pt", "ro", "ru", "sk", "sl", "sv", "ta",
    "tdt", "te", "yue", "zh",
)  # fmt: skip
"""Codes of the languages with Moses rules."""

# Control characters (but not white space), soft hyphen, zero-width space, byte order mark, lone surrogates.
_INVISIBLE = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b\ufeff\ud800-\udfff]")

# Characters that the Moses normaliser replaces; text without them is returned unchanged.
_NORMALISED = re.compile("[()`'\"%:;\u00a0«»´–—‘’‚“”„…]|  |\r")

# Letters, hyphens, commas and a final full stop; tokenised without sacremoses, which is 15 times as fast.
_PLAIN = re.compile(r"[A-Za-zÀ-ÖØ-öø-ž ,-]*\.?")

# Words of letters and hyphens, commas and full stops; detokenised without sacremoses.
_PLAIN_TOKENS = re.compile(r"(?:(?:[A-Za-zÀ-ÖØ-öø-ž-]+|[.,]+)(?: |$))*")

_CLITIC = re.compile(r"(?<=\w) (n't|'(?:s|m|d|ll|re|ve))(?!\w)", re.IGNORECASE)
_CZECH_DASH = re.compile(r"(?<=\w') ([-–]) (?=li(?: |$)|mail)", re.IGNORECASE)


def unsupported_language(lang: str) -> str:
    """Error message for a language without Moses rules."""
    known = ", ".join(LANGUAGES)
    return f"language '{lang}': Moses has no rules for it; expected one of {known}; or set tokenise to 'unicode'"


def clean(text: str) -> str:
    """Compose accents (NFC) and remove invisible characters: NUL, byte order marks, lone surrogates."""
    if text.isascii() and text.isprintable():
        return text
    return unicodedata.normalize("NFC", _INVISIBLE.sub("", text))


def normalise(text: str, lang: str) -> str:
    """Normalise quotes, dashes and spaces as in Moses' normalize-punctuation.perl; SettingsError without rules.

    Clitics of tokenised English text, as in Flickr8k, are attached again ("horse 's" becomes "horse's"), because the
    Moses tokeniser would split "'s" a second time.
    """
    _require_rules(lang)
    text = clean(text)
    if not _NORMALISED.search(text):
        return text.strip()
    text = _moses("PunctNormalizer", lang).normalize(text)
    return _CLITIC.sub(r"\1", text) if lang == "en" else text


def tokenise(text: str, lang: str) -> list[str]:
    """Split normalised text into tokens as in Moses' tokenizer.perl, without escaping; SettingsError without rules."""
    _require_rules(lang)
    if _PLAIN.fullmatch(text):
        words = text.replace(",", " , ").split()
        if not words or words[-1] == "." or words[-1][-1] != ".":
            return words
        if words[-1][:-1] not in _abbreviations(lang):
            words[-1:] = [words[-1][:-1], "."]
            return words
    tokens: list[str] = _moses("Tokenizer", lang).tokenize(text, escape=False)
    return tokens


def detokenise(tokens: Sequence[str], lang: str) -> str:
    """Join tokens to running text as in Moses' detokenizer.perl; the case of the first letter is kept."""
    if lang not in LANGUAGES:
        _require_rules(lang)
    joined = " ".join(tokens)
    if _PLAIN_TOKENS.fullmatch(joined):
        return joined.replace(" ,", ",").replace(" .", ".")
    if lang == "cs":  # sacremoses 0.2 fails on a dash between an apostrophe and "li" or "mail"
        tokens = _CZECH_DASH.sub(r"\1", joined).split(" ")
    text: str = _moses("Detokenizer", lang).detokenize(tokens, unescape=False)
    return text


def _require_rules(lang: str) -> None:
    if lang not in LANGUAGES:
        raise SettingsError(unsupported_language(lang))


@cache
def _moses(kind: str, lang: str) -> Any:  # noqa: ANN401
    """Stateless PunctNormalizer, Tokenizer or Detokenizer of a language."""
    import sacremoses

    return getattr(sacremoses, f"Moses{kind}")(lang)


@cache
def _abbreviations(lang: str) -> frozenset[str]:
    """Return the abbreviations that keep their full stop, from the data of sacremoses without its import."""
    package = find_spec("sacremoses")
    assert package is not None and package.origin is not None, "sacremoses is a dependency"
    file = Path(package.origin).with_name("_data_nonbreaking_prefixes.py")
    spec = spec_from_file_location("nonbreaking_prefixes", file)
    assert spec is not None and spec.loader is not None, "it is a module"
    data = module_from_spec(spec)
    spec.loader.exec_module(data)
    lines = (line.strip() for line in data.NONBREAKING_PREFIXES[f"nonbreaking_prefix.{lang}"].splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))
