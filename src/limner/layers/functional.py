"""Functions of many layers and models: precision, rows of hypotheses, and whether a graph is traced for export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from limner.errors import RunError


def at_least_float32(values: Tensor) -> torch.dtype:
    """Return the data type of `values`, or float32 if that type is shorter."""
    return torch.promote_types(values.dtype, torch.float32)


def require_numbers(values: Tensor, what: str) -> None:
    """Check that outputs, named `what`, are not NaN before they are used; RunError if one is."""
    if values.isnan().any():
        raise RunError(
            f"the model computes {what} that are not numbers (NaN): its weights are damaged, or its training diverged; "
            "restore the run from a copy, or train again with a lower training.optimizer.lr"
        )


def precise(logits: Tensor) -> Tensor:
    """Convert logits to at least float32, the precision of every softmax."""
    return logits.to(at_least_float32(logits))


def repeat_rows(values: Tensor, rows: int) -> Tensor:
    """Repeat each row of the values (N, …) of N examples K times, for `rows` = N K hypotheses."""
    times = rows // values.shape[0]
    if is_exporting():  # where the numbers of rows are not constant
        return values.unsqueeze(1).expand(-1, times, *values.shape[1:]).flatten(0, 1)
    return values if times == 1 else values.repeat_interleave(times, 0)


_exporting: ContextVar[bool] = ContextVar("_exporting", default=False)


def is_exporting() -> bool:
    """Whether this thread traces a graph for export, which has to hold for inputs other than the example.

    Layers then avoid branches on the values of tensors, and use the plain form of optimised operations.
    """
    return _exporting.get()


@contextmanager
def exporting() -> Iterator[None]:
    """Mark the calls within the block as traced for export."""
    token = _exporting.set(True)
    try:
        yield
    finally:
        _exporting.reset(token)
