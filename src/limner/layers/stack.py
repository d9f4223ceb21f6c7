"""Recurrent layers over sequences: stacked, bidirectional, with deep transitions and long delays.

Shapes: B batch, T length, E input size, H hidden, D delay in steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn.functional import dropout

from limner.bounds import Layers, LayersOrNone, Rate
from limner.layers.cells import (
    Cell,
    CellSettings,
    CellState,
    GRUCell,
    LSTMCell,
    ReLUCell,
    TanhCell,
    build_cell,
    orthogonal_gates,
)
from limner.layers.functional import is_exporting
from limner.settings import Settings

_KERNELS: dict[type[Cell], Callable[..., Any]] = {
    TanhCell: torch.rnn_tanh,
    ReLUCell: torch.rnn_relu,
    GRUCell: torch.gru,
    LSTMCell: torch.lstm,
}
"""Kernels of torch by cell, each one call for all positions of a sequence."""


def has_kernel(cell: Cell, inputs: Tensor) -> bool:
    """Whether torch has a kernel for a cell that keeps the states in at least float32: not with autocast.

    On a GPU these are the kernels of cuDNN. On a CPU they gain most where the products of a step are small, see
    `docs/notebook/speed.md`.
    """
    if isinstance(cell, LSTMCell) and cell.linear_output:
        return False
    return type(cell) in _KERNELS and not torch.is_autocast_enabled(inputs.device.type)


def _unroll(cell: Cell, inputs: Tensor, state: CellState) -> tuple[Tensor, CellState]:
    """Run a cell with a kernel (`has_kernel`) over sequences (B, T, E) without padding.

    Returns:
        State after every position, (B, T, H), and the last state.
    """
    parts = [part.to(inputs.dtype)[None] for part in state if part is not None]  # (1, B, H) each
    bias = cell.input.bias
    weights = [cell.input.weight, cell.recurrent, bias, torch.zeros_like(bias)]
    initial = parts if isinstance(cell, LSTMCell) else parts[0]
    # biases, layers, dropout, training, bidirectional, batch first
    options = (True, 1, 0.0, cell.training, False, True)
    outputs, *last = _KERNELS[type(cell)](inputs, initial, weights, *options)
    return outputs, CellState(*(part[0] for part in last))


class RecurrentSettings(Settings):
    """Structure of recurrent layers."""

    cell: CellSettings = CellSettings()
    """Recurrent cell."""
    layers: Layers = 1
    """Number of layers; each layer reads the states of the layer below."""
    transition_layers: LayersOrNone = 0
    """Number of further layers between the cell's output and h_t (deep hidden-to-hidden transition)."""
    transition_skip: bool = False
    """Whether the last of these layers reads h_{t-1} as well (skip connection)."""
    delay: LayersOrNone = 0
    """Length D of the additional connections from h_{t-D} to h_t, in steps; 0 for none."""
    dropout: Rate = 0.0
    """Dropout rate of the states between layers in training."""

    @model_validator(mode="after")
    def _skip_has_layers(self) -> Self:
        if self.transition_skip and not self.transition_layers:
            raise ValueError("transition_skip needs transition_layers of at least 1")
        if self.delay == 1:
            raise ValueError("a delay of 1 is the recurrence itself; expected 0 or at least 2")
        return self


class LayerState(NamedTuple):
    """State of one recurrent layer after a step."""

    state: CellState
    past: Tensor | None = None  # (B, D, H): h_{t-D+1}, …, h_t; None without delay


