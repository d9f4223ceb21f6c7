"""The things that a caption names: people, and the nouns of the classifier's classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from limner.runs.trained_model import TrainedModel
from limner.text.class_nouns import LANGUAGES, class_nouns
from limner.text.people_words import PEOPLE_WORDS
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS

ATTRIBUTES = frozenset({"clothing"})
"""Kinds of things that describe the main thing ('a man in a red shirt'), in some languages before it is named."""
SCENES = frozenset({"building", "nature"})
"""Kinds of things that are the main thing only of captions that name no other."""
NO_NOUNS = frozenset({"orange"})
"""Words that are more often no noun, such as colours."""


class NamedThing(NamedTuple):
    """A thing that a caption names."""

    word: str
    rank: int
    """0 for a thing that may be the main thing, 1 for a scene, 2 for what describes other things."""


class CaptionNouns:
    """Finds the known nouns of a caption by its tokens."""

    def __init__(self, tokenizer: Tokenizer, words: Sequence[NamedThing]) -> None:
        """Look up words and phrases.

        Args:
            tokenizer: vocabulary of the captions.
            words: nouns; the first of several with the same spelling counts.
        """
        self._longest: dict[int, list[tuple[tuple[int, ...], NamedThing]]] = {}
        for one in words:
            tokens = tuple(tokenizer.encode(one.word))
            if tokens and SPECIAL_TOKENS.unk not in tokens:
                self._longest.setdefault(tokens[0], []).append((tokens, one))
        for entries in self._longest.values():
            entries.sort(key=lambda entry: -len(entry[0]))  # stable: the first of one length stays first

    @classmethod
    def of(cls, model: TrainedModel) -> Self:
        """Create the nouns of the language of a captioner; English ones where there are none of it."""
        lang = model.recipe.data.lang
        lang = lang if lang in LANGUAGES else "en"
        people = [NamedThing(word, 0) for word in PEOPLE_WORDS[lang]]
        things = [
            NamedThing(word, 2 if noun.kind in ATTRIBUTES else int(noun.kind in SCENES))
            for noun in class_nouns(lang)
            for word in noun.words
            if word not in NO_NOUNS
        ]
        return cls(model.tokenizer, [*people, *things])

    @property
    def single(self) -> tuple[str, ...]:
        """Nouns that are one token, for captions that have each of them once at most."""
        entries = (entry for own in self._longest.values() for entry in own)
        return tuple(sorted({one.word for tokens, one in entries if len(tokens) == 1}))

    def of_caption(self, tokens: Sequence[int]) -> list[NamedThing]:
        """Return the nouns of a caption in the order of its words; of several at one place the longest."""
        found, position = list[NamedThing](), 0
        while position < len(tokens):
            entries = self._longest.get(tokens[position], ())
            length, one = next(
                ((len(own), one) for own, one in entries if tuple(tokens[position : position + len(own)]) == own),
                (1, None),
            )
            if one is not None:
                found.append(one)
            position += length
        return found

    def main(self, tokens: Sequence[int]) -> str | None:
        """Return the noun of the main thing of a caption: the first one, scenes and clothing after others."""
        found = self.of_caption(tokens)
        return min(found, key=lambda one: one.rank).word if found else None
