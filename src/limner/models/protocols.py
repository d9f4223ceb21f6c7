"""The protocol that every model implements, and optional capabilities that some models add.

Training, decoding, scoring and retrieval are written against these protocols, and ask for a capability, never for a
model.
Shapes: B batch, T target length, S source length, L image locations, V vocabulary, N examples, K hypotheses of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from limner.data.examples import Batch, ImageFeatures
from limner.errors import TrainingError
from limner.layers.functional import repeat_rows
from limner.layers.image_encoder import ImageEncoder
from limner.settings import Settings
from limner.text.vocab import SPECIAL_TOKENS

Memory = Any
"""Values that are constant during generation: a batch-first tensor, or nested tuples of them (or None)."""

State = Any
"""Recurrent state between two steps: a batch-first tensor, or nested tuples of them (or None)."""

EXCLUDED = -1e4
"""Log-probability of excluded tokens. Its exponential is exactly 0. It is finite, so that a label outside the
vocabulary has a finite loss, and because a mask of 0 multiplies the scores at padding, and 0 times -inf is NaN."""


class ConditionalLMSettings(Settings):
    """Base class of the settings of a model, with its inputs, its outputs and how it is trained."""

    name: str
    """Name of the model in recipes, a `Literal` in each model's settings."""
    translates: ClassVar[bool] = False
    """Whether the model reads a source sentence."""
    describes_regions: ClassVar[bool] = False
    """Whether the model describes regions of images instead of whole images."""
    generates: ClassVar[bool] = True
    """Whether the model generates sentences; a `TwoTower` does not."""
    scores_sentences: ClassVar[bool] = True
    """Whether the model gives probabilities of sentences; a `TwoTower` and a `PhraseBased` do not."""
    has_gradients: ClassVar[bool] = True
    """Whether the model is trained by gradient descent, rather than estimated from counts."""
    maximises_likelihood: ClassVar[bool] = True
    """Whether the loss is the likelihood of the sentences, rather than a loss of (sentence, image) pairs."""
    has_growing_state: ClassVar[bool] = False
    """Whether the state of the generation grows with the sentence, instead of having one size."""

    @property
    def shares_embeddings(self) -> bool:
        """Whether source and target tokens have the same embeddings, which needs one vocabulary of both languages."""
        return False

    @property
    def hard_attention(self) -> str | None:
        """Setting by which sentences depend on locations that the model selects, besides their tokens; or None."""
        return None


class ModelInputs(NamedTuple):
    """Sizes of the vocabularies and shapes of the image features that a model is built for."""

    vocab_size: int
    """Number of tokens of the target vocabulary, special tokens included."""
    feature_shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    """Shape of each kind of image features in the batches: `pooled` (D,), `grid` (L, D), `maps` (C, H, W), where maps
    of three channels are pixels."""
    source_vocab_size: int | None = None
    """Number of tokens of the source vocabulary, special tokens included; None for a model that does not translate."""


class Mean(NamedTuple):
    """Mean of a batch, kept as sum and number, which can be added to the sum and number of other batches."""

    total: Tensor  # scalar
    number: Tensor | int

    @property
    def value(self) -> Tensor:
        """The mean; 0 of nothing."""
        return self.total / max(1, int(self.number))


class Output(NamedTuple):
    """Result of `forward` for all positions."""

    logits: Tensor  # (B, T, V)
    attention: Tensor | None = None  # (B, T, L): attention weights over the image locations
    auxiliary_loss: Mean | None = None  # added to the loss of the tokens
    loss: tuple[Mean, ...] | None = None  # sum of means: training loss in place of the loss of the tokens
    alignment: Tensor | None = None  # (B, T, S): attention weights over the source tokens
    gate: Tensor | None = None  # (B, T): gate of the image context, 0 to 1
    selected: Tensor | None = None  # (B, T, L): one-hot locations that hard attention selects by `attention`


def repeat_memory(memory: Memory, rows: int) -> Memory:
    """Repeat each row of the memory of N examples K times, for `rows` = N K hypotheses."""
    return type(memory)(*(None if part is None else repeat_rows(part, rows) for part in memory))


def device_of(model: Model) -> torch.device:
    """Return the device of a model, from its parameters or its tables of counts."""
    return next(iter(model.state_dict().values())).device