class RecurrentLayer(nn.Module):
    """One recurrent layer in one direction.

    With K transition layers, the output u_0 of the cell passes through u_k = act(W_k u_{k-1} + b_k), and h_t = u_K, the
    deep transition of Pascanu et al. (2014); act is ReLU for a `relu` cell, otherwise tanh. With a skip connection, the
    last layer reads W_S h_{t-1} too. With a delay, W_D h_{t-D} is added to the input of every gate of the cell, and h_t
    is zero for t < 1.
    """

    def __init__(self, input_dim: int, hidden_dim: int, settings: RecurrentSettings) -> None:
        super().__init__()
        self.settings = settings
        self.cell = build_cell(settings.cell, input_dim, hidden_dim)
        layers = (nn.Linear(hidden_dim, hidden_dim) for _ in range(settings.transition_layers))
        self.transition = nn.ModuleList(layers)  # W_k, b_k
        self.skip = nn.Linear(hidden_dim, hidden_dim, bias=False) if settings.transition_skip else None  # W_S
        self.activation = torch.relu if settings.cell.name == "relu" else torch.tanh
        self.delayed: nn.Parameter | None = None  # W_D
        if settings.delay:
            self.delayed = nn.Parameter(torch.empty(self.cell.gates * hidden_dim, hidden_dim))
            orthogonal_gates(self.delayed)

    def start(self, rows: int) -> LayerState:
        """Return a state of zeros for B = `rows` sequences."""
        state = self.cell.start(rows)
        past = state.hidden[:, None].expand(-1, self.settings.delay, -1) if self.settings.delay else None
        return LayerState(state, past)

    def step(self, projected: Tensor, state: LayerState, mask: Tensor | None = None) -> LayerState:
        """Compute one step from W_x x_t + b, (B, G H); the mask (B, H) drops recurrent states."""
        before, past = state
        read = before.hidden if mask is None else before.hidden * mask
        if self.delayed is not None and past is not None:
            projected = projected + past[:, 0].to(self.delayed.dtype) @ self.delayed.t()
        after: CellState = self.cell(projected, before, read)
        hidden = after.hidden  # u_0
        for index, layer in enumerate(self.transition):
            skip = self.skip(read) if self.skip is not None and index + 1 == len(self.transition) else 0
            hidden = self.activation(layer(hidden) + skip)  # u_k
        after = after._replace(hidden=hidden)
        return LayerState(after, None if past is None else torch.cat([past[:, 1:], hidden[:, None]], 1))

    def forward(
        self, inputs: Tensor, state: LayerState, mask: Tensor | None = None, dropout_mask: Tensor | None = None
    ) -> tuple[Tensor, LayerState]:
        """Run the layer over sequences.

        Args:
            inputs: x_t of every position, (B, T, E).
            state: initial state.
            mask: true where a position exists, (B, T); elsewhere the state does not change. None if all exist.
            dropout_mask: dropout mask (B, H) of the states in recurrent products, the same for all steps (Gal and
                Ghahramani, 2016); None for no dropout.

        Returns:
            State h_t after every position, (B, T, H), and the state after the last one.
        """
        plain = not self.transition and self.delayed is None and dropout_mask is None
        if plain and has_kernel(self.cell, inputs) and (mask is None or _is_complete(mask)):
            outputs, last = _unroll(self.cell, inputs, state.state)
            return outputs, LayerState(last)
        projected, hidden = self.cell.project(inputs), []
        for t, at_t in enumerate(projected.unbind(1)):
            after = self.step(at_t, state, dropout_mask)
            state = after if mask is None else where(mask[:, t], after, state)
            hidden.append(state.state.hidden)
        return torch.stack(hidden, 1), state


class RecurrentLayers(nn.Module):
    """Stacked recurrent layers in one direction."""

    def __init__(self, input_dim: int, hidden_dim: int, settings: RecurrentSettings) -> None:
        super().__init__()
        self.settings = settings
        sizes = [input_dim, *[hidden_dim] * (settings.layers - 1)]
        self.layers = nn.ModuleList(RecurrentLayer(size, hidden_dim, settings) for size in sizes)

    def start(self, rows: int) -> tuple[LayerState, ...]:
        """Return a state of zeros for B = `rows` sequences."""
        return tuple(layer.start(rows) for layer in self._layers())

    def step(self, inputs: Tensor, state: tuple[LayerState, ...]) -> tuple[Tensor, tuple[LayerState, ...]]:
        """Compute one step: inputs (B, E) to the state h_t of the last layer, (B, H), and the state of all layers."""
        states = []
        for layer, before in zip(self._layers(), state, strict=True):
            states.append(layer.step(layer.cell.project(inputs), before))
            inputs = states[-1].state.hidden
        return inputs, tuple(states)

    def forward(
        self, inputs: Tensor, state: tuple[LayerState, ...] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[LayerState, ...]]:
        """Run the layers over sequences.

        Args:
            inputs: x_t of every position, (B, T, E).
            state: initial state; None for zeros.
            mask: true where a position exists, (B, T); elsewhere no state changes. None if all positions exist, or if
            the states at and after missing positions are not used.

        Returns:
            State h_t of the last layer after every position, (B, T, H), and the last state of all layers.
        """
        state = self.start(inputs.shape[0]) if state is None else state
        states = []
        for index, (layer, before) in enumerate(zip(self._layers(), state, strict=True)):
            if index:
                inputs = dropout(inputs, self.settings.dropout, self.training)
            inputs, last = layer(inputs, before, mask)
            states.append(last)
        return inputs, tuple(states)

    def _layers(self) -> list[RecurrentLayer]:
        return [layer for layer in self.layers if isinstance(layer, RecurrentLayer)]


