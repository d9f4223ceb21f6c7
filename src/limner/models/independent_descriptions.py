"""Independent multilingual descriptions, Elliott et al. (2015): one language model initialises another.

Shapes: B batch, T target length, S source length, E embedding, H hidden, V vocabulary, K hypotheses of an example.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, pad

from limner.bounds import PositiveWeight, Rate, Width
from limner.data.examples import Batch
from limner.layers.cells import CellSettings, CellState
from limner.layers.functional import precise
from limner.layers.image_encoder import ImageEncoder, ImageEncoderSettings
from limner.layers.stack import LayerState, RecurrentLayer, RecurrentSettings
from limner.models.protocols import ConditionalLMSettings, Mean, ModelInputs, Output
from limner.text.vocab import SPECIAL_TOKENS


class IndependentSettings(ConditionalLMSettings):
    """Settings of the independent descriptions; sizes and dropout follow the authors' published program."""

    translates: ClassVar = True
    name: Literal["independent"] = "independent"
    transfer: Literal["fixed", "joint"] = "fixed"
    """Training of the source-language model: 'fixed' trains it on the source sentences alone, so that its last state
    is a fixed feature to the target-language model; 'joint' trains it on the translations too."""
    source_weight: PositiveWeight = 1.0
    """Weight of the loss of the source sentences, relative to the loss of the translations."""
    cell: CellSettings = CellSettings(name="gru")
    """Recurrent cell of both models; GRUs in the systems that Calixto et al. compare."""
    embedding_dim: Width = 256
    """Size E of the word embeddings of both languages."""
    hidden_dim: Width = 256
    """Size H of both recurrent states."""
    readout_dim: Width = 256
    """Size of the layers before the vocabularies."""
    input_dropout: Rate = 0.5
    """Dropout rate of the models' inputs: word embeddings, image vector and transferred state."""
    readout_dropout: Rate = 0.0
    """Dropout rate before the vocabularies."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling of the image features, dropout of them in addition to `input_dropout`, and sizes of the convnet."""


