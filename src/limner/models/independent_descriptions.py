"""Independent multilingual descriptions, Elliott et al. (2015): one language's model hands its state to another's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from limner.data.examples import SPECIAL_TOKENS, Batch
from limner.layers.dropout import dropout
from limner.layers.image_encoder import ImageEncoder, Scaling
from limner.layers.recurrent import gru, hold, start_recurrent
from limner.models.protocols import Output, precise
from limner.settings import Settings


class IndependentSettings(Settings):
    """Settings of the independent descriptions; sizes and dropout are those of the authors' published program."""

    translates: ClassVar[bool] = True

    name: Literal["independent"] = "independent"
    transfer: Literal["fixed", "joint"] = "fixed"
    """Whether the source-language model learns from its own sentences alone, so that what it hands over is to the
    target-language model a feature like the picture's, or from the translations as well."""
    source_weight: float = Field(default=1.0, gt=0)
    """What the loss of the source sentences' words counts beside that of the translations' words."""
    embedding_dim: int = Field(default=256, ge=1)
    """Size of the word vectors of both languages."""
    hidden_dim: int = Field(default=256, ge=1)
    """Size of both recurrent states."""
    readout_dim: int = Field(default=256, ge=1)
    """Size of the layers before the vocabularies."""
    input_dropout: float = Field(default=0.5, ge=0, lt=1)
    """Dropout of what goes into the models: word vectors, the picture, and the state that is handed over."""
    readout_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout before the vocabularies."""
    feature_scaling: Scaling = "none"
    """What is done to a stored feature vector first; see `ImageEncoder`."""
    convnet_width: int = Field(default=16, ge=4, multiple_of=4)
    """Channels of the first layer of the convnet that reads pixels, where features are pixels."""
    convnet_dim: int = Field(default=256, ge=1)
    """Size of the vector that convnet gives."""


class IndependentMemory(NamedTuple):
    """All that the target-language model is told."""

    hidden: Tensor  # (B, H): s_0


class IndependentState(NamedTuple):
    """The state s_{t-1} of the target-language model."""

    hidden: Tensor  # (B, H)


class LanguageModel(nn.Module):
    """A language model of one gated recurrent layer; the next word comes from L_o tanh(L_s s_t + L_w E[y_{t-1}])."""

    def __init__(self, vocab_size: int, settings: IndependentSettings) -> None:
        """Build for a vocabulary of `vocab_size` words, signs included."""
        super().__init__()
        words, hidden, readout = settings.embedding_dim, settings.hidden_dim, settings.readout_dim
        self.settings = settings
        self.embedding = nn.Embedding(vocab_size, words)
        self.input = nn.Linear(words, 3 * hidden)
        self.recurrent = nn.Parameter(torch.empty(hidden, 3 * hidden))  # U of the three gates, transposed
        self.readout_hidden = nn.Linear(hidden, readout)  # L_s
        self.readout_word = nn.Linear(words, readout, bias=False)  # L_w
        self.readout = nn.Linear(readout, vocab_size)  # L_o
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        for layer in (self.input, self.readout_hidden, self.readout_word, self.readout):
            _start(layer)
        start_recurrent(self.recurrent)

    def embed(self, tokens: Tensor) -> Tensor:
        """Word vectors, (…) to (…, E)."""
        return dropout(self.embedding(tokens), self.settings.input_dropout, self.training)

    def step(self, projected: Tensor, hidden: Tensor) -> Tensor:
        """The next state (B, H), of the input's product with its weights, (B, 3H), and the state before."""
        return gru(projected, hidden @ self.recurrent, hidden)

    def states(self, embedded: Tensor, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """The states after each word: (B, T, E) from (B, H) to (B, T, H).

        Where `mask` (B, T) is false a state stays what it was.
        """
        projected, states = self.input(embedded), []
        if mask is not None:
            hold(projected, mask)
        for at_step in projected.unbind(1):
            hidden = self.step(at_step, hidden)
            states.append(hidden)
        return torch.stack(states, 1)

    def read_out(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Logits of the next word, of states (…, H) and the words they were made of, (…, E): (…, V)."""
        summed = torch.tanh(self.readout_hidden(hidden) + self.readout_word(embedded))
        logits: Tensor = self.readout(dropout(summed, self.settings.readout_dropout, self.training))
        return logits


class IndependentDescriptions(nn.Module):
    """The system of Elliott et al. (2015) beside which Calixto et al. (2016) stand, section 3 and Table 1.

    A description model reads the source sentence and sees the picture with the start sign; E_x and E_y are the
    word vectors, v is the picture's vector, and a missing picture leaves its term out:

        h_0 = GRU_x(E_x[start] + W_v v + b_v, 0)      h_i = GRU_x(E_x[x_i], h_{i-1})
        s_0 = tanh(W_init h_N + b_init)               s_t = GRU_y(E_y[y_{t-1}], s_{t-1})

    Both are language models with the read-out of `LanguageModel`. The one of the source language learns by its own
    sentences' words, whose loss is the `penalty` of the output while training. h_N is all that the other is told of
    source sentence and picture: there is no attention.

    Departures from Elliott et al.: their recurrent layers are LSTMs, here gated recurrent units as in the systems
    beside it; they add the transferred features to the target's first input, here they make its first state, as in
    the last version of their program; some of their models see the picture again, here it is seen once; their two
    models are trained one after the other, and the features of the first stored, here both learn at the same time, by
    default (`transfer: fixed`) with no gradient from one into the other. They read out by one layer without a word,
    here as Calixto et al. (2017), eq. 1, without the context. Weights begin as in their program: uniform after Glorot
    and Bengio (2010), recurrent ones orthogonal, word vectors uniform within 0.05, no biases.
    """

    def __init__(
        self,
        settings: IndependentSettings,
        vocab_size: int,
        image: Mapping[str, tuple[int, ...]],
        source_vocab_size: int,
    ) -> None:
        """Build with fresh weights.

        Args:
            settings: sizes, and what the two models learn by.
            vocab_size: V of the target language, signs included.
            image: shape of each form of picture the batches will hold; see `ImageEncoder`.
            source_vocab_size: V of the source language, signs included.

        Raises:
            SettingsError: there is no form of picture to look at.
        """
        super().__init__()
        self.settings, self.vocab_size, self.source_vocab_size = settings, vocab_size, source_vocab_size
        self.eye = ImageEncoder(image, settings.feature_scaling, settings.convnet_width, settings.convnet_dim)
        self.picture = nn.Linear(self.eye.dim, settings.embedding_dim)  # W_v, b_v
        self.source = LanguageModel(source_vocab_size, settings)
        self.initial = nn.Linear(settings.hidden_dim, settings.hidden_dim)  # W_init, b_init
        self.target = LanguageModel(vocab_size, settings)
        for layer in (self.picture, self.initial):
            _start(layer)

    def encode(self, batch: Batch) -> IndependentMemory:
        """Read the source sentences and look at the pictures."""
        return self._hand_over(self._read(batch)[0])

    def _read(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """States h_0 … h_N of the source-language model (B, 1+S, H), its words (B, 1+S, E) and which there are."""
        assert batch.source is not None and batch.source_mask is not None, "a translation has a source sentence"
        tokens, mask = pad(batch.source, (1, 0), value=SPECIAL_TOKENS.bos), pad(batch.source_mask, (1, 0), value=True)
        words = self.source.embed(tokens)
        seen = self.picture(dropout(self.eye(batch.image), self.settings.input_dropout, self.training))
        seen = seen * batch.image.present[:, None]
        read = torch.cat([words[:, :1] + seen[:, None], words[:, 1:]], 1)
        nothing = self.source.recurrent.new_zeros(len(batch), self.settings.hidden_dim)
        return self.source.states(read, nothing, mask), words, mask

    def _hand_over(self, states: Tensor) -> IndependentMemory:
        last = states[:, -1]  # h_N, which padding did not move
        if self.settings.transfer == "fixed":
            last = last.detach()
        last = dropout(last, self.settings.input_dropout, self.training)
        return IndependentMemory(precise(torch.tanh(self.initial(last))))

    def start(self, memory: IndependentMemory) -> IndependentState:
        """s_0."""
        return IndependentState(memory.hidden)

    def step(
        self, tokens: Tensor, memory: IndependentMemory, state: IndependentState
    ) -> tuple[Tensor, IndependentState]:
        """One word (N K,): the logits (N K, V) of the next."""
        embedded = self.target.embed(tokens)
        hidden = self.target.step(self.target.input(embedded), state.hidden)
        return self.target.read_out(hidden, embedded), IndependentState(hidden)

    def forward(self, batch: Batch) -> Output:
        """All positions at once; while training, the loss of the source sentences' words is added."""
        states, words, mask = self._read(batch)
        embedded = self.target.embed(batch.target_in)
        hidden = self.target.states(embedded, self._hand_over(states).hidden)
        penalty = self._source_loss(batch, states, words, mask) if self.training else None
        return Output(self.target.read_out(hidden, embedded), penalty=penalty)

    def _source_loss(self, batch: Batch, states: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        """Mean negative log-likelihood of the source sentences' words and end signs, nats a word, weighted."""
        assert batch.source is not None and batch.source_mask is not None
        ends = batch.source_mask.sum(1, keepdim=True)
        following = pad(batch.source, (0, 1), value=SPECIAL_TOKENS.pad).scatter(1, ends, SPECIAL_TOKENS.eos)
        logits = precise(self.source.read_out(states[mask], words[mask]))
        return self.settings.source_weight * cross_entropy(logits, following[mask])


def _start(layer: nn.Linear) -> None:
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
