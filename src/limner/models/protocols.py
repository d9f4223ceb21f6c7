"""The one protocol: what a model offers, so that training, search, scoring and retrieval never ask what it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from limner.data.examples import Batch, ImageFeatures
from limner.layers.precision import precise as precise

Memory = Any
"""All that is constant while generating: a NamedTuple of batch-first tensors (or None)."""

State = Any
"""What one step hands to the next: a NamedTuple of batch-first tensors (or None)."""


class ModelInputs(NamedTuple):
    """Caption of the inputs that a model is built for."""

    vocab_size: int
    """Number of tokens of the target vocabulary, special tokens included."""
    feature_shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    """Shape of each kind of image features in the batches: `vector` (D,), `grid` (L, D), `maps` (C, H, W), where maps
    of three channels are pixels."""
    source_vocab_size: int | None = None
    """Number of tokens of the source vocabulary, special tokens included; None for a model that does not translate."""


class Output(NamedTuple):
    """What `forward` returns for all positions at once."""

    logits: Tensor  # (B, T, V)
    attention: Tensor | None = None  # (B, T, L): weights over the places of the picture
    auxiliary_loss: Tensor | None = None  # scalar, added to the loss of the tokens
    loss: Tensor | None = None  # scalar: what training minimises instead of the words' negative log-likelihood
    alignment: Tensor | None = None  # (B, T, S): weights over the source words
    gate: Tensor | None = None  # (B, T): how far the picture is let in, 0 to 1


def spread(memory: Memory, rows: int) -> Memory:
    """A memory of N examples repeated for `rows` = N K hypotheses, where a step adds to it or multiplies it."""
    return type(memory)(*(None if part is None else part.repeat_interleave(rows // len(part), 0) for part in memory))


def device_of(model: Model) -> torch.device:
    """Where a model is, whether it has parameters or only tables that were counted."""
    return next(iter(model.state_dict().values())).device


class ConditionalLM(Protocol):
    """A language model of a sentence given a picture, a source sentence, both or neither."""

    vocab_size: int

    @property
    def uses_image(self) -> bool:
        """Whether the output depends on the image, which may be a matter of the variant."""
        ...

    def encode(self, batch: Batch) -> Memory:
        """Everything that does not depend on the time step."""
        ...

    def start(self, memory: Memory) -> State:
        """The state before the first word."""
        ...

    def step(self, tokens: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """Read one word each and give the logits of the next.

        Args:
            tokens: (N K,), the words of K hypotheses of each of N examples, neighbours one after another.
            memory: of the N examples; it is never repeated for their hypotheses.
            state: of the N K hypotheses.

        Returns:
            Logits (N K, V) and the next state.
        """
        ...

    def forward(self, batch: Batch) -> Output:
        """All positions of `batch.target_in` at once; equal to `step` over them."""
        ...


class Model(ConditionalLM, Protocol):
    """A `ConditionalLM` that is an `nn.Module` (Python has no type for 'both')."""

    training: bool

    def __call__(self, batch: Batch) -> Output: ...
    def train(self, mode: bool = True) -> Self: ...
    def eval(self) -> Self: ...
    def to(self, device: torch.device | str) -> Self: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state: dict[str, Tensor]) -> object: ...


@runtime_checkable
class WordEmbeddingModel(Protocol):
    """A model with one final vector for each token of its vocabulary."""

    def word_vectors(self) -> Tensor:
        """Compute the word vectors, (V, D)."""
        ...


@runtime_checkable
class PretrainedEmbeddingModel(Protocol):
    """A model whose word embeddings can be initialised from pre-trained ones."""

    @property
    def word_dim(self) -> int:
        """Size of the word embeddings."""
        ...

    def init_word_embeddings(self, vectors: Tensor) -> None:
        """Initialise the word embeddings from pre-trained vectors, (V, word_dim)."""
        ...


@runtime_checkable
class ImageVectorModel(Protocol):
    """A model that represents each image as one vector, for example the output of a convnet."""

    def image_vector(self, image: ImageFeatures) -> Tensor:
        """Compute the vector of each image, (B, D)."""
        ...


@runtime_checkable
class CountBasedModel(Protocol):
    """A model that is estimated from counts in one pass over the training sentences, without gradients."""

    def fit(self, sentences: Sequence[Sequence[int]]) -> None:
        """Estimate the model from the training sentences, token ids without special tokens."""
        ...


@runtime_checkable
class PairRanker(Protocol):
    """A model that ranks (sentence, image) pairs by a score other than the sentence's probability."""

    def pair_scores(self, image: ImageFeatures, sentences: Batch) -> Tensor:
        """Score each of S sentences with each of I images, (S, I); a higher score is a better match."""
        ...


@runtime_checkable
class PairScorer(Protocol):
    """A model with a faster way to score every sentence with every picture than one pair after another."""

    @property
    def separable(self) -> bool:
        """Whether the model as it is set up can do so."""
        ...

    @property
    def exact_pairs(self) -> bool:
        """Whether all pairs are scored in float32 even where bfloat16 is allowed."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Bytes kept of each word of the sentences while the pictures pass by."""
        ...

    def pair_log_probs(
        self, images: Iterable[ImageFeatures], sentences: Batch, budget: int, dtype: torch.dtype
    ) -> Iterator[Tensor]:
        """Log-probability of every sentence given every picture; the sentences alone are read once.

        Args:
            images: the pictures, some at a time.
            sentences: S sentences; their own pictures are not looked at.
            budget: bytes of working memory to stay within, besides `bytes_per_token` a word.
            dtype: type of the large matrix products, float32 or bfloat16.

        Yields:
            For each of `images`, of I pictures, (S, I), natural logarithm.
        """
        ...
