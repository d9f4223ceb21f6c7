"""Additive attention over source tokens and over image locations.

Shapes: N examples, K queries of each, L annotations, H query size, D annotation size, A attention size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from limner.layers.fused import attention as fused
from limner.layers.precision import precise


class Annotations(NamedTuple):
    """Vectors to attend to, one row an example: encoder states of source tokens, or image locations."""

    values: Tensor  # (N, L, D): h
    keys: Tensor  # (N, L, A): W_a h + b_a
    mask: Tensor | None  # (N, L) bool: true where an annotation exists; None where all of them do


class DoubledAnnotations(Annotations):
    """Annotations with doubled keys, 2 (W_a h + b_a), for `fused.energies`."""


class AdditiveAttention(nn.Module):
    """Additive attention, Bahdanau et al. (2015); Calixto et al. (2017), eqs. 2-4 and 5-6, (2016), eqs. 3-8."""

    def __init__(self, query_dim: int, annotation_dim: int, attention_dim: int) -> None:
        """Build with fresh weights for queries of size H, annotations of size D and a hidden layer of size A."""
        super().__init__()
        self.fused = True  # if false, `annotate` never chooses the faster energies
        self.query = nn.Linear(query_dim, attention_dim, bias=False)  # U_a
        self.key = nn.Linear(annotation_dim, attention_dim)  # W_a, b_a
        self.score = nn.Parameter(torch.empty(attention_dim))  # v_a
        nn.init.normal_(self.score, std=attention_dim**-0.5)

    def annotate(self, values: Tensor, mask: Tensor | None) -> Annotations:
        """Project annotations (N, L, D) with their mask (N, L) to keys, once for all time steps."""
        keys = self.key(values)
        mask = None if mask is None or mask.all() else mask
        if self.fused and fused.applies_to(keys):
            return DoubledAnnotations(values.to(keys.dtype), 2 * keys, mask)
        return Annotations(values.to(keys.dtype), keys, mask)

    def forward(self, query: Tensor, annotations: Annotations, word: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the context of each query.

        Args:
            query: decoder states s, (N K, H); the K queries of an example are neighbours.
            annotations: annotations of the N examples, as `annotate` returns them.
            word: term of the previous word, Y_a E_y[y], added to U_a s: (N K, A); None where there is none.

        Returns:
            Contexts (N K, D) and weights (N K, L). Without any annotation an example has a context and weights of zero.
        """
        values, keys, mask = annotations
        projected = self.query(query) if word is None else self.query(query) + word
        projected = projected.to(keys.dtype).unflatten(0, (len(keys), -1))  # (N, K, A)
        compute = fused.energies if isinstance(annotations, DoubledAnnotations) else energies
        e = compute(projected, keys, self.score.to(keys.dtype))  # e_i = v tanh(U s + W h_i)
        alpha = masked_softmax(precise(e), mask)  # (N, K, L)
        context = torch.bmm(alpha.to(values.dtype), values)  # c = sum of alpha_i h_i
        return context.flatten(0, 1), alpha.flatten(0, 1)


def energies(queries: Tensor, keys: Tensor, score: Tensor) -> Tensor:
    """Compute v tanh(q + k) of queries (N, K, A), keys (N, L, A) and v (A,): (N, K, L)."""
    return torch.tanh(queries[:, :, None] + keys[:, None]) @ score


def masked_softmax(e: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the softmax of energies e (N, K, L) over the annotations that exist; zeros where none does."""
    if mask is None:
        return e.softmax(-1)
    missing = ~mask[:, None]
    return e.masked_fill(missing, -math.inf).softmax(-1).masked_fill(missing, 0.0)
