"""Writing systems: text without spaces between words, and splitting and joining of text in any script.

`split` separates words, numbers and punctuation by the categories of Unicode, without rules of a language; scripts
without spaces between words (Han, kana, Thai, Lao, Khmer, Myanmar) are split into characters. Combining marks stay with
their base, so that an accent or an Arabic or Thai vowel sign is never a token of its own.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

MIN_SHARE = 0.1
"""Share of the letters of a corpus in scripts without spaces from which its text is split into characters."""

UNSPACED_LANGUAGES = ("zh", "yue", "wuu", "ja", "th", "lo", "km", "my")
"""Codes of languages whose scripts have no spaces between words."""

# Blocks of Unicode; their digits, punctuation and marks are distinguished by category.
_UNSPACED = re.compile(
    "["
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\U0001aff0-\U0001b16f\U00020000-\U000323af"  # rare kana and Han
    "\u3040-\u3096\u3099-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # kana
    "\u3100-\u312f\u31a0-\u31bf"  # bopomofo
    "\u0e01-\u0e3e\u0e40-\u0e4e"  # Thai without digits and punctuation
    "\u0e81-\u0ece\u0edc-\u0edf"  # Lao
    "\u1780-\u17d3\u17d7\u17dc\u17dd"  # Khmer
    "\u1000-\u103f\u1050-\u109f\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa7f"  # Myanmar
    "]"
)
_STACKERS = "\u1039\u17d2"
"""Signs that put the next consonant below the previous one (Myanmar, Khmer): both are one character to the reader."""
_JOINERS = "\u200c\u200d"
"""Zero-width joiner and non-joiner, parts of words in Persian and of emoji."""
_IN_NUMBERS = ".,:٫٬"
_IN_WORDS = "'’-·־"
_WIDE_PUNCTUATION = re.compile("[\u3000-\u3020\u3030\u303d\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]")
_CLOSING = frozenset(".,:;!?%)]}»”…،؛؟۔٪।॥")
_OPENING = frozenset("([{«“„‚¿¡#@$£€¥")


def is_unspaced(text: str) -> bool:
    """Whether text starts with a letter of a script without spaces between words."""
    return _UNSPACED.match(text) is not None


def has_no_spaces(sentences: Iterable[str]) -> bool:
    """Whether at least `MIN_SHARE` of the letters of the sentences are of scripts without spaces between words."""
    unspaced = letters = 0
    for sentence in sentences:
        if sentence.isascii():
            letters += len(sentence)
            continue
        unspaced += len(_UNSPACED.findall(sentence))
        letters += sum(map(str.isalpha, sentence))
    return unspaced > 0 and unspaced >= MIN_SHARE * letters


def characters(text: str) -> Iterator[str]:
    """Split text into characters as a reader counts them: a base with its combining marks, a joined emoji."""
    start = 0
    for position in range(1, len(text) + 1):
        if position == len(text) or not _continues(text, position):
            yield text[start:position]
            start = position


def _continues(text: str, position: int) -> bool:
    character, before = text[position], text[position - 1]
    if before in _STACKERS and is_unspaced(character):
        return True
    if before == _JOINERS[1] and unicodedata.category(character) == "So":
        return True
    return _is_mark(character) or character in _JOINERS or "\U0001f3fb" <= character <= "\U0001f3ff"


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M"


def split_unspaced(word: str) -> list[str]:
    """Split the parts of a word in scripts without spaces into characters; other parts stay whole."""
    if not _UNSPACED.search(word):
        return [word]
    parts: list[str] = []
    previous = True
    for character in characters(word):
        unspaced = is_unspaced(character)
        if parts and not unspaced and not previous:
            parts[-1] += character
        else:
            parts.append(character)
        previous = unspaced
    return parts


def are_characters(tokens: Iterable[str]) -> bool:
    """Whether there are tokens of scripts without spaces, and each is a single character."""
    unspaced = [token for token in set(tokens) if not token.isascii() and _UNSPACED.search(token)]
    return bool(unspaced) and all(len(split_unspaced(token)) == 1 for token in unspaced)


def join_unspaced(words: Iterable[str]) -> list[str]:
    """Join adjacent words of scripts without spaces, the inverse of `split_unspaced`."""
    joined: list[str] = []
    for word in words:
        if joined and is_unspaced(word) and is_unspaced(joined[-1]):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def split(text: str) -> list[str]:
    """Split text of any script into words, numbers and punctuation, and scripts without spaces into characters."""
    tokens: list[str] = []
    for chunk in text.split():
        clusters = list(characters(chunk))
        kinds = [_kind(cluster) for cluster in clusters]
        for index, (cluster, kind) in enumerate(zip(clusters, kinds, strict=True)):
            if index and _attached(clusters, kinds, index):
                tokens[-1] += cluster
            else:
                tokens.append(cluster)
            if kind == "P" and 0 < index < len(kinds) - 1 and _is_inner(cluster, kinds[index - 1], kinds[index + 1]):
                kinds[index] = kinds[index - 1]  # the next letter or digit is attached to this one
    return tokens


def _attached(clusters: Sequence[str], kinds: Sequence[str], index: int) -> bool:
    """Whether a cluster continues the token before it."""
    before, kind = kinds[index - 1], kinds[index]
    if kind == "P":
        inner = index < len(kinds) - 1 and _is_inner(clusters[index], before, kinds[index + 1])
        return inner or (clusters[index] == clusters[index - 1] and clusters[index] in ".-—…")  # an ellipsis, a dash
    return kind in "LN" and before in "LN"


def _is_inner(cluster: str, before: str, after: str) -> bool:
    """Whether punctuation is inside a number (3.5) or a word (don't, T-shirt)."""
    if cluster in _IN_NUMBERS:
        return before == after == "N"
    return cluster in _IN_WORDS and before in "LN" and after in "LN"


def _kind(cluster: str) -> str:
    """Letters L, numbers N, characters U of scripts without spaces, or punctuation and symbols P."""
    if is_unspaced(cluster):
        return "U"
    if cluster[0].isdecimal():
        return "N"
    return "L" if unicodedata.category(cluster[0])[0] in "LM" or cluster == "_" else "P"


def join(tokens: Sequence[str]) -> str:
    """Join tokens of `split` to running text, without spaces beside characters of scripts without spaces."""
    text, attach_next, quote_open = "", True, False
    for token in tokens:
        closing = token[0] in _CLOSING or (token == '"' and quote_open)
        if not (attach_next or closing or _is_wide(token[0])):
            text += " "
        text += token
        after_wide = _is_wide(_base(token)) or (attach_next and text != token and _kind(token) == "P")
        attach_next = after_wide or token in _OPENING or (token == '"' and not quote_open)
        if token == '"':
            quote_open = not quote_open
    return text


def _is_wide(character: str) -> bool:
    """Whether a character has no spaces beside it."""
    return is_unspaced(character) or _WIDE_PUNCTUATION.match(character) is not None


def _base(text: str) -> str:
    """Last character of a text that is not a combining mark."""
    return next((character for character in reversed(text) if not _is_mark(character)), text[-1])
