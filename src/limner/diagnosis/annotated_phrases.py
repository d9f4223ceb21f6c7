"""Sentences whose annotated phrases have boxes, with the positions of the phrases in the model's words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from limner.data.examples import Item, Phrase, Sentence
from limner.data.languages import SourceLanguage, TargetLanguage
from limner.inference.explain import words_of
from limner.text.tokenizer import Tokenizer

Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels of the stored image."""

WITHOUT_BOX = "phrases whose entity has no box"
NOT_ALIGNED = "phrases that do not begin and end at words of the tokenizer"


class PhraseWords(NamedTuple):
    """Annotated phrase with its words and boxes."""

    phrase: Phrase
    words: range
    """Positions of its words in `Tokenizer.words` of the sentence."""
    boxes: tuple[Box, ...]
    """Distinct boxes of its entity, at least one."""


class PhraseSentence(NamedTuple):
    """Sentence with annotated phrases, as a target of the model."""

    item: Item
    text: str
    source: str | None
    """Source sentence of a translation model."""
    phrases: tuple[PhraseWords, ...]
    """Phrases with boxes, at least one."""


def find_phrases(
    items: Sequence[Item], target: TargetLanguage, source: SourceLanguage | None
) -> tuple[list[PhraseSentence], Counter[str]]:
    """Find the sentences in the target language that have phrases with boxes.

    Args:
        items: items with an image.
        target: language and tokenizer of the sentences.
        source: source language of a translation model: only sentences with a human-written source sentence are used,
            once for each source sentence.

    Returns:
        The sentences, and the number of phrases without a box or without an alignment, by reason.
    """
    sentences: list[PhraseSentence] = []
    excluded: Counter[str] = Counter()
    for item in items:
        for source_text, sentence in _targets(item, target.lang, source):
            phrases = []
            for phrase in sentence.phrases:
                boxes, words = item.boxes(phrase.entity), align_phrase(phrase, sentence.text, target.tokenizer)
                if not boxes:
                    excluded[WITHOUT_BOX] += 1
                elif words is None:
                    excluded[NOT_ALIGNED] += 1
                else:
                    phrases.append(PhraseWords(phrase, words, tuple(boxes)))
            if phrases:
                sentences.append(PhraseSentence(item, sentence.text, source_text, tuple(phrases)))
    return sentences, excluded


def _targets(item: Item, lang: str, source: SourceLanguage | None) -> list[tuple[str | None, Sentence]]:
    """Human-written sentences of an item in a language, each with its human-written source sentence."""
    if source is None:
        return [(None, one) for one in item.sentences if one.lang == lang and not one.generated_by]
    return [(before.text, after) for before, after in item.pairs(source.lang, lang) if not before.generated_by]


def align_phrase(phrase: Phrase, text: str, tokenizer: Tokenizer) -> range | None:
    """Find the words of a tokenizer that a phrase consists of.

    The sentence is tokenised up to the beginning and up to the end of the phrase; the words in between are those of the
    phrase. None if the tokenizer joins or splits words differently in the whole sentence, or omits the phrase.

    Args:
        phrase: phrase, whose position refers to the tokens of the sentence split at whitespace.
        text: sentence.
        tokenizer: tokenizer of the model.
    """
    tokens, words = text.split(), tokenizer.words(text)
    if len(words_of(tokenizer, tokenizer.encode(text))) != len(words):  # a word without a token of its own
        return None
    end = phrase.first + len(phrase.text.split())
    before, through = (tokenizer.words(" ".join(tokens[:position])) for position in (phrase.first, end))
    if words[: len(before)] != before or words[: len(through)] != through or len(through) <= len(before):
        return None
    return range(len(before), len(through))
