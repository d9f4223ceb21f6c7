"""Splitting of compound words into their parts, and joining of the parts.

Koehn and Knight (2003), "Empirical Methods for Compound Splitting": of all splits of a word into known words, with a
linking "s" or "es" between two of them, take the split with the highest geometric mean of the frequencies of the parts;
the whole word is one of the candidates. As in Moses' compound-splitter.perl, a part is written in its most frequent
case, so that the "Spieler" of a "Fußballspieler" has the same vocabulary entry as the word "Spieler", and frequent
words stay whole.

Unlike in Moses, splitting is reversible: two parts are separated by a joiner token with the linking letters.

    Wasserball -> Wasser ￭ Ball      Geburtstag -> Geburt ￭s Tag      Großstadt -> groß ￭ Stadt

Joining needs no dictionary: parts after the first are written in lower case, and the first takes the case of the last,
because the last part of a German compound is its head. Words that joining would spell differently, and words with
characters other than letters, stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

from pydantic import Field

from limner.bounds import Count, Length, Total
from limner.settings import Settings

JOINER = "￭"
"""First character of the token between two parts; the linking letters follow."""

JOINER_REPLACEMENT = "■"
"""Replacement of joiners in a text, whose half-width form they are in Unicode."""
_MAX_LENGTH = 100  # letters; bounds the time for a line of noise


class CompoundSettings(Settings):
    """Conditions for splitting a word, named like the options of Moses."""

    min_size: Length = 4
    """Minimum number of letters of a part, without linking letters."""
    min_count: Count = 5
    """Minimum frequency of a part as a separate word in the training sentences."""
    max_count: Count = 5
    """Frequency from which on a word is not split."""
    fillers: tuple[str, ...] = Field(default=("", "s", "es"))
    """Linking letters between two parts, in lower case."""


class CompoundSplitter(Settings):
    """Compound splitter with word frequencies of the training sentences; stored with the vocabulary."""

    settings: CompoundSettings
    words: dict[str, tuple[str, Total]]
    """Most frequent spelling and its frequency, by lower-case word."""

    @classmethod
    def learn(cls, counts: Mapping[str, int], settings: CompoundSettings) -> Self:
        """Create a splitter from the frequencies of words in the training sentences.

        Of the spellings of a word in upper and lower case, the most frequent one is kept, as in Moses; of equally
        frequent spellings, the first in alphabetical order.
        """
        words: dict[str, tuple[str, int]] = {}
        for form, count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
            if count >= min(settings.min_count, settings.max_count) and form.isalpha():
                words.setdefault(form.lower(), (form, count))
        return cls(settings=settings, words=words)

    @property
    def joiners(self) -> tuple[str, ...]:
        """All joiner tokens."""
        return tuple(JOINER + filler for filler in self.settings.fillers)

    def split(self, word: str) -> tuple[str, ...]:
        """Split a word into parts separated by joiner tokens, or return the word alone; `join` is the inverse."""
        if not word.isalpha() or len(word) > _MAX_LENGTH:
            return (word,)
        lowered = word.lower()
        if lowered in self.words and self.words[lowered][1] >= self.settings.max_count:
            return (word,)
        tokens = self._best_split(lowered)
        return tokens if join(tokens) == [word] else (word,)

    def _best_split(self, word: str) -> tuple[str, ...]:
        """Split of a lower-case word with the highest geometric mean of frequencies; of equal means, the fewest parts.

        Empty if there is no split. A word rarer than `min_count` is no candidate itself: every mean is above its
        frequency.
        """
        # For each position, by number of parts: product of the frequencies, and tokens, of the best split up to it.
        reached: list[dict[int, tuple[int, tuple[str, ...]]]] = [{} for _ in range(len(word) + 1)]
        reached[0][0] = (1, ())
        for start, ways in enumerate(reached):
            if not ways:
                continue
            for joiner, part, end in self._parts(word, start):
                form, count = self.words[part]
                for parts, (product, tokens) in ways.items():
                    if product * count > reached[end].get(parts + 1, (0,))[0]:
                        reached[end][parts + 1] = (product * count, (*tokens, *joiner, form))
        best, best_product = 1, 0
        best_tokens: tuple[str, ...] = ()
        for parts, (product, tokens) in sorted(reached[-1].items()):
            if product**best > best_product**parts:  # compares the means in integers, without rounding
                best, best_product, best_tokens = parts, product, tokens
        return best_tokens

    def _parts(self, word: str, start: int) -> Iterator[tuple[tuple[str, ...], str, int]]:
        """Possible parts from a position on, each with the joiner before it and the position of its end."""
        for filler in self.settings.fillers if start else ("",):
            if word.startswith(filler, start):
                first = start + len(filler)
                for end in range(first + self.settings.min_size, len(word) + 1):
                    part = word[first:end]
                    if part in self.words and self.words[part][1] >= self.settings.min_count:
                        yield ((JOINER + filler,) if start else ()), part, end


def join(tokens: Iterable[str]) -> list[str]:
    """Join parts of compounds, of a `CompoundSplitter` or a model, to words; joiners without a part are omitted."""
    words: list[list[str]] = []
    filler: str | None = None
    for token in tokens:
        if token.startswith(JOINER):
            filler = token.removeprefix(JOINER)
            continue
        if filler is None or not words:
            words.append([token])
        else:
            words[-1] += [filler, token]
        filler = None
    return [_join_parts(word) for word in words]


def _join_parts(parts: Sequence[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    first, *middle, last = parts
    if last[:1].isupper():
        first = first[:1].upper() + first[1:]
    elif last[:1].islower():
        first = first[:1].lower() + first[1:]
    return first + "".join(part[:1].lower() + part[1:] for part in (*middle, last))
