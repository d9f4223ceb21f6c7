"""Additive attention over source words and over places of a picture."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from limner.layers.fused.accumulate import Owed, share
from limner.layers.precision import at_least_float32, precise

ELEMENTS_PER_CHUNK = 1 << 19
"""Units whose activation is taken together: few enough for a core's cache."""


class Annotations(NamedTuple):
    """What is attended to, one row an example: source words, or places of a picture."""

    values: Tensor  # (B, L, D)
    keys: Tensor  # (B, L, A): twice W_a h, as `AdditiveAttention` compares them
    missing: Tensor | None  # (B, 1, L) bool, true where nothing is; None where all are real
    there: Tensor | None  # (B, 1): 1 where any is, else 0; None as above
    owed: tuple[Owed, Owed] | None = None  # by the steps of a loop to values and keys; none outside of one

    def shared(self) -> Annotations:
        """The same, for the steps of a loop: the gradients by values and by keys are added up and made once."""
        if not torch.is_grad_enabled():
            return self
        by_values, by_keys = owed = Owed(_by_values), Owed(_by_keys)
        (values,), (keys,) = share(by_values, self.values), share(by_keys, self.keys)
        return self._replace(values=values, keys=keys, owed=owed)


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
        keys = linear(values, 2 * self.key.weight, 2 * self.key.bias)
        if mask is None or mask.all():
            return Annotations(values.to(keys.dtype), keys, None, None)
        return Annotations(values.to(keys.dtype), keys, ~mask[:, None], mask.any(1, keepdim=True).to(keys.dtype))

    def forward(self, query: Tensor, to: Annotations) -> tuple[Tensor, Tensor]:
        """Look where the query asks to.

        Args:
            query: U s, (N K, A): K queries to each of N sets of annotations, neighbours one after another.
            to: N sets of L annotations; in a loop, `shared` by its steps. A set without any gets weights zero.

        Returns:
            Context (N K, D) and weights (N K, L).
        """
        to = to if to.owed else to.shared()
        to_values, to_keys = to.owed or (None, None)
        queries = query.to(to.keys.dtype).view(len(to.keys), -1, to.keys.shape[2])
        energies: Tensor = _Energies.apply(  # type: ignore[no-untyped-call]
            queries, to.keys, self.score.to(to.keys.dtype), to_keys
        )
        energies = precise(energies)  # (N, K, L)
        if to.missing is not None:
            energies = energies.masked_fill(to.missing, -math.inf)
        weights = energies.softmax(-1)
        if to.missing is not None:
            weights = weights.masked_fill(to.missing, 0.0)  # all masked: a softmax of nothing is no number
        context: Tensor = _Context.apply(weights, to.values, to_values)  # type: ignore[no-untyped-call]
        return context.flatten(0, 1), weights.flatten(0, 1)


class _Energies(torch.autograd.Function):
    """2 v sigmoid(2 q + k) for N sets of L keys (N, L, A), doubled already, and K queries each (N, K, A): (N, K, L).

    The activations, T times the size of the keys over a sentence, are not kept: they are made again going back.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, score: Tensor, owed: Owed | None) -> Tensor:  # noqa: ANN401
        doubled, weights = 2 * query, 2 * score
        ctx.save_for_backward(doubled, keys, score)
        ctx.owed = owed
        return torch.cat([_activations(doubled[some], keys[some]) @ weights for some in _pieces(query, keys)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, Tensor, None]:  # noqa: ANN401
        doubled, keys, score = ctx.saved_tensors
        left: list[tuple[Tensor, Tensor]] = ctx.owed.left()
        if not left:
            left.append((torch.zeros_like(keys, dtype=at_least_float32(keys)), score.detach()))
        queries, to_score = [], torch.zeros_like(score, dtype=at_least_float32(score))
        for some in _pieces(doubled, keys):
            error, by_keys = outer[some], left[0][0][some]
            active = _activations(doubled[some], keys[some])  # (n, K, L, A)
            to_score += error.flatten() @ active.flatten(0, 2)
            slope = torch.addcmul(active, active, active, value=-1)
            queries.append(torch.matmul(error[:, :, None], slope)[:, :, 0])  # (n, K, A)
            for one in range(doubled.shape[1]):
                by_keys.addcmul_(slope[:, one], error[:, one, :, None])
        return torch.cat(queries) * (4 * score), None, (2 * to_score).to(score.dtype), None


def _by_keys(left: list[tuple[Tensor, Tensor]]) -> tuple[Tensor]:
    ((summed, score),) = left
    return ((summed * (2 * score)).to(score.dtype),)


class _Context(torch.autograd.Function):
    """Weighted sums of annotations: weights (N, K, L) and values (N, L, D) to (N, K, D)."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, owed: Owed | None) -> Tensor:  # noqa: ANN401
        rounded = weights.to(values.dtype)
        ctx.save_for_backward(rounded if ctx.needs_input_grad[1] else None, values)
        ctx.owed, ctx.exact = owed, weights.dtype
        return torch.bmm(rounded, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        weights, values = ctx.saved_tensors
        if weights is not None:
            ctx.owed.left().append((weights.detach(), outer))
        return torch.bmm(outer, values.transpose(1, 2)).to(ctx.exact), None, None


def _by_values(left: list[tuple[Tensor, Tensor]]) -> tuple[Tensor]:
    weights, contexts = (torch.cat(parts, 1) for parts in zip(*left, strict=True))  # (N, T K, L) and (N, T K, D)
    return (torch.bmm(weights.transpose(1, 2), contexts),)


def _pieces(query: Tensor, keys: Tensor) -> list[slice]:
    """Rows whose activations fit a cache together."""
    height = max(1, ELEMENTS_PER_CHUNK // (query.shape[1] * keys.shape[1] * keys.shape[2]))
    return [slice(top, top + height) for top in range(0, len(keys), height)]


def _activations(query: Tensor, keys: Tensor) -> Tensor:
    """Of every query with every key, (n, K, L, A)."""
    return (query[:, :, None] + keys[:, None]).sigmoid_()
