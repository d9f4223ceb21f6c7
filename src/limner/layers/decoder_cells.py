"""Decoder cells that translate: what one step does between the last word and the read-out.

A cell is told everything that does not depend on the previous state beforehand, for all positions at once, and keeps
no state of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from limner.layers.attention import AdditiveAttention, Annotations
from limner.layers.fused.accumulate import Product
from limner.layers.precision import precise
from limner.layers.recurrent import gru, start_recurrent


class Masks(NamedTuple):
    """Dropout of what recurrent products read, one mask for all time steps (Gal and Ghahramani, 2016)."""

    hidden: Tensor  # (B, H)
    proposal: Tensor | None = None  # (B, H); none for a cell that makes no proposal


class Step(NamedTuple):
    """What one step comes to."""

    hidden: Tensor  # (B, H): s_t
    context: Tensor  # (B, D): c_t
    alignment: Tensor  # (B, S): weights over the source words
    image: Tensor | None = None  # (B, D'): i_t
    attention: Tensor | None = None  # (B, L): weights over the picture
    gate: Tensor | None = None  # (B,): beta_t


class Loop(NamedTuple):
    """What the steps of a loop share."""

    products: tuple[Callable[[Tensor], Sequence[Tensor]], ...]
    """The cell's weights, as what is done with them at every step: some x to the products with each of several."""
    source: Annotations
    picture: Annotations | None


