"""The protocol that every model implements, and the optional capabilities that some models add.

Training, decoding, scoring and retrieval are written against these protocols, never against a model.
Shapes: B batch, T target length, S source length, L image locations, V vocabulary, N examples, K hypotheses of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from limner.data.examples import Batch, ImageFeatures
from limner.layers.rows import repeat_rows
from limner.settings import Settings

Memory = Any
"""Tensors that are constant while a sentence is generated: a NamedTuple of batch-first tensors (or None)."""

State = Any
"""Recurrent state between two steps: a NamedTuple of batch-first tensors (or None)."""


class ConditionalLMSettings(Settings):
    """Base class of the settings of a model: what the model reads and describes, besides whole images."""

    @property
    def translates(self) -> bool:
        """Whether the model reads a source sentence."""
        return False

    @property
    def shares_embeddings(self) -> bool:
        """Whether source and target tokens have the same embeddings, which needs one vocabulary of both languages."""
        return False

    @property
    def describes_regions(self) -> bool:
        """Whether the model describes regions of images instead of whole images."""
        return False

    @property
    def generates(self) -> bool:
        """Whether the model gives probabilities of sentences, and generates them; a `JointSpaceModel` does not."""
        return True

    @property
    def scores_sentences(self) -> bool:
        """Whether the model gives probabilities of given sentences; a `SearchingModel` does not."""
        return self.generates

    @property
    def has_growing_state(self) -> bool:
        """Whether the state of the generation grows with the sentence, instead of having one size."""
        return False

    @property
    def latent_choice(self) -> str | None:
        """Setting by which sentences depend on discrete choices besides their tokens, such as locations; or None."""
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
    """Mean of a batch, kept as sum and number, of which those of several batches can be added."""

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
        ...

    def encode(self, batch: Batch) -> Memory:
        """Compute all tensors that do not depend on the time step."""
        ...

    def start(self, memory: Memory) -> State:
        """Return the state before the first token."""
        ...

    def step(self, tokens: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """Compute the logits after one more token of each hypothesis.

        Args:
            tokens: previous tokens of K hypotheses of each of N examples, (N K,); those of an example are adjacent.
            memory: memory of the N examples, not repeated for their hypotheses.
            state: state of the N K hypotheses.

        Returns:
            Logits (N K, V) of the next token, and the next state.
        """
        ...

    def forward(self, batch: Batch) -> Output:
        """Compute the logits of all positions of `batch.target_in`, equal to those of `step` at each of them."""
        ...


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


class DetectedRegions(NamedTuple):
    """Regions that a model found in one image, by descending confidence."""

    boxes: Tensor  # (R, 4): centre, width and height in fractions of the image
    scores: Tensor  # (R,): confidence, 0 to 1
    codes: Tensor  # (R, D): encoded regions, which `encode` takes as `pooled` features


@runtime_checkable
class RegionDetector(Protocol):
    """A model that finds the regions of an image that it can describe."""

    def detect(self, image: ImageFeatures, *, count: int | None = None) -> list[DetectedRegions]:
        """Detect the regions of B images, at most `count` of each."""
        ...

    def region_codes(self, image: ImageFeatures) -> Tensor:
        """Encode the region `image.box` of each of B images, (B, D)."""
        ...


@runtime_checkable
class Labeller(Protocol):
    """A model whose number of labels is fixed by its input."""

    def require_labels(self, id_: str, labels: int, outputs: int) -> None:
        """Raise an error with a remedy if an item has another number of labels than the model has outputs."""
        ...


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
class ExtendableModel(Protocol):
    """A model whose vocabulary can be extended after the training."""

    def extend_vocabulary(self, copied: Sequence[int], log_odds: float) -> None:
        """Append a token for each known token in `copied`, with its vectors and its logit plus `log_odds`."""
        ...


@runtime_checkable
class ImageVectorModel(Protocol):
    """A model that represents each image as one vector, for example the output of a convnet."""

    def image_vector(self, image: ImageFeatures) -> Tensor:
        """Compute the vector of each image, (B, D)."""
        ...


@runtime_checkable
class CountBasedModel(Protocol):
    """A model that is estimated from observed or expected counts of the training sentences, without gradients."""

    def fit(self, sentences: Sequence[Sequence[int]]) -> None:
        """Estimate the model from the training sentences, token ids without special tokens."""
        ...


class ParallelCorpus(NamedTuple):
    """Training and validation data of a `SearchingModel`, as token ids without special tokens."""

    sources: Sequence[Sequence[int]]
    targets: Sequence[Sequence[int]]
    language_model: Sequence[Sequence[int]]
    """Sentences of the target language; words that are not in the vocabulary have ids from its size on."""
    tuning_sources: Sequence[Sequence[int]]
    tuning_references: Sequence[Sequence[Sequence[int]]]
    """References of each of them; words that are not in the vocabulary have ids from its size on."""
    target_words: Sequence[str]
    """Entries of the target vocabulary."""
    seed: int
    """Seed of the tuning."""


class FoundTranslation(NamedTuple):
    """A translation that a `SearchingModel` found."""

    tokens: tuple[int, ...]
    score: float
    """Score of the model, which is no probability."""
    phrases: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    """First token of each source phrase and the one after its last, and those of its translation, in the order of the
    translation."""
    alignment: tuple[tuple[int, int], ...]
    """Aligned source and target tokens."""
    features: tuple[tuple[str, float], ...] = ()
    """Names and values of the features whose weighted sum is the score."""


@runtime_checkable
class SearchingModel(Protocol):
    """A translation model with a search of its own, estimated without gradients; it gives no probabilities.

    Its settings have `scores_sentences` false. It is a `Model` without `encode`, `start`, `step` and `forward`.
    """

    def fit_pairs(self, corpus: ParallelCorpus, beam_size: int) -> dict[str, object]:
        """Estimate and tune the model; return facts for the records."""
        ...

    def find_translations(
        self, sources: Sequence[Sequence[int]], n_best: int, beam_size: int
    ) -> list[list[FoundTranslation]]:
        """Translate sentences of at least one token.

        Args:
            sources: token ids.
            n_best: maximum number of translations of a sentence, of different tokens.
            beam_size: number of hypotheses of a stack.

        Returns:
            Translations of each sentence, at least one, best first.
        """
        ...


@runtime_checkable
class PairRanker(Protocol):
    """A model that ranks (sentence, image) pairs by a score other than the sentence's probability."""

    def pair_scores(self, image: ImageFeatures, sentences: Batch) -> Tensor:
        """Score each of S sentences with each of I images, (S, I); a higher score is a better match."""
        ...


