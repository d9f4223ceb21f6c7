"""Precision of recurrent states and softmaxes, which are computed in at least float32."""

from __future__ import annotations

import torch
from torch import Tensor

from limner.errors import RunError


def at_least_float32(values: Tensor) -> torch.dtype:
    """Return the data type of `values`, or float32 if that type is shorter."""
    return torch.promote_types(values.dtype, torch.float32)


def require_numbers(values: Tensor, what: str) -> None:
    """Check that what a model computes is not NaN, so that nothing is ranked, printed or stored by it.

    Raises:
        RunError: some value is NaN; `what` names the values.
    """
    if values.isnan().any():
        raise RunError(
            f"the model computes {what} that are not numbers (NaN): its weights are damaged, or its training diverged; "
            "restore the run from a copy, or train again with a lower training.optimizer.lr"
        )


def precise(logits: Tensor) -> Tensor:
    """Convert logits to at least float32, the precision of every softmax."""
    return logits.to(at_least_float32(logits))
