"""What the engine returns: generated sentences with their tokens, and the events of a stream."""

from __future__ import annotations

from typing import NamedTuple

from limner.decoding.sentence import Sentence


class ProbableToken(NamedTuple):
    """A token that could continue a sentence."""

    text: str
    log_prob: float


class GeneratedToken(NamedTuple):
    """A token of a generated sentence."""

    text: str
    """Text that the token adds; the texts of all tokens joined are the sentence."""
    token_id: int
    log_prob: float
    """Natural logarithm of its probability given the tokens before it."""
    attention: tuple[float, ...] | None = None
    """Weights over the image locations, row by row; None unless they are requested and the model has attention."""
    confidence: float | None = None
    """Calibrated confidence, where the model has one."""
    probable: tuple[ProbableToken, ...] = ()
    """The most probable tokens at its position, as many as are requested."""


class TokenEvent(NamedTuple):
    """A token of the best sentence that has been decided; the texts of all events joined are its text."""

    position: int
    """Number of the token in the sentence, from 0."""
    text: str
    token_id: int
    log_prob: float
    attention: tuple[float, ...] | None = None
    probable: tuple[ProbableToken, ...] = ()
    """The most probable tokens at its position, as many as are requested."""


class FinalEvent(NamedTuple):
    """The end of a stream: all sentences, best first."""

    model: str
    """Name of the model that generated them."""
    lang: str
    """Language of the sentences."""
    sentences: tuple[Sentence, ...]
    """The `n_best` sentences, best first."""
    tokens: tuple[tuple[GeneratedToken, ...], ...] = ()
    """Tokens of each sentence, without special tokens."""
    grid_size: tuple[int, int] | None = None
    """Rows and columns of the image locations that attention weights belong to."""
    box: tuple[float, float, float, float] | None = None
    """Left, top, right and bottom of the part of the image under the grid, as fractions of its sides."""
    tags: tuple[tuple[str, float], ...] = ()
    """Names of things in the image with their probability, where the model has tags."""
    input_tokens: int = 0
    """Number of tokens read: of the prefix, or of the source sentence."""

    @property
    def best(self) -> Sentence:
        """The best sentence."""
        return self.sentences[0]


Event = TokenEvent | FinalEvent
