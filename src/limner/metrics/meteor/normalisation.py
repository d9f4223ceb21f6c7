"""Normalisation of sentences before METEOR matches them: quotes, punctuation, abbreviations, lower case.

The rules are those of the tokeniser of Moses (Koehn et al., 2007) with simplified quotes and dashes; where METEOR 1.5
(`-norm`) differs from it was found by comparing its output with ours for every character and for random strings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LETTERS = "A-Za-zÀ-ÖØ-öø-žЀ-ԧᴀ-ᵿ"
WORD = f"0-9{LETTERS}"
QUOTES = str.maketrans("`‘’“”", "'''\"\"")
STEPS = [
    ("[\t\v\f \u00a0\u2000-\u200a\u202f\u205f\u3000]+", " "),
    ("''", ' " '),
    ("–", " - "),
    ("--", "-"),
    (rf"[^ {WORD}.'`,\-]", r" \g<0> "),
    (r"\.\.+", r" \g<0> "),
    (rf"([{WORD}.])-([{WORD}])", r"\1 \2"),
    (r"([^0-9]),([^0-9])", r"\1 , \2"),  # "1,000" stays one word
    (r"([0-9]),([^0-9])", r"\1 , \2"),
    (r"([^0-9]),([0-9])", r"\1 , \2"),
]
APOSTROPHES = {
    "en": [  # it's: it 's
        (rf"([^{LETTERS}])'([^{LETTERS}])", r"\1 ' \2"),
        (rf"([^{WORD}])'([{LETTERS}])", r"\1 ' \2"),
        (rf"([{LETTERS}])'([^{LETTERS}])", r"\1 ' \2"),
        (rf"([{LETTERS}])'([{LETTERS}])", r"\1 '\2"),
        ("([0-9])'s", r"\1 's"),
    ],
    "fr": [  # l'eau: l' eau
        (rf"([^{LETTERS}])'([^{LETTERS}])", r"\1 ' \2"),
        (rf"([^{LETTERS}])'([{LETTERS}])", r"\1 ' \2"),
        (rf"([{LETTERS}])'([^{LETTERS}])", r"\1 ' \2"),
        (rf"([{LETTERS}])'([{LETTERS}])", r"\1' \2"),
    ],
}
OTHER_APOSTROPHES = [("'", " ' ")]
CONTROL = "".join(map(chr, range(33)))
SIMPLE = re.compile("[a-z ]*")


class Normaliser:
    """Normalisation of sentences in one language."""

    def __init__(self, lang: str, prefixes: Mapping[str, bool]) -> None:
        """Prepare the rules.

        Args:
            lang: language code.
            prefixes: abbreviations that a full stop belongs to; true if only before digits.
        """
        rules = STEPS + APOSTROPHES.get(lang, OTHER_APOSTROPHES)
        self._steps = [(re.compile(pattern), replacement) for pattern, replacement in rules]
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
