"""Captions and translations as results, and the limits of source sentences.

This module does not import torch: `limner.runtime` returns the same results.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from limner.inference.confidence import WordConfidence
    from limner.inference.tags import Tag
    from limner.media.image import ImageInput

from limner.decoding.ranking import Derivation, Hypothesis
from limner.errors import SettingsError, counted
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS

UNKNOWN_WORDS_SHOWN = 5
NOT_SURE = "not sure"
"""Text in place of a caption whose confidence is too low."""
UNKNOWN_SOURCE = "their translation is a guess"
"""Effect of unknown words of a source sentence."""
COPIED_SOURCE = "they are copied into the translation"
"""Effect of unknown words of a source sentence, for a model that translates phrases."""
COPIED_CHARACTERS = "their unknown characters are copied into the translation"
"""Effect of words with unknown characters, for a model that translates phrases of subwords."""
CUT_TRANSLATIONS = "raise max_length, or split the text into sentences"
"""What to do about translations that were cut off."""
MAX_SOURCE_TOKENS = 1000
"""Maximum length of a source sentence."""

logger = logging.getLogger(__name__)

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
    """What the classifier of a built-in backbone sees in the image; empty unless tags are requested."""
    confidence: float | None = None
    """Calibrated probability that the caption fits the image; None for a model without calibration."""
    log_ratio: float | None = None
    """log P(w|I) - log P(w); None for a model without calibration."""
    words: tuple[WordConfidence, ...] = ()
    """Confidence of each word; empty for a model without calibration."""
    is_sure: bool = True
    """False where the confidence is below `min_confidence`: the caption should not be shown as a description."""
    likely_tags: tuple[Tag, ...] = ()
    """Likely tags, or the likely kind of thing, in place of a caption of which the model is not sure; else empty."""

    @property
    def display_text(self) -> str:
        """The text, or the text in its place where the model is not sure: 'not sure; perhaps: cup 97 %'."""
        return self.text if self.is_sure else unsure_text(self.likely_tags)


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
    features: tuple[tuple[str, float], ...] = ()
    """Features whose weighted sum is the score, of a model without probabilities; `log_prob` is the score as well."""
    derivation: Derivation | None = None
    """Phrases of the translation, for `explain`; None for a model that has none."""


EMPTY_TRANSLATION = Translation("", (), 0.0, 0.0)
"""Translation of an empty sentence, which is not decoded."""


def caption_of(tokenizer: Tokenizer, one: Hypothesis) -> Caption:
    """Return a hypothesis as a caption."""
    return Caption(tokenizer.decode(one.tokens, detokenise=True), one.log_prob, one.score, one.tokens, one.ended)


def translation_of(tokenizer: Tokenizer, one: Hypothesis) -> Translation:
    """Return a hypothesis as a translation."""
    text = tokenizer.decode(one.tokens, detokenise=True, copied=one.copied)
    tokens = tokenizer.decode(one.tokens, copied=one.copied).split()
    fields = (one.log_prob, one.score, one.tokens, one.ended, one.features, one.derivation)
    return Translation(text, tuple(tokens), *fields)


def images_of_sentences(
    sentences: Sequence[str], images: Sequence[ImageInput | None] | None, missing: str
) -> Sequence[ImageInput | None]:
    """Check the arguments of `translate`; return the image of each sentence, None where it has none.

    Raises:
        SettingsError: a string is given in place of a list, the numbers of sentences and images differ, or `missing` is
            unknown.
    """
    if missing not in get_args(MissingImage):
        raise SettingsError(f"missing: expected one of {', '.join(get_args(MissingImage))}, got '{missing}'")
    if isinstance(sentences, str):  # a sequence of characters
        raise SettingsError(f"sentences: expected a list of strings, got the string '{sentences}'")
    images = [None] * len(sentences) if images is None else images
    if len(images) != len(sentences):
        raise SettingsError(
            f"expected one image for each sentence, got {counted(len(images), 'image')} and "
            f"{counted(len(sentences), 'sentence')}"
        )
    return images


def unsure_text(likely_tags: Sequence[Tag]) -> str:
    """Return the text in place of a caption of which the model is not sure, with the likely tags."""
    return f"{NOT_SURE}; perhaps: {format_tags(likely_tags)}" if likely_tags else NOT_SURE


def format_tags(tags: Iterable[Tag]) -> str:
    """Return tags as text: 'dog 93 %, ball 7 %'."""
    return ", ".join(f"{tag.word} {tag.probability:.0%}".replace("%", " %") for tag in tags)


def require_source_length(row: int, count: int) -> None:
    """Check the number of tokens of a source sentence.

    Raises:
        SettingsError: it is above `MAX_SOURCE_TOKENS`.
    """
    if count > MAX_SOURCE_TOKENS:
        raise SettingsError(
            f"sentence {row + 1}: expected at most {MAX_SOURCE_TOKENS:,} tokens, got {count:,}; split the text into "
            "sentences, one a line"
        )


def missing_image(row: int) -> str:
    """Error message for a sentence without an image, and a model that uses images."""
    return (
        f"sentence {row + 1} has no image, and the model was trained with images; give one, or translate the text "
        "alone with missing='text' (limner translate --missing text)"
    )


def warn_of_unknown_words(tokenizer: Tokenizer, sentences: Iterable[str], effect: str) -> None:
    """Log the words that a tokenizer encodes as <unk>, followed by the effect on the result."""
    unk = SPECIAL_TOKENS.unk
    words = {word for text in sentences if unk in tokenizer.encode(text) for word in tokenizer.words(text)}
    unknown = sorted(word for word in words if unk in tokenizer.encode(word))
    if unknown:
        shown = ", ".join(f"'{word}'" for word in unknown[:UNKNOWN_WORDS_SHOWN])
        more = ", …" if len(unknown) > UNKNOWN_WORDS_SHOWN else ""
        logger.warning("words not in the vocabulary are encoded as <unk>: %s%s; %s", shown, more, effect)


def warn_of_cut_off(cut: int, total: int, noun: str, max_length: int, remedy: str) -> None:
    """Log how many generated sentences did not end before the maximum length."""
    if cut:
        logger.warning("%d of %d %s were cut off at max_length=%d; %s", cut, total, noun, max_length, remedy)