class RecurrentLanguageModel(nn.Module):
    """Language model of one recurrent layer: p(y_t | y_<t) = softmax(L_o tanh(L_s s_t + L_w E[y_{t-1}]))."""

    def __init__(self, vocab_size: int, settings: IndependentSettings) -> None:
        super().__init__()
        embedding, hidden, readout = settings.embedding_dim, settings.hidden_dim, settings.readout_dim
        self.settings = settings
        self.embedding = nn.Embedding(vocab_size, embedding)
        self.recurrent = RecurrentLayer(embedding, hidden, RecurrentSettings(cell=settings.cell))
        self.readout_hidden = nn.Linear(hidden, readout)  # L_s
        self.readout_word = nn.Linear(embedding, readout, bias=False)  # L_w
        self.readout = nn.Linear(readout, vocab_size)  # L_o
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        nn.init.xavier_uniform_(self.recurrent.cell.input.weight)
        for layer in (self.readout_hidden, self.readout_word, self.readout):
            _initialise(layer)

    def embed(self, tokens: Tensor) -> Tensor:
        """Look up word embeddings with dropout: (…) to (…, E)."""
        return dropout(self.embedding(tokens), self.settings.input_dropout, self.training)

    def read_out(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Compute logits (…, V) of the next token from states (…, H) and embeddings of their input tokens (…, E)."""
        last = torch.tanh(self.readout_hidden(hidden) + self.readout_word(embedded))
        logits: Tensor = self.readout(dropout(last, self.settings.readout_dropout, self.training))
        return logits


class IndependentDescriptions(nn.Module):
    """The system of Elliott et al. (2015) that Calixto et al. (2016) compare with, section 3 and Table 1.

    A source-language model reads the source sentence, and the image together with the token <s>. E_x and E_y are word
    embeddings, v is the image vector; the term of a missing image is left out:

        h_0 = GRU_x(E_x[<s>] + W_v v + b_v, 0)      h_i = GRU_x(E_x[x_i], h_{i-1})
        s_0 = tanh(W_init h_N + b_init)             s_t = GRU_y(E_y[y_{t-1}], s_{t-1})

    Both are language models, `RecurrentLanguageModel`. The source-language model is trained on the source sentences,
    whose loss is the auxiliary loss of the output in training. The target-language model reads source sentence and
    image through h_N alone: there is no attention.

    Departures from Elliott et al. (2015):

    - by default GRUs instead of LSTMs, as in the systems of the comparison;
    - the transferred features initialise the target-language model instead of being added to its first input, as in
      the last version of the authors' program;
    - only the source-language model reads the image; in some of their models the target-language model reads it too;
    - both models are trained at the same time, by default (`transfer: fixed`) without gradients from the target to the
      source model; their models are trained one after the other, on stored features;
    - the read-out is eq. 1 of Calixto et al. (2017) without the context; their read-out is one layer without the word.

    Initialisation follows their program: Glorot and Bengio (2010) uniform, recurrent weights orthogonal, word
    embeddings uniform within 0.05, biases zero.
    """

    Settings: ClassVar = IndependentSettings
    uses_image = True

    def __init__(self, settings: IndependentSettings, inputs: ModelInputs) -> None:
        super().__init__()
        assert inputs.source_vocab_size is not None, "a translation model has a source vocabulary"
        self.settings, self.vocab_size = settings, inputs.vocab_size
        self.image_encoder = ImageEncoder(inputs.feature_shapes, settings.image_encoder)
        self.image = nn.Linear(self.image_encoder.dim, settings.embedding_dim)  # W_v, b_v
        self.source = RecurrentLanguageModel(inputs.source_vocab_size, settings)
        self.initial = nn.Linear(settings.hidden_dim, settings.hidden_dim)  # W_init, b_init
        self.target = RecurrentLanguageModel(inputs.vocab_size, settings)
        for layer in (self.image, self.initial):
            _initialise(layer)

    def encode(self, batch: Batch) -> LayerState:
        """Encode images and source sentences, and compute s_0, (B, H)."""
        return self._transfer(self._encode_source(batch)[0])

    def _encode_source(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the states h_0 … h_N (B, 1+S, H), the embeddings (B, 1+S, E) and the mask (B, 1+S) of the source."""
        assert batch.source is not None and batch.source_mask is not None, "a translation has a source sentence"
        tokens, mask = pad(batch.source, (1, 0), value=SPECIAL_TOKENS.bos), pad(batch.source_mask, (1, 0), value=True)
        words = self.source.embed(tokens)
        vector = dropout(self.image_encoder(batch.image), self.settings.input_dropout, self.training)
        image = self.image(vector) * batch.image.present[:, None]  # W_v v + b_v
        inputs = torch.cat([words[:, :1] + image[:, None], words[:, 1:]], 1)
        states, _ = self.source.recurrent(inputs, self.source.recurrent.start(len(batch)), mask)
        return states, words, mask

    def _transfer(self, states: Tensor) -> LayerState:
        """Compute s_0 = tanh(W_init h_N + b_init) from the states of the source-language model."""
        last = states[:, -1]  # h_N, which padding does not change
        if self.settings.transfer == "fixed":
            last = last.detach()
        last = dropout(last, self.settings.input_dropout, self.training)
        hidden = precise(torch.tanh(self.initial(last)))
        cell = torch.zeros_like(hidden) if self.target.recurrent.cell.has_memory_cell else None
        return LayerState(CellState(hidden, cell))

    def start(self, memory: LayerState) -> LayerState:
        return memory

    def step(self, tokens: Tensor, memory: LayerState, state: LayerState) -> tuple[Tensor, LayerState]:
        embedded = self.target.embed(tokens)
        recurrent = self.target.recurrent
        after = recurrent.step(recurrent.cell.project(embedded), state)
        return self.target.read_out(after.state.hidden, embedded), after

    def forward(self, batch: Batch) -> Output:
        """Compute the logits of all positions, and in training the auxiliary loss of the source sentences."""
        states, words, mask = self._encode_source(batch)
        embedded = self.target.embed(batch.target_in)
        hidden, _ = self.target.recurrent(embedded, self._transfer(states))
        auxiliary_loss = self._source_loss(batch, states, words, mask) if self.training else None
        return Output(self.target.read_out(hidden, embedded), auxiliary_loss=auxiliary_loss)

    def _source_loss(self, batch: Batch, states: Tensor, words: Tensor, mask: Tensor) -> Mean:
        """Compute the weighted mean negative log-likelihood of the source tokens and </s>, in nats per token."""
        assert batch.source is not None and batch.source_mask is not None
        ends = batch.source_mask.sum(1, keepdim=True)
        following = pad(batch.source, (0, 1), value=SPECIAL_TOKENS.pad).scatter(1, ends, SPECIAL_TOKENS.eos)
        logits = precise(self.source.read_out(states[mask], words[mask]))
        total = cross_entropy(logits, following[mask], reduction="sum")
        return Mean(self.settings.source_weight * total, len(logits))


def _initialise(layer: nn.Linear) -> None:
    """Draw Glorot-uniform weights and set the bias to zero."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
