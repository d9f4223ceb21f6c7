"""Rows of examples and of their hypotheses."""

from __future__ import annotations

from torch import Tensor


def repeat_rows(values: Tensor, rows: int) -> Tensor:
    """Repeat each row of the values (N, …) of N examples K times, for `rows` = N K hypotheses."""
    times = rows // len(values)
    return values if times == 1 else values.repeat_interleave(times, 0)