class BidirectionalLayers(nn.Module):
    """Stacked bidirectional layers (Schuster and Paliwal, 1997): each reads the states of both directions below it."""

    def __init__(self, input_dim: int, hidden_dim: int, settings: RecurrentSettings, *, residual: bool = False) -> None:
        """Build the layers; with `residual`, layers above the first add their input to their output."""
        super().__init__()
        self.settings, self.residual = settings, residual
        sizes = [input_dim, *[2 * hidden_dim] * (settings.layers - 1)]
        self.forwards = nn.ModuleList(RecurrentLayer(size, hidden_dim, settings) for size in sizes)
        self.backwards = nn.ModuleList(RecurrentLayer(size, hidden_dim, settings) for size in sizes)

    def forward(self, inputs: Tensor, mask: Tensor | None = None, rate: float = 0.0) -> tuple[Tensor, Tensor]:
        """Encode sequences.

        Args:
            inputs: x_t of every position, (B, T, E).
            mask: true where a position exists, (B, T); elsewhere no state changes. None if all positions exist.
            rate: dropout rate of the states in recurrent products, one mask for all steps (Gal and Ghahramani, 2016).

        Returns:
            States [forward; backward] of the last layer at every position, (B, T, 2H), and the last states of both
            directions, (B, 2H).
        """
        ends = inputs
        for index, (forward, backward) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            if index:
                inputs = dropout(inputs, self.settings.dropout, self.training)
            there, last = self._run(forward, inputs, mask, rate)
            reversed_mask = None if mask is None else mask.flip(1)
            back, first = self._run(backward, inputs.flip(1), reversed_mask, rate)
            outputs, ends = torch.cat([there, back.flip(1)], -1), torch.cat([last, first], -1)
            inputs = inputs + outputs if index and self.residual else outputs
        return inputs, ends

    def _run(self, layer: nn.Module, inputs: Tensor, mask: Tensor | None, rate: float) -> tuple[Tensor, Tensor]:
        """Run one direction of a layer; return its states (B, T, H) and the last one (B, H)."""
        assert isinstance(layer, RecurrentLayer)
        start = layer.start(inputs.shape[0])
        dropout_mask = dropout(torch.ones_like(start.state.hidden), rate, True) if rate and self.training else None
        if mask is None or _is_complete(mask):
            outputs, last = layer(inputs, start, None, dropout_mask)
            return outputs, last.state.hidden
        if is_exporting() or not _is_padding(mask):
            inputs = _move_to_front(inputs, mask)
        outputs, _ = layer(inputs, start, None, dropout_mask)  # padding does not affect the states before it
        seen = mask.long().cumsum(1)  # (B, T)
        outputs = outputs.gather(1, (seen - 1).clamp(min=0)[..., None].expand(-1, -1, outputs.shape[2]))
        outputs = outputs * (seen > 0)[..., None]
        return outputs, outputs[:, -1]


def _is_complete(mask: Tensor) -> bool:
    """Whether all positions of a mask (B, T) are known to exist; a traced graph holds for any mask."""
    return not is_exporting() and bool(mask.all())


def _is_padding(mask: Tensor) -> bool:
    """Whether the missing positions of a mask (B, T) are all behind the existing positions."""
    return bool((mask[:, 1:] <= mask[:, :-1]).all())


def _move_to_front(sequences: Tensor, mask: Tensor) -> Tensor:
    """Move the positions of sequences (B, T, E) that exist before all others, in their order."""
    missing = mask.sum(1, keepdim=True) + (~mask).long().cumsum(1) - 1
    index = torch.where(mask, mask.long().cumsum(1) - 1, missing)  # (B, T)
    return torch.zeros_like(sequences).scatter(1, index[..., None].expand_as(sequences), sequences)


def where(mask: Tensor, after: LayerState, before: LayerState) -> LayerState:
    """Choose the state `after` where `mask` (B,) is true, otherwise the state `before`."""

    def choose(a: Any, b: Any) -> Any:  # noqa: ANN401  (a tensor or None)
        return None if a is None else torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b)

    state = CellState(*map(choose, after.state, before.state))
    return LayerState(state, choose(after.past, before.past))
