"""Generative recurrent network: P(x_1 … x_T), or P(y | x) of a sentence given an image vector.

After the chapter "Sequence Modeling: Recurrent and Recursive Nets" of Bengio et al., Deep Learning (draft of 2014).

Shapes: B batch, T target length, E embedding, D feature size, H hidden, V vocabulary, M longest length with a class of
its own, N examples with K hypotheses each.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn.functional import dropout

from limner.bounds import LayersOrNone, Length, Rate, Width
from limner.data.examples import Batch
from limner.layers.functional import is_exporting, precise, repeat_rows
from limner.layers.image_encoder import ImageEncoder, ImageEncoderSettings
from limner.layers.stack import LayerState, RecurrentLayers, RecurrentSettings
from limner.models.protocols import ConditionalLMSettings, EmbeddedWords, EncodedImages, ModelInputs, Output
from limner.text.vocab import SPECIAL_TOKENS


class RNNSettings(RecurrentSettings, ConditionalLMSettings):
    """Settings of the generative recurrent network: its cell and layers, its condition and its end."""

    name: Literal["rnn"] = "rnn"
    conditioning: Literal["none", "every-step", "initial-state", "both"] = "none"
    """Use of the image vector: none, as an extra input of every step, as the initial state, or as both."""
    embedding_dim: Width = 256
    """Size E of the word embeddings, and of the image vector as an extra input."""
    hidden_dim: Width = 256
    """Size H of the recurrent state."""
    output_layers: LayersOrNone = 0
    """Number of tanh layers of size H between the state and the vocabulary (deep hidden-to-output)."""
    output_recurrence: bool = False
    """Whether the previous token is the only memory: h_t does not read h_{t-1}. For the cells `tanh` and `relu`."""
    length: Literal["end-symbol", "explicit"] = "end-symbol"
    """End of a sentence: a symbol of the vocabulary that the recurrent network predicts, or an explicit distribution of
    the length P(T), from the image vector if there is one."""
    max_length: Length = 40
    """Longest length M with a probability of its own in the explicit distribution; longer lengths are geometric."""
    dropout: Rate = 0.0
    """Dropout rate of the word embeddings, of the states between layers and before the vocabulary in training."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the image features, and sizes of the convnet on pixels or feature maps."""

    @model_validator(mode="after")
    def _output_recurrence_has_no_state(self) -> Self:
        if not self.output_recurrence:
            return self
        if self.cell.name not in ("tanh", "relu") or self.transition_layers or self.delay:
            raise ValueError(
                f"output_recurrence has no state that gates, transition_layers or a delay could read; expected cell "
                f"'tanh' or 'relu' without them, got cell '{self.cell.name}'"
            )
        if self.conditioning in ("initial-state", "both"):
            raise ValueError(
                f"output_recurrence has no initial state; expected conditioning 'none' or 'every-step', got "
                f"'{self.conditioning}'"
            )
        return self


class LengthTerms(NamedTuple):
    """Explicit distribution of the length, position by position; the last column stands for all positions from M on."""

    end: Tensor  # (B, M + 1): log P(T = t | T >= t)
    more: Tensor  # (B, M + 1): log P(T > t | T >= t)


class RNNMemory(NamedTuple):
    """Terms of the image, constant over the time steps."""

    present: Tensor  # (B,)
    extra: Tensor | None  # (B, E): input of every step; None without one
    initial: tuple[LayerState, ...]  # (B, H) each: state before the first token
    length: LengthTerms | None  # None with an end symbol


class RNNState(NamedTuple):
    """State of the recurrent layers, and the number of tokens so far."""

    layers: tuple[LayerState, ...]
    position: Tensor  # (B,)


