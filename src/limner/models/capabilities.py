"""Optional capabilities of models: protocols that a model may implement beside `limner.models.protocols`.

A caller asks for the capability, never for the model.
Shapes: B batch, T target length, S source length, L image locations, V vocabulary, N examples, K hypotheses of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from limner.data.examples import Batch, ImageFeatures


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


class EmbeddedWords:
    """Word vectors of a model whose layer `embedding` has one row for each word: both protocols above."""

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
        ...


@runtime_checkable
class CountBasedModel(Protocol):
    """A model that is estimated from observed or expected counts of the training sentences, without gradients."""

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