class ConditionalGRU(nn.Module):
    """The conditional GRU of Calixto et al. (2017), section 2.2, and with a picture the one of section 3.1.

    REC1 makes a proposal s' of the previous word and state, the attentions ask with it, and REC2 makes the new state of
    it and of what they found. The gate beta of the picture comes from the previous state (eq. 7).
    """

    def __init__(self, word_dim: int, hidden_dim: int, source_dim: int, attention_dim: int, image_dim: int = 0) -> None:
        """Build; `image_dim` is the size of what a picture has at each place, 0 for a cell that sees none."""
        super().__init__()
        self.word = nn.Linear(word_dim, 3 * hidden_dim)  # REC1: W, b
        self.recurrent_1 = _recurrent(hidden_dim)
        self.source_attention = AdditiveAttention(hidden_dim, source_dim, attention_dim)
        self.source_context = nn.Linear(source_dim, 3 * hidden_dim)  # REC2: W^src, b
        self.recurrent_2 = _recurrent(hidden_dim)
        self.image_attention: AdditiveAttention | None = None
        if image_dim:
            self.image_attention = AdditiveAttention(hidden_dim, image_dim, attention_dim)
            self.image_context = nn.Linear(image_dim, 3 * hidden_dim, bias=False)  # REC2: W^img
            self.gate = nn.Linear(hidden_dim, 1)  # W_beta, b_beta

    def words(self, embedded: Tensor) -> Tensor:
        """What the previous words give to every step: (B, T, E) to (B, T, 3H)."""
        projected: Tensor = self.word(embedded)
        return projected

    def loop(self, source: Annotations, picture: Annotations | None) -> Loop:
        """Begin a loop: what its steps share, made once.

        Args:
            source: the source words of N examples.
            picture: the places of their pictures, of which a mask may leave none; None for text alone.
        """
        asked, layers = [self.recurrent_2, self.source_attention.query.weight], [self.source_context]
        if self.image_attention is not None:
            asked, layers = (
                [*asked, self.image_attention.query.weight],
                [self.source_context, self.image_context, self.gate],
            )
        products = (each_step([layer.weight], layer.bias) for layer in layers)
        return Loop((each_step([self.recurrent_1]), each_step(asked), *products), *_shared(source, picture))

    def forward(self, word: Tensor, hidden: Tensor, loop: Loop, masks: Masks | None = None) -> Step:
        """One step.

        Args:
            word: of `words`, at this position, (N K, 3H).
            hidden: s_{t-1}, (N K, H).
            loop: of `loop`, the same for all steps of one.
            masks: dropout; None while nothing is learned.
        """
        recur, ask, read, *rest = loop.products
        kept = hidden if masks is None else hidden * masks.hidden
        proposal = gru(word, recur(kept)[0], hidden)  # s'_t
        recurrent, query, *looks = ask(
            proposal if masks is None or masks.proposal is None else proposal * masks.proposal
        )
        context, alignment = self.source_attention(query, loop.source)
        inputs = read(context)[0]
        if self.image_attention is None or loop.picture is None:
            return Step(gru(inputs, recurrent, proposal), context, alignment)
        seen, attention = self.image_attention(looks[0], loop.picture)
        look, open_gate = rest
        gate = torch.sigmoid(precise(open_gate(kept)[0]))  # beta_t, (N K, 1)
        if loop.picture.there is not None:
            gate = gate * loop.picture.there.repeat_interleave(len(hidden) // len(loop.picture.there), 0)
        image = seen * gate
        state = gru(inputs + look(image)[0], recurrent, proposal)
        return Step(state, context, alignment, image, attention, gate.squeeze(1))


class AttentionGRU(nn.Module):
    """The decoder of Bahdanau et al. (2015) as Calixto et al. (2016), section 2.3, use it; with a picture section 2.4.

    The attentions ask with the previous state and word (eqs. 3 and 6), and one GRU reads the word and what they found.
    """

    def __init__(self, word_dim: int, hidden_dim: int, source_dim: int, attention_dim: int, image_dim: int = 0) -> None:
        """Build; `image_dim` is the size of what a picture has at each place, 0 for a cell that sees none."""
        super().__init__()
        self.word = nn.Linear(word_dim, 3 * hidden_dim)
        self.recurrent = _recurrent(hidden_dim)
        self.source_attention = AdditiveAttention(hidden_dim, source_dim, attention_dim)
        self.source_word = nn.Linear(word_dim, attention_dim, bias=False)
        self.source_context = nn.Linear(source_dim, 3 * hidden_dim, bias=False)
        self.image_attention: AdditiveAttention | None = None
        if image_dim:
            self.image_attention = AdditiveAttention(hidden_dim, image_dim, attention_dim)
            self.image_word = nn.Linear(word_dim, attention_dim, bias=False)
            self.image_context = nn.Linear(image_dim, 3 * hidden_dim, bias=False)

    def words(self, embedded: Tensor) -> Tensor:
        """What the previous words give to every step: (B, T, E) to (B, T, 3H + A), with a picture (B, T, 3H + 2A)."""
        parts = [self.word(embedded), self.source_word(embedded)]
        return torch.cat([*parts, self.image_word(embedded)] if self.image_attention else parts, -1)

    def loop(self, source: Annotations, picture: Annotations | None) -> Loop:
        """Begin a loop; arguments as of `ConditionalGRU`."""
        asked, layers = [self.recurrent, self.source_attention.query.weight], [self.source_context]
        if self.image_attention is not None:
            asked, layers = [*asked, self.image_attention.query.weight], [self.source_context, self.image_context]
        products = (each_step([layer.weight]) for layer in layers)
        return Loop((each_step(asked), *products), *_shared(source, picture))

    def forward(self, word: Tensor, hidden: Tensor, loop: Loop, masks: Masks | None = None) -> Step:
        """One step; arguments as of `ConditionalGRU`."""
        ask, read, *rest = loop.products
        gates, size = 3 * hidden.shape[1], self.source_word.out_features
        recurrent, query, *looks = ask(hidden if masks is None else hidden * masks.hidden)
        context, alignment = self.source_attention(query + word[:, gates : gates + size], loop.source)
        inputs = word[:, :gates] + read(context)[0]
        image = attention = None
        if self.image_attention is not None and loop.picture is not None:
            image, attention = self.image_attention(looks[0] + word[:, gates + size :], loop.picture)
            inputs = inputs + rest[0](image)[0]
        return Step(gru(inputs, recurrent, hidden), context, alignment, image, attention)


def each_step(weights: Sequence[Tensor], bias: Tensor | None = None) -> Callable[[Tensor], Sequence[Tensor]]:
    """Make the products x W' + b with several weights, for every step of a loop.

    Where something is learned it is one product of all of them, and the gradient is that of all steps together.
    """
    if torch.is_grad_enabled():
        product, sizes = Product(torch.cat(list(weights)), bias), [len(weight) for weight in weights]
        return lambda x: torch.split(product(x), sizes, -1)
    return lambda x: [linear(x, weight, bias) for weight in weights]


def _recurrent(size: int) -> nn.Parameter:
    """U of the three gates, (3H, H), each orthogonal."""
    weight = torch.empty(size, 3 * size)
    start_recurrent(weight)
    return nn.Parameter(weight.t().contiguous())


def _shared(source: Annotations, picture: Annotations | None) -> tuple[Annotations, Annotations | None]:
    return source.shared(), None if picture is None else picture.shared()
