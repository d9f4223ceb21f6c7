"""Recurrent layers by the kernels of torch: one call for all positions of a sequence.

On a GPU these are the kernels of cuDNN. On a CPU they gain most where the products of a step are small: with 16
sequences of 100 steps and 128 units, training is 1.2 to 2.5 times as fast as by the equations
(`docs/notebook/speed.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from limner.layers.cells import Cell, CellState, GRUCell, LSTMCell, ReLUCell, TanhCell

KERNELS: dict[type[Cell], Callable[..., Any]] = {
    TanhCell: torch.rnn_tanh,
    ReLUCell: torch.rnn_relu,
    GRUCell: torch.gru,
    LSTMCell: torch.lstm,
}
"""Kernel of each cell that torch has one for."""


def applies_to(cell: Cell, inputs: Tensor) -> bool:
    """Whether torch has a kernel for a cell that keeps the states in at least float32: not with autocast."""
    if isinstance(cell, LSTMCell) and cell.linear_output:
        return False
    return type(cell) in KERNELS and not torch.is_autocast_enabled(inputs.device.type)


def unroll(cell: Cell, inputs: Tensor, state: CellState) -> tuple[Tensor, CellState]:
    """Run a cell over sequences without padding.

    Args:
        cell: cell that `applies_to` is true for.
        inputs: x_t of every position, (B, T, E).
        state: initial state.

    Returns:
        State after every position, (B, T, H), and the last state.
    """
    parts = [part.to(inputs.dtype)[None] for part in state if part is not None]  # (1, B, H) each
    bias = cell.input.bias
    weights = [cell.input.weight, cell.recurrent, bias, torch.zeros_like(bias)]
    initial = parts if isinstance(cell, LSTMCell) else parts[0]
    # biases, layers, dropout, training, bidirectional, batch first
    options = (True, 1, 0.0, cell.training, False, True)
    outputs, *last = KERNELS[type(cell)](inputs, initial, weights, *options)
    return outputs, CellState(*(part[0] for part in last))
