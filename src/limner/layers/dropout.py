"""Dropout whose random numbers cost little on a processor."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Set a share of the units to zero and scale the others up, as `torch.nn.functional.dropout` does.

    On a CPU one random byte a unit decides, an eighth of the random words that torch draws, which took a fifth of
    a training step; the rate is therefore rounded to 1/256, and the scale is that of the rounded rate.

    Args:
        x: any shape.
        rate: share of units that become zero, 0 <= rate < 1.
        training: false returns `x` as it is.
    """
    if not training or rate == 0:
        return x
    if x.device.type != "cpu":
        return functional.dropout(x, rate)
    dropped = max(1, min(255, round(256 * rate)))
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
    return x * (kept.to(x.dtype) * (256 / (256 - dropped)))
