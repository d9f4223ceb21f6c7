"""The record of a generated sentence, of every generator and for every use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from limner.runs.concepts import Tag
    from limner.text.tokenizer import Tokenizer

Span = tuple[int, int]
"""Index of the first token or word, and index after the last token or word."""
NOT_SURE = {"en": "not sure", "de": "nicht sicher", "zh": "不确定"}
"""Text printed in place of a caption that is withheld, by the language of the captions; English for others."""


class Derivation(NamedTuple):
    """Derivation of a translation from phrases."""

    phrases: tuple[tuple[Span, Span], ...]
    """Source tokens of each phrase and the tokens that translate them, in the order of the translation."""
    alignment: tuple[tuple[int, int], ...]
    """Aligned source and target tokens."""


class Sentence(NamedTuple):
    """A generated sentence: a caption or a translation."""

    tokens: tuple[int, ...]
    """Token ids without special tokens, the prefix included."""
    log_prob: float
    """Natural logarithm of the probability under the model, prefix and end-of-sentence token included."""
    score: float
    """Score that sentences are ranked by: log_prob / length ** length_penalty, see `DecodingSettings`. Where concepts
    choose, the exponent is 1 unless the request names one, and a hypothesis has the evidence of the concepts and its
    weighted consensus added."""
    ended: bool = True
    """False where the sentence was cut off at `max_length`."""
    totals: tuple[float, ...] = ()
    """Log-probability of the sentence up to each token, the end-of-sentence token excluded; empty if not recorded."""
    text: str = ""
    """Detokenised text; empty as long as the sentence is within a search."""

    copied: tuple[str, ...] = ()
    """Pieces of the source in place of the unknown tokens, in their order; empty where the model copies none."""
    features: tuple[tuple[str, float], ...] = ()
    """Features whose weighted sum is the score and `log_prob`, for a model without probabilities."""
    derivation: Derivation | None = None
    """Phrases of the translation; None for a model without phrases."""

    tags: tuple[Tag, ...] = ()
    """Things in the image; empty unless tags are requested."""
    confidence: float | None = None
    """Probability of the least probable thing of the caption; None for a model without concepts."""
    is_sure: bool = True
    """False where the confidence is below `min_confidence`: the caption should not be shown as a description."""

    @property
    def display_text(self) -> str:
        """The text; empty for a caption that is withheld."""
        return self.text if self.is_sure else ""

    def decoded(self, tokenizer: Tokenizer) -> Sentence:
        """Return the sentence with its text."""
        return self._replace(text=tokenizer.decode(self.tokens, detokenise=True, copied=self.copied))

    def tokenised(self, tokenizer: Tokenizer) -> str:
        """Return the tokens as text, separated by spaces, as metrics read them."""
        return tokenizer.decode(self.tokens, copied=self.copied)


def format_tags(tags: Iterable[Tag]) -> str:
    """Return tags as text: 'dog 93 %, ball 7 %'."""
    return ", ".join(f"{tag.word} {tag.probability:.0%}".replace("%", " %") for tag in tags)