class RNN(EmbeddedWords, EncodedImages, nn.Module):
    """A recurrent network that predicts each token from the previous tokens, with or without an image vector v.

        x_t = [E y_{t-1}; W_v v + b_v]                         inputs; the second part with `every-step` and `both`  (1)
        h_0 = tanh(W_0 v + b_0)                                with `initial-state` and `both`, otherwise 0          (2)
        h_t = F(h_{t-1}, x_t)                                  recurrent layers of any cell                          (3)
        u_0 = h_t, u_k = tanh(W_k u_{k-1} + b_k)               `output_layers`, k = 1 … K                            (4)
        P(y_t | y_1 … y_{t-1}) = softmax(W_z u_K + b_z)                                                              (5)

    With several layers, each has its own h_0, and an LSTM its own c_0 of the same form. With output recurrence,
    h_t = f(W x_t + b), where f is the activation of the cell: the memory is the previous target y_{t-1} alone, the true
    token in training (teacher forcing) and the generated token afterwards, and all positions are independent of each
    other given the targets.

    The sentence ends by the symbol </s> of the vocabulary, or by an explicit length with P(y) = P(y | T) P(T):

        P(T) = softmax(W_T v + b_T) over T = 0 … M - 1 and T >= M; without an image b_T alone                        (6)
        P(y_t = </s> | y_1 … y_{t-1}) = P(T = t - 1) / P(T >= t - 1)                                                 (7)
        P(y_t = w | y_1 … y_{t-1}) = (1 - eq. 7) P(w) / (1 - P(</s>)), with P of eq. 5                               (8)

    so that decoding and scoring need not know of it. The gradient of the likelihood estimates b_T; without an image its
    optimum is the relative frequency of each length.

    Departures from the lecture: the words are independent of T given the previous words, P(y | T) reads no remaining
    length; lengths of M and more have P(T = M + n | T >= M) = 2^-(n + 1); the vector v is embedded before it is an
    extra input. Initialisation: orthogonal recurrent weights, word embeddings normal with standard deviation 0.1,
    biases of the vocabulary and the lengths zero, otherwise the defaults of `nn.Linear`.
    """

    Settings: ClassVar = RNNSettings

    def __init__(self, settings: RNNSettings, inputs: ModelInputs) -> None:
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        embedding, hidden, condition = settings.embedding_dim, settings.hidden_dim, settings.conditioning
        self.image_encoder = (
            None if condition == "none" else ImageEncoder(inputs.feature_shapes, settings.image_encoder)
        )
        image_dim = self.image_encoder.dim if self.image_encoder else 0
        every_step, initial = condition in ("every-step", "both"), condition in ("initial-state", "both")
        self.embedding = nn.Embedding(inputs.vocab_size, embedding)  # E
        self.extra = nn.Linear(image_dim, embedding) if every_step else None  # W_v, b_v
        input_dim = 2 * embedding if every_step else embedding
        self.recurrent: RecurrentLayers | None = None
        self.feedforward = nn.ModuleList()  # W, b of output recurrence
        if settings.output_recurrence:
            sizes = [input_dim, *[hidden] * (settings.layers - 1)]
            self.feedforward.extend(nn.Linear(size, hidden) for size in sizes)
        else:
            self.recurrent = RecurrentLayers(input_dim, hidden, settings)
        has_memory_cell = self.recurrent is not None and self.recurrent.start(1)[0].state.cell is not None
        parts = settings.layers * (2 if has_memory_cell else 1)
        self.initial = nn.Linear(image_dim, parts * hidden) if initial else None  # W_0, b_0
        self.output = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(settings.output_layers))  # W_k, b_k
        self.softmax = nn.Linear(hidden, inputs.vocab_size)  # W_z, b_z
        explicit = settings.length == "explicit"
        self.length_bias = nn.Parameter(torch.zeros(settings.max_length + 1)) if explicit else None  # b_T
        by_image = explicit and self.image_encoder is not None
        self.length_image = nn.Linear(image_dim, settings.max_length + 1, bias=False) if by_image else None  # W_T
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.zeros_(self.softmax.bias)

    def encode(self, batch: Batch) -> RNNMemory:
        """Compute the extra input of every step (eq. 1), the initial state (eq. 2) and the lengths (eq. 6)."""
        present = batch.image.present
        vector = None if self.image_encoder is None else self.image_vector(batch.image)  # v
        extra = None if self.extra is None or vector is None else self.extra(vector)
        initial = self._initial_state(present.shape[0], vector)
        return RNNMemory(present, extra, initial, self._length_terms(present.shape[0], vector))

    def _initial_state(self, rows: int, vector: Tensor | None) -> tuple[LayerState, ...]:
        """Compute the state before the first token (eq. 2) from image vectors (B, D), or zeros."""
        if self.recurrent is None:
            return ()
        zeros = self.recurrent.start(rows)
        if self.initial is None or vector is None:
            return zeros
        parts = iter(torch.split(torch.tanh(precise(self.initial(vector))), self.settings.hidden_dim, -1))
        states = []
        for state, past in zeros:
            hidden, cell = next(parts), None if state.cell is None else next(parts)
            past = None if past is None else torch.cat([past[:, 1:], hidden[:, None]], 1)
            states.append(LayerState(state._replace(hidden=hidden, cell=cell), past))
        return tuple(states)

    def _length_terms(self, rows: int, vector: Tensor | None) -> LengthTerms | None:
        """Compute the explicit distribution of the length (eqs. 6 and 7) from image vectors (B, D)."""
        if self.length_bias is None:
            return None
        logits = self.length_bias.expand(rows, -1)
        if self.length_image is not None and vector is not None:
            logits = logits + self.length_image(vector)
        log_probs = precise(logits).log_softmax(1)  # P(T), of T = M for T >= M
        at_least = _log_sums_from(log_probs)  # P(T >= t)
        half = log_probs.new_full((rows, 1), -math.log(2))
        end = torch.cat([(log_probs - at_least)[:, :-1], half], 1)
        return LengthTerms(end, torch.cat([at_least[:, 1:] - at_least[:, :-1], half], 1))

    def start(self, memory: RNNMemory) -> RNNState:
        present = memory.present
        return RNNState(memory.initial, torch.zeros(present.shape[0], dtype=torch.long, device=present.device))

    def step(self, tokens: Tensor, memory: RNNMemory, state: RNNState) -> tuple[Tensor, RNNState]:
        inputs = self.embedding(tokens)
        if memory.extra is not None:
            inputs = torch.cat([inputs, repeat_rows(memory.extra, tokens.shape[0])], 1)  # eq. 1
        if self.recurrent is None:
            hidden, layers = self._feed_forward(inputs), state.layers
        else:
            hidden, layers = self.recurrent.step(inputs, state.layers)  # eq. 3
        logits = self._read_out(hidden)
        if memory.length is not None:
            column = state.position.clamp(max=self.settings.max_length)[:, None]
            end, more = (repeat_rows(terms, tokens.shape[0]).gather(1, column) for terms in memory.length)
            logits = _end_by_length(logits, end, more)
        return logits, RNNState(layers, state.position + 1)

    def forward(self, batch: Batch) -> Output:
        """Compute the logits (B, T, V) of all positions; only eq. 3 runs in a loop over time."""
        memory, rate = self.encode(batch), self.settings.dropout
        inputs = dropout(self.embedding(batch.target_in), rate, self.training)
        if memory.extra is not None:
            extra = memory.extra[:, None].expand(-1, inputs.shape[1], -1)
            inputs = torch.cat([inputs, extra], 2)  # eq. 1
        hidden = self._feed_forward(inputs) if self.recurrent is None else self.recurrent(inputs, memory.initial)[0]
        logits = self._read_out(dropout(hidden, rate, self.training))
        if memory.length is not None:
            columns = torch.arange(logits.shape[1], device=logits.device).clamp(max=self.settings.max_length)
            logits = _end_by_length(logits, *(terms[:, columns, None] for terms in memory.length))
        return Output(logits)

    def _feed_forward(self, inputs: Tensor) -> Tensor:
        """Compute h_t of output recurrence from inputs x_t (…, 2 E or E)."""
        activation = torch.relu if self.settings.cell.name == "relu" else torch.tanh
        for number, layer in enumerate(self.feedforward):
            if number:
                inputs = dropout(inputs, self.settings.dropout, self.training)
            inputs = activation(layer(inputs))
        return inputs

    def _read_out(self, hidden: Tensor) -> Tensor:
        """Compute the logits (…, V) of states (…, H) (eqs. 4 and 5)."""
        for layer in self.output:
            hidden = torch.tanh(layer(hidden))
        logits: Tensor = self.softmax(hidden)
        return logits


def _log_sums_from(log_probs: Tensor) -> Tensor:
    """Compute log sum_{u >= t} exp(x_u) of rows (B, T)."""
    if not is_exporting():
        return log_probs.flip(1).logcumsumexp(1).flip(1)
    length = log_probs.shape[1]  # ONNX has no such operator: the sums of all rows of a triangle
    later = torch.ones(length, length, dtype=torch.bool, device=log_probs.device).triu()
    return log_probs[:, None].masked_fill(~later, -math.inf).logsumexp(-1)


def _end_by_length(logits: Tensor, end: Tensor, more: Tensor) -> Tensor:
    """Replace the probability of </s> in logits (…, V) by the probability of an explicit length (eqs. 7 and 8)."""
    is_end = torch.arange(logits.shape[-1], device=logits.device) == SPECIAL_TOKENS.eos
    words = precise(logits).masked_fill(is_end, -math.inf).log_softmax(-1)
    return torch.where(is_end, end, words + more)
