"""Captions and translations as results, and the limits of source sentences.

This module does not import torch: `limner.runtime` returns the same results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from limner.inference.tags import Tag

MAX_SOURCE_TOKENS = 1000
"""Maximum length of a source sentence."""

MissingImage = Literal["refuse", "text"]
"""How a model trained with images treats a sentence without one: as an error, or by translating the text alone."""


class Caption(NamedTuple):
    """A generated sentence about an image."""

    text: str
    log_prob: float
    """Natural logarithm of the probability given the image, end-of-sentence token included."""
    score: float
    """Score that hypotheses are ranked by; see `DecodingSettings`."""
    ids: tuple[int, ...] = ()
    """Token ids in the vocabulary of the model, without special tokens."""
    ended: bool = True
    """False where the caption was cut off at `max_length`."""
    tags: tuple[Tag, ...] = ()
    """What the classifier of a built-in backbone sees in the image; empty for other features."""


class Translation(NamedTuple):
    """A generated translation of a sentence."""

    text: str
    tokens: tuple[str, ...]
    """Tokens of the text, as metrics that compare tokens read them."""
    log_prob: float
    """Natural logarithm of the probability given the source sentence and the image, end-of-sentence token included."""
    score: float
    """Score that hypotheses are ranked by; see `DecodingSettings`."""
    ids: tuple[int, ...] = ()
    """Token ids in the vocabulary of the model, without special tokens."""
    ended: bool = True
    """False where the translation was cut off at `max_length`."""


EMPTY_TRANSLATION = Translation("", (), 0.0, 0.0)
"""Translation of an empty sentence, which is not decoded."""
