"""Bag of words: the baselines bow-f and bow-k of Kiros et al. (2014), section 7.1, 'Retrieval Evaluation'."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding_bag, logsigmoid

from limner.data.examples import Batch, ImageFeatures
from limner.layers.image_encoder import ImageEncoder, ImageEncoderSettings
from limner.models.protocols import ModelInputs, Output, precise, spread
from limner.settings import Settings
from limner.text.vocab import SPECIAL_TOKENS

NEVER = -1e4
"""Logit of the signs that are never said, <pad> and <s>: finite, because padding is scored and then masked."""


class BowSettings(Settings):
    """Settings of the bag of words."""

    translates: ClassVar[bool] = False

    name: Literal["bow"] = "bow"
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the image features. The sizes of a convnet have no effect: maps are read flat."""
    spread: float = Field(default=0.01, ge=0)
    """Standard deviation of the first weights."""


class BowMemory(NamedTuple):
    """The next word, which is the same after whatever came before."""

    logits: Tensor  # (B, V)


class BowState(NamedTuple):
    """Nothing is remembered."""


class Bow(nn.Module):
    """Independent logistic units on a picture, one for each word: is it in the description?

    The paper: "we learn a projection onto independent logistic units, one for each word in the description. The score
    of a description is then the sum of the probabilities of each word in the description, normalized by the number of
    words". `pair_scores` is that score. Training minimises the cross-entropy of the units, summed over them and
    averaged over the descriptions, so that each unit learns at the rate it would have alone, however many there are.
    Each (picture, description) pair is an example; <unk> counts as a word.

    Ours, where the paper is silent: biases; weights from a zero-mean normal distribution, biases at log(1 / V); and,
    because every model here is a language model, the next word is drawn in proportion to the units' probabilities,
    whatever came before. For that the end sign has a unit too, which every description teaches to be on.

    A feature vector or the mean of a grid is read as it is. Maps (k-means features, the inputs of the convolutional
    models) are read flat, with no convnet.
    """

    Settings: ClassVar = BowSettings
    uses_image = True

    def __init__(self, settings: BowSettings, inputs: ModelInputs) -> None:
        """Build with fresh weights.

        Args:
            settings: the scaling of the features.
            inputs: size of the vocabulary, V, and shapes of the image features.

        Raises:
            SettingsError: there are no features.
        """
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        shapes = inputs.feature_shapes
        self.flat = "maps" in shapes and not {"pooled", "grid"} & set(shapes)
        if self.flat:
            shapes = {"pooled": (math.prod(shapes["maps"]),)}
        self.image_encoder = ImageEncoder(shapes, settings.image_encoder)
        self.units = nn.Linear(
            self.image_encoder.dim, self.vocab_size - SPECIAL_TOKENS.eos
        )  # no unit for <pad> and <s>
        nn.init.normal_(self.units.weight, std=settings.spread)
        nn.init.constant_(self.units.bias, -math.log(self.vocab_size))

    def image_vector(self, image: ImageFeatures) -> Tensor:
        """Compute the input of the units for each image, (B, D)."""
        if self.flat and image.maps is not None:
            image = ImageFeatures(image.present, pooled=image.maps.flatten(1))
        vector: Tensor = self.image_encoder(image)
        return vector

    def _log_probs(self, image: ImageFeatures) -> Tensor:
        """Of each unit to be on, (B, V), natural logarithm; `NEVER` where there is no unit."""
        return _with_signs(logsigmoid(precise(self.units(self.image_vector(image)))))

    def encode(self, batch: Batch) -> BowMemory:
        """Look at the pictures."""
        return BowMemory(self._log_probs(batch.image))

    def start(self, memory: BowMemory) -> BowState:
        """Nothing."""
        return BowState()

    def step(self, tokens: Tensor, memory: BowMemory, state: BowState) -> tuple[Tensor, BowState]:
        """The logits (N K, V) of the next word, which does not depend on the one before."""
        return spread(memory, len(tokens)).logits, state

    def forward(self, batch: Batch) -> Output:
        """All positions at once, and the loss of the units."""
        on = precise(self.units(self.image_vector(batch.image)))  # (B, V - 2)
        logits = _with_signs(logsigmoid(on))
        said = torch.zeros_like(logits).scatter_(1, batch.target_out, 1.0)[:, SPECIAL_TOKENS.eos :]
        loss = binary_cross_entropy_with_logits(on, said, reduction="sum") / len(batch)
        length = batch.target_in.shape[1]
        return Output(logits.unsqueeze(1).expand(-1, length, -1), loss=loss)

    def pair_scores(self, image: ImageFeatures, sentences: Batch) -> Tensor:
        """The paper's score of every sentence for every picture, (S, I): the mean of its words' probabilities."""
        return _bags(sentences, self._log_probs(image).exp(), "mean", end_sign=False)

    @property
    def separable(self) -> bool:
        """Whether `pair_log_probs` works."""
        return True

    @property
    def exact_pairs(self) -> bool:
        """Whether all pairs are always scored in float32: no."""
        return False

    @property
    def bytes_per_token(self) -> int:
        """Bytes that `pair_log_probs` keeps of each word."""
        return 64

    def pair_log_probs(
        self, images: Iterable[ImageFeatures], sentences: Batch, budget: int, dtype: torch.dtype
    ) -> Iterator[Tensor]:
        """Every sentence given every picture, (S, I), as a language model; see `PairScorer`."""
        for image in images:
            log_probs = self._log_probs(image).log_softmax(dim=1)
            yield _bags(sentences, log_probs, "sum", end_sign=True)


def _with_signs(values: Tensor) -> Tensor:
    """Values of the units (B, V - 2), and `NEVER` for the two signs that have none, (B, V)."""
    return torch.cat([values.new_full((len(values), SPECIAL_TOKENS.eos), NEVER), values], dim=1)


def _bags(sentences: Batch, values: Tensor, mode: Literal["sum", "mean"], *, end_sign: bool) -> Tensor:
    """Sum or mean over the words of each sentence of what they are worth for each picture.

    The product of the (S, V) counts with the values, without the zeros of the counts.

    Args:
        sentences: S sentences.
        values: of each word for each picture, (I, V).
        mode: what is done with a sentence's words, each as often as it occurs.
        end_sign: whether it counts.

    Returns:
        (S, I).
    """
    kept = sentences.target_mask if end_sign else sentences.target_mask & (sentences.target_out != SPECIAL_TOKENS.eos)
    counts = kept.sum(1)
    first = counts.cumsum(0) - counts
    return embedding_bag(sentences.target_out[kept], values.t().contiguous(), first, mode=mode)
