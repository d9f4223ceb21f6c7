"""Annotated phrases: their words in the model's sentences, and the locations of a grid that their boxes cover.

Shapes: P phrases, L locations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.data.examples import Item, ItemSentence, Phrase
from limner.data.languages import SourceLanguage, TargetLanguage
from limner.inference.explain import words_of
from limner.text.tokenizer import Tokenizer

Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels of the stored image."""

Weights = NDArray[np.float64]

WITHOUT_BOX = "phrases whose entity has no box"
NOT_ALIGNED = "phrases that do not begin and end at words of the tokenizer"
_TIE = 1e-6  # relative difference below which two weights are both the maximum


class PhraseWords(NamedTuple):
    """Annotated phrase with its words and boxes."""

    phrase: Phrase
    words: range  # positions of its words in `Tokenizer.words` of the sentence
    boxes: tuple[Box, ...]  # distinct boxes of its entity, at least one


class PhraseSentence(NamedTuple):
    """ItemSentence with annotated phrases, as a target of the model."""

    item: Item
    text: str
    source: str | None
    phrases: tuple[PhraseWords, ...]  # phrases with boxes, at least one


def find_phrases(
    items: Sequence[Item], target: TargetLanguage, source: SourceLanguage | None
) -> tuple[list[PhraseSentence], Counter[str]]:
    """Find the sentences in the target language that have phrases with boxes.

    For a translation model, a sentence counts once for each of its human-written source sentences. The second result is
    the number of phrases without a box or without an alignment, by reason.
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


def _targets(item: Item, lang: str, source: SourceLanguage | None) -> list[tuple[str | None, ItemSentence]]:
    """Human-written sentences of an item in a language, each with its human-written source sentence."""
    if source is None:
        return [(None, sentence) for sentence in item.sentences if sentence.lang == lang and not sentence.generated_by]
    return [(before.text, after) for before, after in item.pairs(source.lang, lang) if not before.generated_by]


def align_phrase(phrase: Phrase, text: str, tokenizer: Tokenizer) -> range | None:
    """Find the words of a tokenizer that a phrase consists of.

    The sentence is tokenised up to the beginning and up to the end of the phrase; the words in between are the words of
    the phrase. None if the tokenizer joins or splits words differently in the whole sentence, or omits the phrase.
    """
    tokens, words = text.split(), tokenizer.words(text)
    if len(words_of(tokenizer, tokenizer.encode(text))) != len(words):  # a word without a token of its own
        return None
    end = phrase.first + len(phrase.text.split())
    before, through = (tokenizer.words(" ".join(tokens[:position])) for position in (phrase.first, end))
    if words[: len(before)] != before or words[: len(through)] != through or len(through) <= len(before):
        return None
    return range(len(before), len(through))


class LocationCoverage(NamedTuple):
    """Relation of the locations of a grid to some boxes."""

    inside: Weights  # fraction of each cell inside the union of the boxes, (L,)
    centre_inside: NDArray[np.bool_]  # whether the centre of each cell is inside a box, (L,)


def cover(cells: Weights, boxes: Sequence[Box]) -> LocationCoverage:
    """Compute the fraction of each cell that is inside the union of `boxes`.

    Cells are left, top, right and bottom, (L, 4); boxes left, top, width and height in the same coordinates.
    """
    left, top, right, bottom = (
        np.array(side) for side in zip(*((x, y, x + w, y + h) for x, y, w, h in boxes), strict=True)
    )
    across, down = np.unique([left, right]), np.unique([top, bottom])  # edges of the boxes divide the plane into tiles
    middle_x, middle_y = (across[:-1] + across[1:]) / 2, (down[:-1] + down[1:]) / 2
    in_columns = (left[:, None] <= middle_x) & (middle_x < right[:, None])  # (boxes, X)
    in_rows = (top[:, None] <= middle_y) & (middle_y < bottom[:, None])  # (boxes, Y)
    covered = (in_rows[:, :, None] & in_columns[:, None, :]).any(0)  # (Y, X): whether a tile is inside a box
    widths = _overlap(cells[:, 0], cells[:, 2], across)  # (L, X)
    heights = _overlap(cells[:, 1], cells[:, 3], down)  # (L, Y)
    area = (cells[:, 2] - cells[:, 0]) * (cells[:, 3] - cells[:, 1])
    inside = np.einsum("ly,yx,lx->l", heights, covered.astype(np.float64), widths) / area
    x, y = (cells[:, 0] + cells[:, 2]) / 2, (cells[:, 1] + cells[:, 3]) / 2
    within = (left <= x[:, None]) & (x[:, None] <= right) & (top <= y[:, None]) & (y[:, None] <= bottom)
    return LocationCoverage(inside, np.asarray(within.any(1)))


def _overlap(low: Weights, high: Weights, edges: Weights) -> Weights:
    """Length of the overlap of each interval (L,) with each interval between edges (X + 1,): (L, X)."""
    overlap: Weights = (np.minimum(high[:, None], edges[1:]) - np.maximum(low[:, None], edges[:-1])).clip(0)
    return overlap


def pointing_hits(weights: Weights, centre_inside: NDArray[np.bool_]) -> Weights:
    """Compute whether the location of the maximum weight is inside a box, (P,).

    The weights and `centre_inside` are (P, L). Where several locations have the maximum weight, the result is the
    fraction of them that is inside.
    """
    maximum = weights >= weights.max(1, keepdims=True) * (1 - _TIE)
    hits: Weights = (maximum & centre_inside).sum(1) / maximum.sum(1)
    return hits


def centre_prior(grid: tuple[int, int], sigma: float) -> Weights:
    """Compute a centred Gaussian over a grid, (L,), of sum 1; `sigma` is in fractions of each side."""
    rows, columns = grid
    y, x = (np.arange(rows) + 0.5) / rows - 0.5, (np.arange(columns) + 0.5) / columns - 0.5
    weights = np.exp(-(y[:, None] ** 2 + x**2) / (2 * sigma**2)).ravel()
    normalised: Weights = weights / weights.sum()
    return normalised
