"""Additive attention over source words and over places of a picture."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from limner.models.protocols import precise

CELLS_AT_ONCE = 1 << 19
"""Units whose activation is taken together: few enough for a core's cache."""


class Annotations(NamedTuple):
    """What is attended to, one row an example: source words, or places of a picture."""

    values: Tensor  # (B, L, D)
    keys: Tensor  # (B, L, A)
    mask: Tensor | None  # (B, L) bool; None where all are real


class Gathered:
    """What the steps of a loop owe to the keys and to the annotations: it is added up here, and handed over once."""

    def __init__(self) -> None:
        self.steps = self.returned = 0
        self.by_keys: Tensor | None = None
        self.weights: list[Tensor] = []
        self.contexts: list[Tensor] = []


class AdditiveAttention(nn.Module):
    """Additive attention, Bahdanau et al. (2015); Calixto et al. (2017), eqs. 2-4 and 5-6, (2016), eqs. 3-8.

    Keys are projected once, outside the loop over time. tanh(x) = 2 sigmoid(2x) - 1, and a softmax does not see what
    all its inputs share, so v tanh(x) is computed as 2 v sigmoid(2x), several times as fast on a processor.
    """

    def __init__(self, query_dim: int, annotation_dim: int, attention_dim: int) -> None:
        """Build; the query's own product U s is made by whoever calls, with others."""
        super().__init__()
        self.query = nn.Linear(query_dim, attention_dim, bias=False)  # U_a
        self.key = nn.Linear(annotation_dim, attention_dim)  # W_a
        self.score = nn.Parameter(torch.empty(attention_dim))  # v_a
        nn.init.normal_(self.score, std=attention_dim**-0.5)

    def annotate(self, values: Tensor, mask: Tensor | None) -> Annotations:
        """Project the keys, once for all steps: values (B, L, D) and where they are real, (B, L)."""
        keys = self.key(values)
        return Annotations(values.to(keys.dtype), keys, mask)

    def forward(self, query: Tensor, to: Annotations, gathered: Gathered | None = None) -> tuple[Tensor, Tensor]:
        """Look where the query asks to.

        Args:
            query: U s, (N K, A): K queries to each of N sets of annotations, neighbours one after another.
            to: N sets of L annotations. A set without any gets weights zero.
            gathered: of the loop this is a step of; None for a step by itself.

        Returns:
            Context (N K, D) and weights (N K, L).
        """
        gathered = Gathered() if gathered is None else gathered
        queries = query.to(to.keys.dtype).view(len(to.keys), -1, to.keys.shape[2])
        energies: Tensor = _Energies.apply(  # type: ignore[no-untyped-call]
            queries, to.keys, self.score.to(to.keys.dtype), gathered
        )
        energies = precise(energies)  # (N, K, L)
        if to.mask is not None:
            energies = energies.masked_fill(~to.mask[:, None], -math.inf)
        weights = energies.softmax(-1)
        if to.mask is not None:
            weights = weights.masked_fill(~to.mask[:, None], 0.0)  # all masked: a softmax of nothing is no number
        context: Tensor = _Context.apply(weights, to.values, gathered)  # type: ignore[no-untyped-call]
        return context.flatten(0, 1), weights.flatten(0, 1)


class _Energies(torch.autograd.Function):
    """2 v sigmoid(2 (q + k)) for N sets of L keys (N, L, A) and K queries each (N, K, A): (N, K, L).

    The activations, T times the size of the keys over a sentence, are not kept: they are made again going back.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, score: Tensor, gathered: Gathered) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(query, keys, score)
        ctx.gathered = gathered
        gathered.steps += 1
        return torch.cat([_activations(query[some], keys[some]) @ (2 * score) for some in _pieces(query, keys)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor | None, Tensor, None]:  # noqa: ANN401
        query, keys, score = ctx.saved_tensors
        gathered: Gathered = ctx.gathered
        if gathered.by_keys is None:
            gathered.by_keys = torch.zeros_like(keys, dtype=_at_least_float32(keys))
        queries, to_score = [], torch.zeros_like(score, dtype=_at_least_float32(score))
        for some in _pieces(query, keys):
            error, by_keys = outer[some], gathered.by_keys[some]
            active = _activations(query[some], keys[some])  # (n, K, L, A)
            to_score += error.flatten() @ active.flatten(0, 2)
            slope = torch.addcmul(active, active, active, value=-1)
            queries.append(torch.matmul(error[:, :, None], slope)[:, :, 0])  # (n, K, A)
            for one in range(query.shape[1]):
                by_keys.addcmul_(slope[:, one], error[:, one, :, None])
        gathered.returned += 1
        all_of_it = None
        if gathered.returned == gathered.steps:
            all_of_it, gathered.by_keys = (gathered.by_keys * (4 * score)).to(keys.dtype), None
            gathered.returned = 0
        return torch.cat(queries) * (4 * score), all_of_it, (2 * to_score).to(score.dtype), None


class _Context(torch.autograd.Function):
    """Weighted sums of annotations: weights (N, K, L) and values (N, L, D) to (N, K, D)."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, gathered: Gathered) -> Tensor:  # noqa: ANN401
        rounded = weights.to(values.dtype)
        ctx.save_for_backward(rounded, values)
        ctx.gathered, ctx.exact = gathered, weights.dtype
        gathered.weights.append(rounded)
        return torch.bmm(rounded, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor | None, None]:  # noqa: ANN401
        _, values = ctx.saved_tensors
        gathered: Gathered = ctx.gathered
        gathered.contexts.append(outer)
        by_values = None
        if len(gathered.contexts) == len(gathered.weights):
            if ctx.needs_input_grad[1]:
                weights = torch.cat(gathered.weights[::-1], 1)  # (N, T K, L)
                by_values = torch.bmm(weights.transpose(1, 2), torch.cat(gathered.contexts, 1))
            gathered.contexts = []
        return torch.bmm(outer, values.transpose(1, 2)).to(ctx.exact), by_values, None


def _pieces(query: Tensor, keys: Tensor) -> list[slice]:
    """Rows whose activations fit a cache together."""
    height = max(1, CELLS_AT_ONCE // (query.shape[1] * keys.shape[1] * keys.shape[2]))
    return [slice(top, top + height) for top in range(0, len(keys), height)]


def _at_least_float32(values: Tensor) -> torch.dtype:
    return torch.promote_types(values.dtype, torch.float32)


def _activations(query: Tensor, keys: Tensor) -> Tensor:
    """sigmoid(2 (q + k)) of every query with every key, (n, K, L, A)."""
    return (query[:, :, None] + keys[:, None]).mul_(2).sigmoid_()
