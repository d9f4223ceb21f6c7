"""Compound words cut into the words they are made of, by how often those stand alone; and put together again.

Koehn and Knight (2003), "Empirical Methods for Compound Splitting": of all ways to cut a word into known words, with a
linking "s" or "es" between two, take the one with the highest geometric mean of the parts' counts; leaving it whole is
one of the ways. As in Moses' compound-splitter.perl, a part is written as that word most often is, so that the
"Spieler" of a "Fußballspieler" is the same entry of a vocabulary as any other "Spieler", and frequent words stay whole.

Unlike there, nothing is lost. Between two parts stands a token of its own, the joiner, with the linking letters:

    Wasserball -> Wasser ￭ Ball      Geburtstag -> Geburt ￭s Tag      Großstadt -> groß ￭ Stadt

Joining needs no dictionary: parts after the first are written small, and the first takes the case of the last, since
in German the last part says what the whole is. A word that would be spelt otherwise then is left whole, and so is one
of anything but letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

from pydantic import Field, NonNegativeInt, PositiveInt

from limner.settings import Settings

JOINER = "￭"
"""Begins the token between two parts; the linking letters follow it."""

_LIKE_A_JOINER = "■"  # to Unicode, the full-width form of the same sign
_LONGEST = 100  # letters; no dictionary has a longer word, and a line of noise must not take minutes


class CompoundSettings(Settings):
    """Which words are cut, and into what; the names are those of Moses' options."""

    min_size: PositiveInt = Field(default=4)
    """Letters a part has at least, without those that link."""
    min_count: PositiveInt = Field(default=5)
    """How often a part stands alone, at least, in the training sentences."""
    max_count: PositiveInt = Field(default=5)
    """A word seen this often is left whole."""
    fillers: tuple[str, ...] = Field(default=("", "s", "es"))
    """Letters that may link two parts, in lower case."""


class CompoundSplitter(Settings):
    """What was learned from the training sentences: plain values, to be saved with the vocabulary."""

    settings: CompoundSettings
    words: dict[str, tuple[str, NonNegativeInt]]
    """Words that are parts or stay whole: in lower case, as most often written, and how often they are written so."""

    @classmethod
    def learn(cls, counts: Mapping[str, int], settings: CompoundSettings) -> Self:
        """Take in how often each word stands in the training sentences.

        Of one word's spellings in large and small letters the most frequent counts, as Moses has it; of two equally
        frequent ones, the first by their letters.
        """
        words: dict[str, tuple[str, int]] = {}
        for form, count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
            if count >= min(settings.min_count, settings.max_count) and form.isalpha():
                words.setdefault(form.lower(), (form, count))
        return cls(settings=settings, words=words)

    @property
    def joiners(self) -> tuple[str, ...]:
        """All that may stand between two parts."""
        return tuple(JOINER + filler for filler in self.settings.fillers)

    def split(self, word: str) -> tuple[str, ...]:
        """Parts of a word with the joiners between them, or the word alone; `join` gives it back."""
        if not word.isalpha() or len(word) > _LONGEST:
            return (word,)
        lowered = word.lower()
        if lowered in self.words and self.words[lowered][1] >= self.settings.max_count:
            return (word,)
        tokens = self._best(lowered)
        return tokens if join(tokens) == [word] else (word,)

    def _best(self, word: str) -> tuple[str, ...]:
        """The way to cut a word in lower case with the highest geometric mean of counts; of equals, fewest parts.

        Empty when there is none. A word rarer than `min_count` need not compete: every mean is above its count.
        """
        # For each place, by the number of parts up to there: the product of their counts, and the tokens.
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
            if product**best > best_product**parts:  # the means without their roots: whole numbers, no rounding
                best, best_product, best_tokens = parts, product, tokens
        return best_tokens

    def _parts(self, word: str, start: int) -> Iterator[tuple[tuple[str, ...], str, int]]:
        """Parts that may begin at a place, each with the joiner before it and the place where it ends."""
        for filler in self.settings.fillers if start else ("",):
            if word.startswith(filler, start):
                first = start + len(filler)
                for end in range(first + self.settings.min_size, len(word) + 1):
                    part = word[first:end]
                    if part in self.words and self.words[part][1] >= self.settings.min_count:
                        yield ((JOINER + filler,) if start else ()), part, end


def join(tokens: Iterable[str]) -> list[str]:
    """Words out of parts and joiners, be they cut by a `CompoundSplitter` or said by a model.

    A joiner with no part before it or none after it joins nothing and is left out.
    """
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
    return [_joined(word) for word in words]


def replace_joiners(text: str) -> str:
    """A text in which no joiner stands before words are cut; one that does becomes the sign that looks like it."""
    return text.replace(JOINER, _LIKE_A_JOINER)


def _joined(parts: Sequence[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    first, *others, last = parts
    if last[:1].isupper():
        first = first[:1].upper() + first[1:]
    elif last[:1].islower():
        first = first[:1].lower() + first[1:]
    return first + "".join(part[:1].lower() + part[1:] for part in (*others, last))
