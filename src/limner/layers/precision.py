"""Where half precision ends: states and softmaxes are in at least float32."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(values: Tensor) -> torch.dtype:
    """The type of `values`, or float32 where that is a shorter one."""
    return torch.promote_types(values.dtype, torch.float32)


def precise(logits: Tensor) -> Tensor:
    """Logits in at least float32, in which every softmax is taken."""
    return logits.to(at_least_float32(logits))
