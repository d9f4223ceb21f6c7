"""Additive attention over source tokens and over image locations.

Shapes: N examples, K queries of each, L annotations, H query size, D annotation size, A attention size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from limner.layers.functional import is_exporting, precise

CHUNK = 1 << 19
"""Activations computed at a time in decoding on a CPU, few enough to stay in the cache of a core."""


class Annotations(NamedTuple):
    """Vectors that attention reads, one row per example: encoder states of source tokens, or image locations."""

    values: Tensor  # (N, L, D): h
    keys: Tensor  # (N, L, A): 2 (W_a h + b_a)
    mask: Tensor | None  # (N, L) bool: true where an annotation exists; None if all of them exist


class AdditiveAttention(nn.Module):
    """Additive attention, Bahdanau et al. (2015); Calixto et al. (2017), eqs. 2-4 and 5-6, (2016), eqs. 3-8."""

    def __init__(self, query_dim: int, annotation_dim: int, attention_dim: int) -> None:
        """Build the layer for queries of size H and annotations of size D, with a hidden layer of size A."""
        super().__init__()
        self.query = nn.Linear(query_dim, attention_dim, bias=False)  # U_a
        self.key = nn.Linear(annotation_dim, attention_dim)  # W_a, b_a
        self.score = nn.Parameter(torch.empty(attention_dim))  # v_a
        nn.init.normal_(self.score, std=attention_dim**-0.5)

    def annotate(self, values: Tensor, mask: Tensor | None) -> Annotations:
        """Compute the keys of annotations (N, L, D), once for all steps; the mask (N, L) is true where one exists."""
        keys = self.key(values)
        mask = None if mask is None or (not is_exporting() and bool(mask.all())) else mask
        return Annotations(values.to(keys.dtype), 2 * keys, mask)

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
        """Compute the weights alpha, (N K, L), of each query; see `forward` for the arguments."""
        _, keys, mask = annotations
        projected = self.query(query) if word is None else self.query(query) + word
        projected = projected.to(keys.dtype).unflatten(0, (keys.shape[0], -1))  # (N, K, A)
        e = energies(projected, keys, self.score.to(keys.dtype))  # e_i = v tanh(U s + W h_i)
        return masked_softmax(e, mask).flatten(0, 1)


def weighted_sum(alpha: Tensor, annotations: Annotations) -> Tensor:
    """Compute the contexts c = sum of alpha_i h_i, (N K, D), from weights (N K, L)."""
    values = annotations.values
    weights = alpha.to(values.dtype).view(values.shape[0], -1, values.shape[1])  # (N, K, L)
    return torch.bmm(weights, values).flatten(0, 1)


def energies(queries: Tensor, doubled_keys: Tensor, score: Tensor) -> Tensor:
    """Compute v tanh(q + k) as 2 v sigmoid(2q + 2k) - sum v, on a CPU without gradients in chunks and in place.

    `docs/notebook/speed.md` has the gain over the equation as printed.

    Args:
        queries: q, (N, K, A).
        doubled_keys: 2k, (N, L, A), doubled once for all time steps.
        score: v, (A,).

    Returns:
        Energies (N, K, L) in at least float32.
    """
    doubled, keys = 2 * queries[:, :, None], doubled_keys[:, None]
    if is_exporting():  # in ONNX Runtime four times as fast as a product of a matrix and a vector
        activations = torch.sigmoid(doubled + keys)
        weighted = nn.functional.linear(2 * score[None], activations.flatten(0, 2)).view(activations.shape[:3])
    elif torch.is_grad_enabled() or keys.device.type != "cpu":
        weighted = torch.sigmoid(doubled + keys) @ (2 * score)
    else:
        height = max(1, CHUNK // (queries.shape[1] * doubled_keys.shape[1] * doubled_keys.shape[2]))
        chunks = zip(torch.split(doubled, height), torch.split(keys, height), strict=True)
        weighted = torch.cat([(q + k).sigmoid_() @ (2 * score) for q, k in chunks])
    return precise(weighted) - precise(score).sum()


def masked_softmax(e: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the softmax of energies (N, K, L) over the annotations that exist; zeros for an example without any."""
    if mask is None:
        return e.softmax(-1)
    missing = ~mask[:, None]
    return e.masked_fill(missing, -math.inf).softmax(-1).masked_fill(missing, 0.0)