class ConditionalLM(Protocol):
    """A language model conditioned on an image, a source sentence, both or neither."""

    vocab_size: int

    @property
    def uses_image(self) -> bool:
        """Whether the output depends on the image; this may differ between the variants of a model."""

    def encode(self, batch: Batch) -> Memory:
        """Compute all tensors that do not depend on the time step."""

    def start(self, memory: Memory) -> State:
        """Return the state before the first token."""

    def step(self, tokens: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """Compute the logits after one more token of each hypothesis.

        Args:
            tokens: previous tokens of K hypotheses of each of N examples, (N K,); the hypotheses of an example are
                adjacent.
            memory: memory of the N examples, not repeated for their hypotheses.
            state: state of the N K hypotheses.

        Returns:
            Logits (N K, V) of the next token, and the next state.
        """

    def forward(self, batch: Batch) -> Output:
        """Compute the logits of all positions of `batch.target_in`, equal to the logits of `step` at each position."""


class Model(ConditionalLM, Protocol):
    """A `ConditionalLM` that is an `nn.Module` (Python has no intersection type)."""

    training: bool

    def __call__(self, batch: Batch) -> Output: ...
    def train(self, mode: bool = True) -> Self: ...
    def eval(self) -> Self: ...
    def to(self, device: torch.device | str) -> Self: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state: dict[str, Tensor]) -> object: ...


@contextmanager
def evaluation_mode(models: Sequence[Model]) -> Iterator[None]:
    """Put models into evaluation mode, and back into their modes at the end."""
    modes = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model, mode in zip(models, modes, strict=True):
            model.train(mode)


@runtime_checkable
class WordEmbeddingModel(Protocol):
    """A model with one final vector for each token of its vocabulary."""

    def word_vectors(self) -> Tensor:
        """Compute the word vectors, (V, D)."""


@runtime_checkable
class PretrainedEmbeddingModel(Protocol):
    """A model whose word embeddings can be initialised from pre-trained embeddings."""

    @property
    def word_dim(self) -> int:
        """Size of the word embeddings."""

    def init_word_embeddings(self, vectors: Tensor) -> None:
        """Initialise the word embeddings from pre-trained vectors, (V, word_dim)."""


class EmbeddedWords:
    """Both protocols of word vectors, for a model with a layer `embedding` of one row per word."""

    embedding: nn.Embedding

    @property
    def word_dim(self) -> int:
        return self.embedding.embedding_dim

    @torch.no_grad()
    def init_word_embeddings(self, vectors: Tensor) -> None:
        self.embedding.weight.copy_(vectors)

    def word_vectors(self) -> Tensor:
        return self.embedding.weight


@runtime_checkable
class ImageVectorModel(Protocol):
    """A model that represents each image as one vector, for example the output of a convnet."""

    def image_vector(self, image: ImageFeatures) -> Tensor:
        """Compute the vector of each image, (B, D)."""


class EncodedImages:
    """Image vectors of a model with an image encoder, which some of its variants may not have."""

    image_encoder: ImageEncoder | None

    @property
    def uses_image(self) -> bool:
        return self.image_encoder is not None

    def image_vector(self, image: ImageFeatures) -> Tensor:
        """Compute the vector of each image, (B, D): scaled features, or the output of the convnet."""
        assert self.image_encoder is not None, "this variant of the model uses no image"
        vector: Tensor = self.image_encoder(image)
        return vector


@runtime_checkable
class CountBasedModel(Protocol):
    """A model that is estimated from observed or expected counts of the training sentences, without gradients."""

    def fit(self, sentences: Sequence[Sequence[int]]) -> None:
        """Estimate the model from the training sentences, token ids without special tokens."""


@runtime_checkable
class PairRanker(Protocol):
    """A model that ranks (sentence, image) pairs by a score other than the sentence's probability."""

    def pair_scores(self, image: ImageFeatures, sentences: Batch) -> Tensor:
        """Score each of S sentences with each of I images, (S, I); a higher score is a better match."""


def require_words(sentences: Sequence[Sequence[int]], vocab_size: int, name: str) -> None:
    """Check the training sentences of a `CountBasedModel`, token ids without special tokens; or TrainingError."""
    if not sentences:
        raise TrainingError(f"{name}: no sentences to count; expected at least one (is the training split empty?)")
    for number, sentence in enumerate(sentences):
        invalid = [token for token in sentence if not SPECIAL_TOKENS.unk <= token < vocab_size]
        if invalid:
            raise TrainingError(
                f"{name}: sentence {number} has the token id {invalid[0]}: expected {SPECIAL_TOKENS.unk} to "
                f"{vocab_size - 1}, without <pad>, <s> and </s>; encode it with the tokenizer of the model"
            )
