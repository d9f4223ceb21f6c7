"""Additive attention over source tokens and over image locations.

Shapes: N examples, K queries of each, L annotations, H query size, D annotation size, A attention size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from limner.layers.functional import is_exporting, precise
from limner.layers.fused import attention as fused


class Annotations(NamedTuple):
    """Vectors that attention reads, one row per example: encoder states of source tokens, or image locations."""

    values: Tensor  # (N, L, D): h
    keys: Tensor  # (N, L, A): W_a h + b_a
    mask: Tensor | None  # (N, L) bool: true where an annotation exists; None if all of them exist


class DoubledAnnotations(Annotations):
    """Annotations with doubled keys, 2 (W_a h + b_a), for `fused.attention.energies`."""


class AdditiveAttention(nn.Module):
    """Additive attention, Bahdanau et al. (2015); Calixto et al. (2017), eqs. 2-4 and 5-6, (2016), eqs. 3-8."""

    def __init__(self, query_dim: int, annotation_dim: int, attention_dim: int) -> None:
        """Build the layer with randomly initialised weights.

        Args:
            query_dim: size H of the queries.
            annotation_dim: size D of the annotations.
            attention_dim: size A of the hidden layer.
        """
        super().__init__()
        self.fused = True  # whether `annotate` may select the optimised energies
        self.query = nn.Linear(query_dim, attention_dim, bias=False)  # U_a
        self.key = nn.Linear(annotation_dim, attention_dim)  # W_a, b_a
        self.score = nn.Parameter(torch.empty(attention_dim))  # v_a
        nn.init.normal_(self.score, std=attention_dim**-0.5)

    def annotate(self, values: Tensor, mask: Tensor | None) -> Annotations:
        """Compute the keys of annotations, once for all time steps.

        Args:
            values: annotations, (N, L, D).
            mask: true where an annotation exists, (N, L); None if all of them exist.
        """
        keys = self.key(values)
        mask = None if mask is None or (not is_exporting() and bool(mask.all())) else mask
        if self.fused and fused.applies_to(keys):
            return DoubledAnnotations(values.to(keys.dtype), 2 * keys, mask)
        return Annotations(values.to(keys.dtype), keys, mask)

    def forward(self, query: Tensor, annotations: Annotations, word: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the context of each query.

        Args:
            query: decoder states s, (N K, H); the K queries of an example are adjacent.
            annotations: annotations of the N examples, as `annotate` returns them.
            word: term of the previous word, Y_a E_y[y], added to U_a s: (N K, A); None for attention without that term.

        Returns:
            Contexts (N K, D) and weights alpha (N K, L). Both are zero for an example without annotations.
        """
        alpha = self.weights(query, annotations, word)
        return weighted_sum(alpha, annotations), alpha

    def weights(self, query: Tensor, annotations: Annotations, word: Tensor | None = None) -> Tensor:
        """Compute the weights alpha, (N K, L), of each query; arguments are those of `forward`."""
        _, keys, mask = annotations
        projected = self.query(query) if word is None else self.query(query) + word
        projected = projected.to(keys.dtype).unflatten(0, (keys.shape[0], -1))  # (N, K, A)
        compute = fused.energies if isinstance(annotations, DoubledAnnotations) else energies
        e = compute(projected, keys, self.score.to(keys.dtype))  # e_i = v tanh(U s + W h_i)
        return masked_softmax(precise(e), mask).flatten(0, 1)


def weighted_sum(alpha: Tensor, annotations: Annotations) -> Tensor:
    """Compute the contexts c = sum of alpha_i h_i, (N K, D), from weights (N K, L)."""
    values = annotations.values
    weights = alpha.to(values.dtype).view(values.shape[0], -1, values.shape[1])  # (N, K, L)
    return torch.bmm(weights, values).flatten(0, 1)


def energies(queries: Tensor, keys: Tensor, score: Tensor) -> Tensor:
    """Compute the energies v tanh(q + k), (N, K, L), of queries (N, K, A), keys (N, L, A) and v (A,)."""
    return torch.tanh(queries[:, :, None] + keys[:, None]) @ score


def masked_softmax(e: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the softmax of energies over the annotations that exist.

    Args:
        e: energies, (N, K, L).
        mask: true where an annotation exists, (N, L); None if all of them exist.

    Returns:
        Weights (N, K, L); zeros for an example without annotations.
    """
    if mask is None:
        return e.softmax(-1)
    missing = ~mask[:, None]
    return e.masked_fill(missing, -math.inf).softmax(-1).masked_fill(missing, 0.0)
