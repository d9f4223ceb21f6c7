"""The two decoders with attention: the conditional decoder, and the decoder of Bahdanau et al. (2015).

Shapes: B batch, S source length, T target length, E embedding, H hidden, G gates of the cell, D annotation size,
A attention size, N examples with K hypotheses each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from limner.layers.attention import AdditiveAttention, Annotations
from limner.layers.cells import CellSettings, CellState, build_cell
from limner.layers.functional import precise, repeat_rows


class DropoutMasks(NamedTuple):
    """Dropout masks of the states in recurrent products, the same for all steps (Gal and Ghahramani, 2016)."""

    hidden: Tensor  # (B, H), of s_{t-1}
    proposal: Tensor | None = None  # (B, H), of s'_t; None for an `AttentionDecoder`


class Step(NamedTuple):
    """Result of one decoder step; for a whole target sequence each tensor has T as its second dimension."""

    state: CellState  # (B, H): s_t, and the memory cell of an LSTM
    context: Tensor  # (B, D): c_t
    alignment: Tensor  # (B, S): attention weights over the source tokens
    image: Tensor | None = None  # (B, D'): i_t
    attention: Tensor | None = None  # (B, L): attention weights over the image locations
    gate: Tensor | None = None  # (B,): beta_t


class ConditionalDecoder(nn.Module):
    """The conditional GRU of Calixto et al. (2017), section 2.2, and with an image section 3.1; or with other cells.

    REC1 computes a proposal s'_t, which queries the attentions; REC2 computes s_t from s'_t and the contexts.
    """

    def __init__(
        self,
        cell: CellSettings,
        word_dim: int,
        hidden_dim: int,
        source_dim: int,
        attention_dim: int,
        image_dim: int = 0,
    ) -> None:
        """Build the decoder with randomly initialised weights.

        Args:
            cell: recurrent cell; a GRU in the papers.
            word_dim: size E of the target embeddings.
            hidden_dim: size H of the state.
            source_dim: size D of the source annotations.
            attention_dim: size A of the hidden layers of the attentions.
            image_dim: size of the image annotations; 0 for text only.
        """
        super().__init__()
        self.rec1 = build_cell(cell, word_dim, hidden_dim)
        self.source_attention = AdditiveAttention(hidden_dim, source_dim, attention_dim)
        self.rec2 = build_cell(cell, source_dim, hidden_dim)  # its input is the source context
        self.image_attention: AdditiveAttention | None = None
        if image_dim:
            self.image_attention = AdditiveAttention(hidden_dim, image_dim, attention_dim)
            self.image_context = nn.Linear(image_dim, self.rec2.gates * hidden_dim, bias=False)  # REC2: W^img
            self.gate = nn.Linear(hidden_dim, 1)  # W_beta, b_beta

    @property
    def has_memory_cell(self) -> bool:
        return self.rec1.has_memory_cell

    def words(self, embedded: Tensor) -> Tensor:
        """Precompute the step inputs of all target tokens: (B, T, E) to (B, T, G H)."""
        return self.rec1.project(embedded)

    def forward(
        self,
        word: Tensor,
        state: CellState,
        source: Annotations,
        image: Annotations | None,
        masks: DropoutMasks | None = None,
    ) -> Step:
        """Compute one step.

        Args:
            word: step input of the previous token, of `words`, (N K, G H).
            state: s_{t-1}, (N K, H).
            source: annotations of the source tokens of N examples.
            image: annotations of the image locations, all masked for an example without an image; None for text only.
            masks: dropout masks; None outside of training.
        """
        read = state.hidden if masks is None else state.hidden * masks.hidden
        proposal: CellState = self.rec1(word, state, read)  # s'_t
        query = proposal.hidden if masks is None or masks.proposal is None else proposal.hidden * masks.proposal
        context, alignment = self.source_attention(query, source)  # c_t (eqs. 2-4)
        inputs = self.rec2.project(context)
        image_context = attention = gate = None
        if self.image_attention is not None and image is not None:
            location, attention = self.image_attention(query, image)  # eqs. 5 and 6
            gate = torch.sigmoid(precise(self.gate(read)))  # beta_t (eq. 7)
            if image.mask is not None:  # zero without an image
                gate = gate * repeat_rows(image.mask.any(1, keepdim=True), gate.shape[0])
            image_context = gate * location  # i_t (eq. 8)
            inputs = inputs + self.image_context(image_context)
            gate = gate[:, 0]
        state = self.rec2(inputs, proposal, query)  # s_t (eq. 9)
        return Step(state, context, alignment, image_context, attention, gate)


class AttentionDecoder(nn.Module):
    """The decoder of Bahdanau et al. (2015), as in Calixto et al. (2016), section 2.3, and with an image section 2.4.

    The previous state and word query the attentions (eqs. 3 and 6); one cell reads the word and the contexts.
    """

    def __init__(
        self,
        cell: CellSettings,
        word_dim: int,
        hidden_dim: int,
        source_dim: int,
        attention_dim: int,
        image_dim: int = 0,
    ) -> None:
        super().__init__()
        self.cell = build_cell(cell, word_dim, hidden_dim)
        self.source_attention = AdditiveAttention(hidden_dim, source_dim, attention_dim)
        self.source_word = nn.Linear(word_dim, attention_dim, bias=False)  # Y_a of the source attention
        self.source_context = nn.Linear(source_dim, self.cell.gates * hidden_dim, bias=False)  # W^src
        self.image_attention: AdditiveAttention | None = None
        if image_dim:
            self.image_attention = AdditiveAttention(hidden_dim, image_dim, attention_dim)
            self.image_word = nn.Linear(word_dim, attention_dim, bias=False)  # Y_a of the image attention
            self.image_context = nn.Linear(image_dim, self.cell.gates * hidden_dim, bias=False)  # W^img

    @property
    def has_memory_cell(self) -> bool:
        return self.cell.has_memory_cell

    def words(self, embedded: Tensor) -> Tensor:
        """Precompute the step inputs of all target tokens: (B, T, E) to (B, T, G H + A), with an image G H + 2A."""
        parts = [self.cell.project(embedded), self.source_word(embedded)]
        return torch.cat([*parts, self.image_word(embedded)] if self.image_attention else parts, -1)

    def forward(
        self,
        word: Tensor,
        state: CellState,
        source: Annotations,
        image: Annotations | None,
        masks: DropoutMasks | None = None,
    ) -> Step:
        size, attention_size = self.cell.gates * self.cell.hidden_dim, self.source_word.out_features
        word, source_word, image_word = word.tensor_split([size, size + attention_size], -1)
        read = state.hidden if masks is None else state.hidden * masks.hidden
        context, alignment = self.source_attention(read, source, source_word)  # c_t (eq. 3)
        inputs = word + self.source_context(context)
        image_context = attention = None
        if self.image_attention is not None and image is not None:
            image_context, attention = self.image_attention(read, image, image_word)  # i_t (eqs. 6-8)
            inputs = inputs + self.image_context(image_context)
        after: CellState = self.cell(inputs, state, read)  # s_t
        return Step(after, context, alignment, image_context, attention)


Decoder = ConditionalDecoder | AttentionDecoder


def decode(
    decoder: Decoder,
    words: Tensor,
    state: CellState,
    source: Annotations,
    image: Annotations | None,
    masks: DropoutMasks | None = None,
) -> Step:
    """Run a decoder over a target sequence from s_0 = `state`, with the step inputs of `decoder.words`, (B, T, …).

    Returns:
        Stacked results of all steps, (B, T, …), with the states s_t without their memory cells.
    """
    steps: list[Step] = []
    for word in words.unbind(1):
        steps.append(decoder(word, state, source, image, masks))
        state = steps[-1].state
    states, *parts = zip(*steps, strict=True)
    stacked: list[Any] = [None if part[0] is None else torch.stack(part, 1) for part in parts]
    return Step(CellState(torch.stack([state.hidden for state in states], 1)), *stacked)
