"""Precision of recurrent states and softmaxes, which are computed in at least float32."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(values: Tensor) -> torch.dtype:
    """Return the data type of `values`, or float32 if that type is shorter."""
    return torch.promote_types(values.dtype, torch.float32)


def precise(logits: Tensor) -> Tensor:
    """Convert logits to at least float32, the precision of every softmax."""
    return logits.to(at_least_float32(logits))
