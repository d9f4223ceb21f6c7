"""Bag of words: the retrieval baselines bow-f and bow-k of Kiros et al. (2014), section 7.1.

Shapes: B batch, T target length, D feature size, V vocabulary, N examples with K hypotheses each, S sentences,
I images.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding_bag, logsigmoid

from limner.bounds import Bounds
from limner.data.examples import Batch, ImageFeatures
from limner.layers.functional import precise, repeat_rows
from limner.layers.image_encoder import ImageEncoder, ImageEncoderSettings
from limner.models.protocols import EXCLUDED, ConditionalLMSettings, Mean, ModelInputs, Output
from limner.text.vocab import SPECIAL_TOKENS


class BagOfWordsSettings(ConditionalLMSettings):
    """Settings of the bag of words."""

    maximises_likelihood: ClassVar = False
    name: Literal["bow"] = "bow"
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the image features. Maps are flattened, so the settings of the convnet have no effect."""
    init_std: Annotated[float, Bounds(0, 1e3, whole=False)] = 0.01
    """Standard deviation of the normal initialisation of the weights."""


class BagOfWords(nn.Module):
    """Independent logistic units on an image, one for each word of the vocabulary (Kiros et al., 2014, section 7.1).

    The probability that word v occurs in the description of image x, and the score of a description w_1 … w_n:

        s_v(x) = sigmoid(u_v x + c_v)
        score(w_1 … w_N | x) = 1/N sum_n s_{w_n}(x)

    The paper: "we learn a projection onto independent logistic units, one for each word in the description. The score
    of a description is then the sum of the probabilities of each word in the description, normalized by the number of
    words". Each (image, description) pair is a training example, and <unk> counts as a word. The loss is the binary
    cross-entropy, summed over the units and averaged over the examples, so that the learning rate of a unit does not
    depend on the size of the vocabulary.

    Departures from the paper, where it does not specify the model:

    - the units have biases, initialised to log(1 / V); weights are normal with standard deviation `init_std`;
    - as a language model, P(next token = v) is proportional to s_v(x) at every position; </s> therefore has a unit,
      whose training target is 1 in every example;
    - stored maps (k-means features, the inputs of the convolutional models) are flattened, without a convnet; a grid is
      averaged over its locations.
    """

    Settings: ClassVar = BagOfWordsSettings
    uses_image = True

    def __init__(self, settings: BagOfWordsSettings, inputs: ModelInputs) -> None:
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        shapes = inputs.feature_shapes
        self.flat = "maps" in shapes and not {"pooled", "grid"} & set(shapes)
        if self.flat:
            shapes = {"pooled": (math.prod(shapes["maps"]),)}
        self.image_encoder = ImageEncoder(shapes, settings.image_encoder)
        units = self.vocab_size - SPECIAL_TOKENS.eos  # none for <pad> and <s>
        self.units = nn.Linear(self.image_encoder.dim, units)
        nn.init.normal_(self.units.weight, std=settings.init_std)
        nn.init.constant_(self.units.bias, -math.log(self.vocab_size))

    def image_vector(self, image: ImageFeatures) -> Tensor:
        """Compute the input of the units for each image, (B, D)."""
        if self.flat and image.maps is not None:
            image = ImageFeatures(image.present, pooled=image.maps.flatten(1))
        vector: Tensor = self.image_encoder(image)
        return vector

    def log_probs(self, image: ImageFeatures) -> Tensor:
        """Compute log s_v(x) of every word given each image, (B, V); `EXCLUDED` for <pad> and <s>."""
        return _add_excluded(logsigmoid(precise(self.units(self.image_vector(image)))))

    def encode(self, batch: Batch) -> Tensor:
        """Compute the logits of the next token given each image, (B, V)."""
        return self.log_probs(batch.image)

    def start(self, memory: Tensor) -> None:
        """Return no state: the model does not depend on the previous tokens."""

    def step(self, tokens: Tensor, memory: Tensor, state: None) -> tuple[Tensor, None]:
        """Return the logits (N K, V) of the next token."""
        return repeat_rows(memory, tokens.shape[0]), None

    def forward(self, batch: Batch) -> Output:
        """Compute the logits of all positions, and the loss of the units."""
        activations = precise(self.units(self.image_vector(batch.image)))  # (B, V - 2): u_v x + c_v
        logits = _add_excluded(logsigmoid(activations))  # log s_v(x)
        present = torch.zeros_like(logits).scatter_(1, batch.target_out, 1.0)[:, SPECIAL_TOKENS.eos :]
        loss = binary_cross_entropy_with_logits(activations, present, reduction="sum")
        length = batch.target_in.shape[1]
        return Output(logits.unsqueeze(1).expand(-1, length, -1), loss=(Mean(loss, len(batch)),))

    def pair_scores(self, image: ImageFeatures, sentences: Batch) -> Tensor:
        """Compute the paper's score 1/N sum_n s_{w_n}(x) of every sentence given every image, (S, I), without </s>."""
        return pool_tokens(sentences, self.log_probs(image).exp(), "mean", include_eos=False)


def _add_excluded(values: Tensor) -> Tensor:
    """Prepend columns of `EXCLUDED` for <pad> and <s>, which have no units: (B, V - 2) to (B, V)."""
    return torch.cat([values.new_full((len(values), SPECIAL_TOKENS.eos), EXCLUDED), values], dim=1)


def pool_tokens(sentences: Batch, values: Tensor, mode: Literal["sum", "mean"], *, include_eos: bool) -> Tensor:
    """Compute the sum or mean (S, I) of values (I, V) over all tokens of S sentences, repeated tokens too."""
    mask = sentences.target_mask
    if not include_eos:
        mask = mask & (sentences.target_out != SPECIAL_TOKENS.eos)
    counts = mask.sum(1)
    offsets = counts.cumsum(0) - counts
    return embedding_bag(sentences.target_out[mask], values.t().contiguous(), offsets, mode=mode)
