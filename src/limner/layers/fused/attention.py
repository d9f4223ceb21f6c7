"""Energies of additive attention for decoding on a CPU: 1.4 to 1.9 times as fast over the locations of an image."""

from __future__ import annotations

import torch
from torch import Tensor

from limner.layers.precision import precise

CHUNK = 1 << 19
"""Activations computed at a time, few enough to stay in the cache of a core."""


def applies_to(keys: Tensor) -> bool:
    """Whether `energies` supports these keys and is faster: on a CPU, without gradients."""
    return keys.device.type == "cpu" and not torch.is_grad_enabled()


def energies(queries: Tensor, keys: Tensor, score: Tensor) -> Tensor:
    """Compute v tanh(q + k) as 2 v sigmoid(2q + 2k) - sum v, some examples at a time and in place.

    The arguments and the result are those of `limner.layers.attention.energies`. There is no gradient.
    """
    height = max(1, CHUNK // (queries.shape[1] * keys[0].numel())) if len(keys) else 1
    parts = [
        torch.add(2 * some[:, :, None], k[:, None], alpha=2).sigmoid_() @ (2 * score)  # (n, K, L)
        for some, k in zip(torch.split(queries, height), torch.split(keys, height), strict=True)
    ]
    return precise(torch.cat(parts)) - precise(score).sum()