@runtime_checkable
class JointSpaceModel(PairRanker, Protocol):
    """A model that embeds images and sentences in one space and compares them there; it generates no sentences.

    Its settings have `generates` false. It is a `Model` without `encode`, `start`, `step` and `forward`.
    """

    log_sharpness: Tensor
    """Logarithm of the factor of the cosines in a softmax, a trained scalar."""

    def image_vector(self, image: ImageFeatures) -> Tensor:
        """Compute the vector of each image, (B, J), of unit length."""
        ...

    def sentence_vector(self, sentences: Batch) -> Tensor:
        """Compute the vector of each sentence, (B, J), of unit length."""
        ...


@runtime_checkable
class PairScorer(Protocol):
    """A model that computes the log-probabilities of all (sentence, image) pairs faster than pair by pair."""

    @property
    def separable(self) -> bool:
        """Whether the variant supports `pair_log_probs`: its recurrent states do not depend on the image."""
        ...

    @property
    def exact_pairs(self) -> bool:
        """Whether all pairs are scored in float32 even where bfloat16 is allowed."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Bytes of memory that `pair_log_probs` needs for each token of the sentences."""
        ...

    def pair_log_probs(
        self, images: Iterable[ImageFeatures], sentences: Batch, budget: int, dtype: torch.dtype
    ) -> Iterator[Tensor]:
        """Compute the log-probability of every sentence given every image; the sentences are encoded once.

        Args:
            images: batches of images.
            sentences: S sentences; images in this batch are ignored.
            budget: bytes of working memory, in addition to `bytes_per_token` a token.
            dtype: data type of the large matrix products, float32 or bfloat16.

        Yields:
            Natural logarithms (S, I) for each batch of I images.
        """
        ...


@runtime_checkable
class AllPositions(Protocol):
    """A model that computes the logits of all positions of a sentence from a memory, faster than step by step."""

    def position_logits(self, memory: Any, tokens: Tensor) -> Tensor:  # noqa: ANN401  (the type of its `encode`)
        """Compute the logits of every position of one sentence given each of N images.

        Args:
            memory: what `encode` computes of the images.
            tokens: input tokens with <s>, (T,).

        Returns:
            Logits (N, T, V), without dropout.
        """
        ...


class AffineTerms(NamedTuple):
    """Logits of the tokens of one sentence as functions of the image term z: `weight` · (prefix_t + z) + bias."""

    prefixes: Tensor  # (T, D): term of each position
    weight: Tensor  # (V, D)
    bias: Tensor  # (V,)


@runtime_checkable
class AffineImageModel(Protocol):
    """A model whose image enters as a term z that is added before the softmax: logits_t = W (prefix_t + z) + b.

    The log-probability of a sentence is then concave in z, and its tangents are upper bounds.
    """

    @property
    def affine_in_image(self) -> bool:
        """Whether the logits of the variant are affine in the image term."""
        ...

    def image_terms(self, image: ImageFeatures) -> Tensor:
        """Compute the term z of each of B images, (B, D)."""
        ...

    def affine_terms(self, tokens_in: Tensor) -> AffineTerms:
        """Compute the terms of one sentence by its input tokens, (T,)."""
        ...


GRADIENT_FREE = (CountBasedModel, SearchingModel)
"""Protocols of models that are estimated without gradients."""
