"""Two-tower retrieval: sentences and images embedded in one space, after VSE++ (Faghri et al., 2018).

Shapes: B batch, T tokens of a sentence with <s>, E word embedding, H hidden, D image vector, J joint space,
S sentences, I images.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, normalize

from limner.bounds import Layers, PositiveWeight, Rate, Width, WidthOrNone
from limner.data.examples import Batch, ImageFeatures
from limner.layers.cells import CellSettings
from limner.layers.functional import precise
from limner.layers.image_encoder import ImageEncoder, ImageEncoderSettings
from limner.layers.stack import BidirectionalLayers, RecurrentLayers, RecurrentSettings
from limner.models.protocols import ConditionalLMSettings, EmbeddedWords, ModelInputs


class TwoTowerSettings(ConditionalLMSettings):
    """Settings of the two-tower model; sizes follow VSE++."""

    generates: ClassVar = False
    scores_sentences: ClassVar = False
    maximises_likelihood: ClassVar = False
    name: Literal["two_tower"] = "two_tower"
    cell: CellSettings = CellSettings(name="gru")
    """Recurrent cell of the sentence encoder."""
    layers: Layers = 1
    """Number of recurrent layers."""
    bidirectional: bool = False
    """Whether a second set of layers reads the sentences backwards."""
    pooling: Literal["final", "mean", "words"] = "final"
    """Summary of a sentence: the last state, as in the paper; the mean of the states; or the mean of the word
    embeddings, without a recurrent network; `cell`, `layers`,
    `bidirectional` and `hidden_dim` then have no effect."""
    word_dim: Width = 300
    """Size E of the word embeddings."""
    hidden_dim: Width = 1024
    """Size H of the states of each layer and direction."""
    image_hidden_dim: WidthOrNone = 0
    """Size of a ReLU layer before the projection of the images; 0 for none, as in the paper."""
    joint_dim: Width = 1024
    """Size J of the joint space, and of a vector in the index."""
    sharpness: PositiveWeight = 20.0
    """Initial value of the factor gamma of the cosines in the softmax losses, which is trained."""
    dropout: Rate = 0.0
    """Dropout rate of the word embeddings and of the states before the projection, in training."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the image features, and sizes of the convnet on pixels."""


class TwoTower(EmbeddedWords, nn.Module):
    """Sentence encoder and image projection into a joint space, compared by the cosine (Faghri et al., 2018).

    For a sentence w_1 … w_N with w_0 = <s> and the image vector x (section 3.1 and 4.1 of the paper):

        h_t = GRU(E w_t, h_{t-1}), h_{-1} = 0                g = h_N, or the mean of h_0 … h_N (`pooling: mean`)
                                                             or the mean of E w_0 … E w_N (`pooling: words`)
        u(w) = (W_g g + b_g) / |W_g g + b_g|                 v(I) = (W_f x + b_f) / |W_f x + b_f|
        s(w, I) = u(w) · v(I)

    `training.matching` has the losses (`limner.training.matching`): the contrastive loss of the paper, or a softmax
    over gamma s(w, I) with the trained `log_sharpness` log gamma, and a softmax over gamma u(w) · u(w').

    Departures from the paper: the sentence encoder reads <s> first and has a linear layer W_g before the joint space,
    so that H and J may differ; images are stored features of a backbone, which is not trained; with
    `image_hidden_dim` a ReLU layer precedes W_f. Weights of the projections are Glorot-uniform and word embeddings
    uniform within 0.1, as in the paper's program; recurrent weights are orthogonal. A missing image has the vector
    of x = 0.
    """

    Settings: ClassVar = TwoTowerSettings
    uses_image = True

    def __init__(self, settings: TwoTowerSettings, inputs: ModelInputs) -> None:
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        hidden, joint = settings.hidden_dim, settings.joint_dim
        self.embedding = nn.Embedding(inputs.vocab_size, settings.word_dim)  # E
        self.layers: BidirectionalLayers | RecurrentLayers | None = None
        dim = settings.word_dim
        if settings.pooling != "words":
            structure = RecurrentSettings(cell=settings.cell, layers=settings.layers, dropout=settings.dropout)
            layers = BidirectionalLayers if settings.bidirectional else RecurrentLayers
            self.layers, dim = layers(dim, hidden, structure), 2 * hidden if settings.bidirectional else hidden
        self.sentence = nn.Linear(dim, joint)  # W_g, b_g
        self.image_encoder = ImageEncoder(inputs.feature_shapes, settings.image_encoder)
        dim = self.image_encoder.dim
        self.image_hidden = nn.Linear(dim, settings.image_hidden_dim) if settings.image_hidden_dim else None
        self.image = nn.Linear(settings.image_hidden_dim or dim, joint)  # W_f, b_f
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(settings.sharpness)))  # log gamma
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        for layer in (self.sentence, self.image):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def image_vector(self, image: ImageFeatures) -> Tensor:
        """Compute v(I) of each image, (B, J), of unit length."""
        vector: Tensor = self.image_encoder(image)
        if self.image_hidden is not None:
            vector = torch.relu(self.image_hidden(vector))
        return normalize(precise(self.image(vector)), dim=-1)

    def sentence_vector(self, sentences: Batch) -> Tensor:
        """Compute u(w) of each sentence, (B, J), of unit length; the images of the batch are ignored."""
        settings, mask = self.settings, sentences.target_mask
        words = dropout(self.embedding(sentences.target_in), settings.dropout, self.training)
        final, states = None, words
        if isinstance(self.layers, BidirectionalLayers):
            states, final = self.layers(words, mask)
        elif self.layers is not None:
            states, _ = self.layers(words)  # padding follows the tokens and does not affect their states
            final = states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]  # h_N
        if final is None or settings.pooling == "mean":
            final = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        final = dropout(final, settings.dropout, self.training)
        return normalize(precise(self.sentence(final)), dim=-1)

    def pair_scores(self, image: ImageFeatures, sentences: Batch) -> Tensor:
        """Compute s(w, I) of every sentence and every image, (S, I)."""
        return self.sentence_vector(sentences) @ self.image_vector(image).t()
