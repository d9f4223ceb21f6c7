"""A request for sentences, and the three ports of generation: features, model and rules.

This package does not import torch: exported models generate in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from limner.decoding.automaton import Automaton
from limner.decoding.search import Memory, StepModel, Trace
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from limner.data.examples import StoredFeatures
    from limner.generation.rules import CaptionRules


class GenerationModel(StepModel, Protocol):
    """The model port: a model of torch, an ensemble, or the graphs of an exported model."""

    def encode(self, requests: Sequence[Request]) -> Memory:
        """Compute the memory of requests, which is constant while their sentences are generated."""

    def concatenate(self, trees: Sequence[Any]) -> Any:  # noqa: ANN401
        """Concatenate the rows of memories or states of equal `limner.decoding.trees.signature`."""


class Features(Protocol):
    """The features port: computes or reads the features of the images of requests."""

    def __call__(self, requests: Sequence[Request]) -> Sequence[StoredFeatures | None]:
        """Return the features of the image of each request, None for a request without an image."""


class Generator(Protocol):
    """A captioner or translator, as requests use it."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the sentences."""

    @property
    def decoding(self) -> DecodingSettings:
        """Default decoding settings."""

    @property
    def rules(self) -> CaptionRules | None:
        """The rules port; None without rules."""

    def model(self, settings: DecodingSettings) -> GenerationModel:
        """Return the model that decodes with some settings."""


class RuleOptions(NamedTuple):
    """Options of the rules of a caption; without effect on a generator without rules."""

    with_tags: bool = False
    """Whether the sentences have the tags of their image."""
    concepts: bool = True
    """Whether the concepts choose among the hypotheses, and may replace the caption by a plain sentence."""
    min_confidence: float | None = None
    """Confidence below which a caption is replaced or withheld; None for the threshold of the concepts."""


class Request:
    """One input of generation, with its intermediate results and its sentences.

    A caller that delivers sentences, such as the service, overrides `decided`, `finished` and `failed`.
    """

    def __init__(
        self,
        generator: Generator,
        id_: str,
        decoding: DecodingSettings,
        *,
        source: object = None,
        prefix: str = "",
        source_tokens: Sequence[int] | None = None,
        constraint: Automaton | None = None,
    ) -> None:
        """Create a request.

        Args:
            generator: captioner or translator.
            id_: id of the input, which with a seed determines sampled sentences.
            decoding: decoding settings.
            source: input of the features port: a `GenerationInput`, or the image itself.
            prefix: words that the sentence starts with.
            source_tokens: tokens of the source sentence; None for a caption.
            constraint: machine of the words that the sentence must include; None for none.
        """
        self.generator, self.id, self.decoding = generator, id_, decoding
        self.source: Any = source
        self.source_tokens, self.constraint = source_tokens, constraint
        self.states = 1 if constraint is None else constraint.size
        """Number of states of the constraint, each of which has a beam."""
        self.prefix: Sequence[int] = generator.tokenizer.encode(prefix) if prefix else ()
        """Tokens that the sentence starts with."""
        self.copied = generator.tokenizer.unknown_pieces(prefix) if prefix else ()
        """Pieces of the prefix that are not in the vocabulary."""
        self.rule_options: RuleOptions = RuleOptions()
        """Options of the rules of the generator."""
        self.exponent: float = 1.0
        """Exponent of the length where the rules rank: 1, as in their calibration, or the length penalty requested."""
        self.trace: Trace | None = None
        """Called with every step of the search, for a request that is decoded alone."""
        self.streams = False
        """Whether `decided` is called before the end."""
        self.is_done = False
        """Whether the request has its sentences or an error, or is cancelled."""
        self.features: StoredFeatures | None = None
        """Features of the image, once it is encoded."""
        self.evidence: Any = None
        """Evidence in the image, computed by the rules."""
        self.sentences: list[Sentence] = []
        self.error: Exception | None = None

    def decided(self, tokens: Sequence[int], totals: Sequence[float]) -> None:
        """Receive the tokens of the best sentence that no step can change, and the log-probability up to each."""

    def finished(self, sentences: list[Sentence]) -> None:
        """Receive the `n_best` sentences, best first."""
        self.sentences, self.is_done = sentences, True

    def failed(self, error: Exception) -> None:
        """Receive the error in place of the sentences."""
        self.error, self.is_done = error, True
