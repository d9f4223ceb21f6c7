"""Gated recurrent units: the bidirectional encoder, and the two decoders with attention.

Shapes: B batch, S source length, T target length, E embedding, H hidden, D annotation size, A attention size,
N examples with K hypotheses each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from limner.layers.attention import AdditiveAttention, Annotations
from limner.layers.dropout import dropout
from limner.layers.precision import at_least_float32, precise


def gru(inputs: Tensor, recurrent: Tensor, hidden: Tensor) -> Tensor:
    """Compute one step of a gated recurrent unit, Cho et al. (2014), in the form of Calixto et al. (2017), eq. 9.

    Args:
        inputs: W x + b of the update gate z, the reset gate r and the proposal, concatenated, (…, 3H).
        recurrent: U h of the update gate, the reset gate and the proposal, concatenated, (…, 3H).
        hidden: previous state h, (…, H), in at least float32.

    Returns:
        Next state, (…, H).
    """
    x_z, x_r, x = inputs.to(hidden.dtype).chunk(3, -1)
    u_z, u_r, u = recurrent.to(hidden.dtype).chunk(3, -1)
    z = torch.sigmoid(x_z + u_z)
    r = torch.sigmoid(x_r + u_r)
    proposal = torch.tanh(x + r * u)
    return (1 - z) * proposal + z * hidden


def unroll(
    inputs: Tensor, weight: Tensor, hidden: Tensor, mask: Tensor | None = None, dropout_mask: Tensor | None = None
) -> Tensor:
    """Run a gated recurrent unit over sequences.

    Args:
        inputs: W x + b of every position, (B, S, 3H).
        weight: U, transposed, (H, 3H).
        hidden: initial state, (B, H), in at least float32.
        mask: true where a position exists, (B, S); elsewhere the state does not change. None if all positions exist.
        dropout_mask: mask of the states that products with U read, the same for all steps, (B, H); None for no dropout.

    Returns:
        State after every position, (B, S, H).
    """
    states = []
    for t, at_t in enumerate(inputs.unbind(1)):
        read = hidden if dropout_mask is None else hidden * dropout_mask
        after = gru(at_t, read.to(weight.dtype) @ weight, hidden)
        hidden = after if mask is None else torch.where(mask[:, t, None], after, hidden)
        states.append(hidden)
    return torch.stack(states, 1)


class BiGRU(nn.Module):
    """A forward and a backward GRU over padded sequences: the encoder of Bahdanau et al. (2015)."""

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        """Build the layer for inputs of size E and states of size H, with orthogonal recurrent weights."""
        super().__init__()
        self.input = nn.Linear(input_dim, 6 * hidden_dim)  # W, b of both directions
        self.recurrent = nn.Parameter(torch.empty(2, hidden_dim, 3 * hidden_dim))  # U of both directions, transposed
        self.hidden_dim = hidden_dim
        with torch.no_grad():
            for direction in self.recurrent:
                orthogonal_gates(direction)

    def forward(self, sequence: Tensor, mask: Tensor, rate: float = 0.0) -> tuple[Tensor, Tensor]:
        """Encode sequences. Padding does not change a state.

        Args:
            sequence: embeddings, (B, S, E).
            mask: true where a token exists, (B, S).
            rate: dropout rate of the states in recurrent products, one mask for all steps (Gal and Ghahramani, 2016).

        Returns:
            Annotations [forward; backward] of every token, (B, S, 2H), and the last states of both directions, (B, 2H).
        """
        rows, size = len(sequence), self.hidden_dim
        inputs = self.input(sequence)  # (B, S, 6H)
        weight = self.recurrent.to(inputs.dtype)
        zeros = torch.zeros(rows, size, dtype=at_least_float32(inputs), device=inputs.device)
        dropout_mask = dropout_mask_backward = None
        if rate and self.training:
            ones = torch.ones(2, rows, size, dtype=self.recurrent.dtype, device=inputs.device)
            dropout_mask, dropout_mask_backward = dropout(ones, rate, True).unbind(0)
        forward = unroll(inputs[..., : 3 * size], weight[0], zeros, mask, dropout_mask)
        reverse = inputs[..., 3 * size :].flip(1)
        backward = unroll(reverse, weight[1], zeros, mask.flip(1), dropout_mask_backward).flip(1)
        return torch.cat([forward, backward], -1), torch.cat([forward[:, -1], backward[:, 0]], -1)


class DropoutMasks(NamedTuple):
    """Dropout masks of the states in recurrent products, the same for all steps (Gal and Ghahramani, 2016)."""

    hidden: Tensor  # (B, H), of s_{t-1}
    proposal: Tensor | None = None  # (B, H), of s'_t; None for an `AttentionGRU`


class Step(NamedTuple):
    """Result of one decoder step; for a whole target sequence each tensor has T as its second dimension."""

    hidden: Tensor  # (B, H): s_t
    context: Tensor  # (B, D): c_t
    alignment: Tensor  # (B, S): attention weights over the source tokens
    image: Tensor | None = None  # (B, D'): i_t
    attention: Tensor | None = None  # (B, L): attention weights over the image locations
    gate: Tensor | None = None  # (B,): beta_t


class ConditionalGRU(nn.Module):
    """The conditional GRU of Calixto et al. (2017): section 2.2, and with an image section 3.1.

    REC1 computes a proposal s'_t, which queries the attentions; REC2 computes s_t from s'_t and the contexts.
    """

    def __init__(self, word_dim: int, hidden_dim: int, source_dim: int, attention_dim: int, image_dim: int = 0) -> None:
        """Build the decoder with randomly initialised weights.

        Args:
            word_dim: size E of the target embeddings.
            hidden_dim: size H of the state.
            source_dim: size D of the source annotations.
            attention_dim: size A of the hidden layers of the attentions.
            image_dim: size of the image annotations; 0 for text only.
        """
        super().__init__()
        self.word = nn.Linear(word_dim, 3 * hidden_dim)  # REC1: W, b
        self.recurrent_1 = _orthogonal(hidden_dim)  # REC1: U
        self.source_attention = AdditiveAttention(hidden_dim, source_dim, attention_dim)
        self.source_context = nn.Linear(source_dim, 3 * hidden_dim)  # REC2: W^src, b
        self.recurrent_2 = _orthogonal(hidden_dim)  # REC2: U
        self.image_attention: AdditiveAttention | None = None
        if image_dim:
            self.image_attention = AdditiveAttention(hidden_dim, image_dim, attention_dim)
            self.image_context = nn.Linear(image_dim, 3 * hidden_dim, bias=False)  # REC2: W^img
            self.gate = nn.Linear(hidden_dim, 1)  # W_beta, b_beta

    def words(self, embedded: Tensor) -> Tensor:
        """Precompute the step inputs of all target tokens: (B, T, E) to (B, T, 3H)."""
        inputs: Tensor = self.word(embedded)
        return inputs

    def forward(
        self,
        word: Tensor,
        hidden: Tensor,
        source: Annotations,
        image: Annotations | None,
        masks: DropoutMasks | None = None,
    ) -> Step:
        """Compute one step.

        Args:
            word: step input of the previous token, of `words`, (N K, 3H).
            hidden: s_{t-1}, (N K, H).
            source: annotations of the source tokens of N examples.
            image: annotations of the image locations, all masked for an example without an image; None for text only.
            masks: dropout masks; None outside of training.
        """
        read = hidden if masks is None else hidden * masks.hidden
        proposal = gru(word, linear(read, self.recurrent_1), hidden)  # s'_t
        query = proposal if masks is None or masks.proposal is None else proposal * masks.proposal
        context, alignment = self.source_attention(query, source)  # c_t (eqs. 2-4)
        inputs = self.source_context(context)
        image_context = attention = gate = None
        if self.image_attention is not None and image is not None:
            location, attention = self.image_attention(query, image)  # eqs. 5 and 6
            gate = _mask_gate(image, torch.sigmoid(precise(self.gate(read))))  # beta_t (eq. 7)
            image_context = gate * location  # i_t (eq. 8)
            inputs = inputs + self.image_context(image_context)
            gate = gate[:, 0]
        state = gru(inputs, linear(query, self.recurrent_2), proposal)  # s_t (eq. 9)
        return Step(state, context, alignment, image_context, attention, gate)


class AttentionGRU(nn.Module):
    """The decoder of Bahdanau et al. (2015), as in Calixto et al. (2016), section 2.3, and with an image section 2.4.

    The previous state and word query the attentions (eqs. 3 and 6); one GRU reads the word and the contexts.
    """

    def __init__(self, word_dim: int, hidden_dim: int, source_dim: int, attention_dim: int, image_dim: int = 0) -> None:
        """Build the decoder with randomly initialised weights.

        Args:
            word_dim: size E of the target embeddings.
            hidden_dim: size H of the state.
            source_dim: size D of the source annotations.
            attention_dim: size A of the hidden layers of the attentions.
            image_dim: size of the image annotations; 0 for text only.
        """
        super().__init__()
        self.word = nn.Linear(word_dim, 3 * hidden_dim)  # W, b
        self.recurrent = _orthogonal(hidden_dim)  # U
        self.source_attention = AdditiveAttention(hidden_dim, source_dim, attention_dim)
        self.source_word = nn.Linear(word_dim, attention_dim, bias=False)  # Y_a of the source attention
        self.source_context = nn.Linear(source_dim, 3 * hidden_dim, bias=False)  # W^src
        self.image_attention: AdditiveAttention | None = None
        if image_dim:
            self.image_attention = AdditiveAttention(hidden_dim, image_dim, attention_dim)
            self.image_word = nn.Linear(word_dim, attention_dim, bias=False)  # Y_a of the image attention
            self.image_context = nn.Linear(image_dim, 3 * hidden_dim, bias=False)  # W^img

    def words(self, embedded: Tensor) -> Tensor:
        """Precompute the step inputs of all target tokens: (B, T, E) to (B, T, 3H + A), with an image 3H + 2A."""
        parts = [self.word(embedded), self.source_word(embedded)]
        return torch.cat([*parts, self.image_word(embedded)] if self.image_attention else parts, -1)

    def forward(
        self,
        word: Tensor,
        hidden: Tensor,
        source: Annotations,
        image: Annotations | None,
        masks: DropoutMasks | None = None,
    ) -> Step:
        """Compute one step; arguments are those of `ConditionalGRU.forward`."""
        size, attention_size = 3 * hidden.shape[1], self.source_word.out_features
        word, source_word, image_word = word.tensor_split([size, size + attention_size], -1)
        read = hidden if masks is None else hidden * masks.hidden
        context, alignment = self.source_attention(read, source, source_word)  # c_t (eq. 3)
        inputs = word + self.source_context(context)
        image_context = attention = None
        if self.image_attention is not None and image is not None:
            image_context, attention = self.image_attention(read, image, image_word)  # i_t (eqs. 6-8)
            inputs = inputs + self.image_context(image_context)
        state = gru(inputs, linear(read, self.recurrent), hidden)  # s_t
        return Step(state, context, alignment, image_context, attention)


Decoder = ConditionalGRU | AttentionGRU


def decode(
    decoder: Decoder,
    words: Tensor,
    hidden: Tensor,
    source: Annotations,
    image: Annotations | None,
    masks: DropoutMasks | None = None,
) -> Step:
    """Run a decoder over a target sequence.

    Args:
        decoder: decoder, called T times.
        words: step inputs of all target tokens, of `decoder.words`, (B, T, …).
        hidden: s_0, (B, H).
        source: annotations of the source tokens.
        image: annotations of the image locations; None for text only.
        masks: dropout masks; None outside of training.

    Returns:
        Stacked results of all steps, (B, T, …).
    """
    steps: list[Step] = []
    for word in words.unbind(1):
        steps.append(decoder(word, hidden, source, image, masks))
        hidden = steps[-1].hidden
    stacked = (None if parts[0] is None else torch.stack(parts, 1) for parts in zip(*steps, strict=True))
    return Step(*cast(Iterable[Any], stacked))


def _mask_gate(image: Annotations, gate: Tensor) -> Tensor:
    """Set the gates (N K, 1) of examples without an image to zero."""
    if image.mask is None:
        return gate
    exists = image.mask.any(1, keepdim=True)  # (N, 1)
    return gate * exists.repeat_interleave(len(gate) // len(exists), 0)


def _orthogonal(size: int) -> nn.Parameter:
    """Draw the recurrent weights U (3H, H) with one random orthogonal matrix per gate."""
    weight = torch.empty(size, 3 * size)
    orthogonal_gates(weight)
    return nn.Parameter(weight.t().contiguous())


@torch.no_grad()
def orthogonal_gates(weight: Tensor) -> None:
    """Fill `weight` (H, n H) in place with one random orthogonal matrix (H, H) for each of n gates."""
    for gate in weight.view(len(weight), -1, len(weight)).unbind(1):
        gate.copy_(nn.init.orthogonal_(torch.empty(gate.shape)))
