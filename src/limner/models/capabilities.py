"""Optional capabilities of models: protocols that a model may implement beside `limner.models.protocols`.

A caller asks for the capability, never for the model.
Shapes: B batch, T target length, S source length, L image locations, V vocabulary, N examples, K hypotheses of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from limner.data.examples import Batch, ImageFeatures
from limner.progress import StageProgress


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
    tuning_copies: Sequence[Sequence[int]]
    """Target token of each of their tokens if it is copied, with the ids of `tuning_references`."""
    tuning_references: Sequence[Sequence[Sequence[int]]]
    """References of each of them; words that are not in the vocabulary have ids from its size on, which are not those
    of `language_model`."""
    target_words: Sequence[str]
    """Entries of the target vocabulary."""
    seed: int
    """Seed of the tuning."""


class ScoredTranslation(NamedTuple):
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

    def reads_all_sentences(self) -> bool:
        """Whether the model is estimated from all training sentences of the target language, not of the pairs only."""
        ...

    def feature_names(self) -> tuple[str, ...]:
        """Names of the features whose weighted sum is the score of a translation."""
        ...

    def fit_pairs(self, corpus: ParallelCorpus, beam_size: int, on_progress: StageProgress) -> dict[str, object]:
        """Estimate and tune the model; return facts for the records."""
        ...

    def search_translations(
        self, sources: Sequence[Sequence[int]], copies: Sequence[Sequence[int]], n_best: int, beam_size: int
    ) -> list[list[ScoredTranslation]]:
        """Translate sentences of at least one token.

        Args:
            sources: token ids.
            copies: target token of each source token if it is copied, that of <unk> if it is not in the vocabulary.
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
class AllPositions(Protocol):
    """A model that computes the logits of all positions of a sentence from a memory, faster than step by step."""

    def all_logits(self, memory: Any, tokens: Tensor) -> Tensor:  # noqa: ANN401  (the type of its `encode`)
        """Compute the logits of all positions of sentences, of which `forward` consists.

        Args:
            memory: what `encode` computes of N images.
            tokens: input tokens with <s>, (N, T), or (1, T) for one sentence given each of the images.

        Returns:
            Logits (N, T, V).
        """
        ...


GRADIENT_FREE = (CountBasedModel, SearchingModel)
"""Protocols of models that are estimated without gradients."""
