"""Show and Tell, Vinyals et al. (2015): an LSTM whose first input is the image.

Shapes: B batch, T target length, E embedding, H hidden, V vocabulary, N examples with K hypotheses each.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import dropout

from limner.bounds import Layers, Rate, Width
from limner.data.examples import Batch
from limner.layers.cells import CellSettings
from limner.layers.image_encoder import ImageEncoder, ImageEncoderSettings
from limner.layers.stack import LayerState, RecurrentLayers, RecurrentSettings, where
from limner.models.protocols import ConditionalLMSettings, EmbeddedWords, EncodedImages, ModelInputs, Output


class ShowAndTellSettings(ConditionalLMSettings):
    """Settings of Show and Tell; the default sizes follow the paper."""

    name: Literal["show_and_tell"] = "show_and_tell"
    cell: CellSettings = CellSettings(name="lstm", linear_output=True)
    """Recurrent cell; the default is the LSTM as printed, whose output has no tanh (eq. 8)."""
    layers: Layers = 1
    """Number of stacked recurrent layers."""
    embedding_dim: Width = 512
    """Size E of the word embeddings and of the embedded image."""
    hidden_dim: Width = 512
    """Size H of the recurrent state."""
    dropout: Rate = 0.0
    """Dropout rate of the embeddings, between layers and before the vocabulary in training."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the image features, and sizes of the convnet on pixels or feature maps."""


class ShowAndTellState(NamedTuple):
    """State of the recurrent layers; the state after the image is all that depends on the image."""

    layers: tuple[LayerState, ...]  # (B, H) each


class ShowAndTell(EmbeddedWords, EncodedImages, nn.Module):
    """The Neural Image Caption generator of Vinyals et al. (2015), section 3.1.

    With the image vector I and the words S_0 (begin of sentence), S_1, …:

        x_{-1} = W_I I + b_I                         the image, once (eq. 10)
        x_t = W_e S_t                                word embeddings (eq. 11)
        p_{t+1} = softmax(W_p m_t + b_p), m_t = LSTM(x_t)     (eqs. 4-9 and 12)

    where the LSTM has m_t = o_t c_t, without a tanh (eq. 8).

    Departures from the paper: the gates have biases, which it does not print, with 1 for the forget gates; eq. 9
    applies the softmax to m_t itself, here a layer W_p changes the size to the size of the vocabulary; initialisation
    is orthogonal for recurrent weights and the default of `nn.Linear` otherwise. The paper's CNN is tuned in a second
    stage; here it is a backbone whose features are stored, or a convnet that is trained jointly. An example without an
    image has the initial state of zeros in place of the state after the image.
    """

    Settings: ClassVar = ShowAndTellSettings

    def __init__(self, settings: ShowAndTellSettings, inputs: ModelInputs) -> None:
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        embedding, hidden = settings.embedding_dim, settings.hidden_dim
        self.image_encoder = ImageEncoder(inputs.feature_shapes, settings.image_encoder)
        self.image_embedding = nn.Linear(self.image_encoder.dim, embedding)  # W_I, b_I
        self.embedding = nn.Embedding(inputs.vocab_size, embedding)  # W_e
        structure = RecurrentSettings(cell=settings.cell, layers=settings.layers, dropout=settings.dropout)
        self.recurrent = RecurrentLayers(embedding, hidden, structure)
        self.softmax = nn.Linear(hidden, inputs.vocab_size)  # W_p, b_p
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.zeros_(self.softmax.bias)

    def encode(self, batch: Batch) -> ShowAndTellState:
        """Compute the state after the image (eq. 10)."""
        image = self.image_embedding(self.image_vector(batch.image))  # x_{-1}
        image = dropout(image, self.settings.dropout, self.training) * batch.image.present[:, None]
        zeros = self.recurrent.start(image.shape[0])
        after = self.recurrent.step(image, zeros)[1]
        present = batch.image.present
        return ShowAndTellState(tuple(where(present, a, b) for a, b in zip(after, zeros, strict=True)))

    def start(self, memory: ShowAndTellState) -> ShowAndTellState:
        return memory

    def step(
        self, tokens: Tensor, memory: ShowAndTellState, state: ShowAndTellState
    ) -> tuple[Tensor, ShowAndTellState]:
        """Compute the logits (N K, V) after one more token (N K,) of each hypothesis (eqs. 11 and 12)."""
        hidden, layers = self.recurrent.step(self.embedding(tokens), state.layers)
        return self.softmax(hidden), ShowAndTellState(layers)

    def forward(self, batch: Batch) -> Output:
        """Compute the logits (B, T, V) of all positions."""
        rate = self.settings.dropout
        words = dropout(self.embedding(batch.target_in), rate, self.training)  # x_t
        hidden, _ = self.recurrent(words, self.encode(batch).layers)  # m_t
        return Output(self.softmax(dropout(hidden, rate, self.training)))
