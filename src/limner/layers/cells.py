"""Recurrent cells: one step of a recurrent layer each, all behind the same call.

A cell separates the products with the input, which `project` computes for all positions at once, from the recurrence,
which runs in a loop over time. In the equations of the cells, W_x x + b is `projected`, and `_products` adds W_h h.

Shapes: B batch, E input size, H hidden, G gates of the cell.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn.functional import linear

from limner.bounds import Bounds
from limner.layers.functional import at_least_float32
from limner.settings import Settings

CellName = Literal["tanh", "relu", "leaky", "lstm", "peephole", "coupled", "gru", "gru-before"]
Gate = Literal["input", "forget", "output"]


TimeConstant = Annotated[float, Bounds(1, 1e6, whole=False)]


class CellSettings(Settings):
    """Kind of a recurrent cell. In a recipe the name alone is enough: `cell: gru`."""

    name: CellName = "lstm"
    """Cell: `tanh` (Elman), `relu`, `leaky` (leaky units), `lstm`, `peephole` (LSTM with peepholes), `coupled` (LSTM
    with coupled forget and input gates), `gru` (resets the recurrent product) or `gru-before` (resets the state before
    the product)."""
    time_constant: TimeConstant | tuple[TimeConstant, TimeConstant] | None = None
    """Time constant of leaky units in steps, at least 1: one number for all units, or the smallest and the largest of
    constants that are spread geometrically over the units; 2 if not given."""
    learn_time_constant: bool = False
    """Whether the time constants of leaky units are trained, each unit with its own."""
    peepholes: tuple[Gate, ...] | None = None
    """Gates with peepholes; all three if not given."""
    linear_output: bool = False
    """Whether an `lstm` outputs h_t = o c_t without the tanh, as Vinyals et al. (2015) print it."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, values: Any) -> Any:  # noqa: ANN401
        return {"name": values} if isinstance(values, str) else values

    @model_validator(mode="after")
    def _options_belong_to_the_cell(self) -> Self:
        if self.name != "leaky" and (self.time_constant is not None or self.learn_time_constant):
            raise ValueError(f"time constants belong to the cell 'leaky', got '{self.name}'")
        if self.name != "peephole" and self.peepholes is not None:
            raise ValueError(f"peepholes belong to the cell 'peephole', got '{self.name}'")
        if self.name != "lstm" and self.linear_output:
            raise ValueError(f"linear_output belongs to the cell 'lstm', got '{self.name}'")
        if self.peepholes is not None and (not self.peepholes or len(set(self.peepholes)) < len(self.peepholes)):
            raise ValueError(f"expected one to three different gates in peepholes, got {list(self.peepholes)}")
        low, high = self.time_constants
        if low > high:
            raise ValueError(f"expected time constants in rising order, got {self.time_constant}")
        return self

    @property
    def time_constants(self) -> tuple[float, float]:
        """Smallest and largest time constant of leaky units."""
        if isinstance(self.time_constant, tuple):
            return self.time_constant
        constant = 2.0 if self.time_constant is None else self.time_constant
        return constant, constant


class CellState(NamedTuple):
    """State of a cell after a step."""

    hidden: Tensor  # (B, H): h_t
    cell: Tensor | None = None  # (B, H): the memory cell c_t of an LSTM; None for other cells


class Cell(nn.Module, ABC):
    """Base of the cells: the products with the input and with the previous state, for all gates."""

    gates: ClassVar[int] = 1
    forget_gate: ClassVar[int | None] = None  # position of the forget gate of an LSTM among the gates
    has_memory_cell: ClassVar[bool] = False

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        """Build the cell, inputs (…, E) and states (…, H), with orthogonal recurrent weights and zero biases."""
        super().__init__()
        self.hidden_dim = hidden_dim
        self.input = nn.Linear(input_dim, self.gates * hidden_dim)  # W_x, b
        self.recurrent = nn.Parameter(torch.empty(self.gates * hidden_dim, hidden_dim))  # W_h
        orthogonal_gates(self.recurrent)
        self.reset_bias()

    @torch.no_grad()
    def reset_bias(self) -> None:
        """Set the biases to their initial values: 1 for the forget gates of an LSTM, otherwise zero."""
        self.input.bias.zero_()
        if self.forget_gate is not None:
            self.input.bias.view(self.gates, -1)[self.forget_gate] = 1.0

    def project(self, inputs: Tensor) -> Tensor:
        """Compute W_x x + b of all gates: inputs (…, E) to (…, G H)."""
        projected: Tensor = self.input(inputs)
        return projected

    def start(self, rows: int) -> CellState:
        """Return a state of zeros for B = `rows` sequences."""
        zeros = self.recurrent.new_zeros(rows, self.hidden_dim, dtype=at_least_float32(self.recurrent))
        return CellState(zeros, zeros if self.has_memory_cell else None)

    @abstractmethod
    def forward(self, projected: Tensor, state: CellState, read: Tensor | None = None) -> CellState:
        """Compute one step.

        Args:
            projected: W_x x_t + b of all gates, (B, G H), as `project` returns them.
            state: state after the previous step.
            read: vectors (B, H) that the products with W_h read in place of h_{t-1}, for dropout of the recurrent state
                or a deep transition; None for h_{t-1}.
        """

    def _products(self, projected: Tensor, state: CellState, read: Tensor | None) -> Tensor:
        """Compute W_x x_t + W_h h_{t-1} + b of all gates, (B, G H), in the precision of the state."""
        read = state.hidden if read is None else read
        return projected.to(state.hidden.dtype) + linear(read.to(self.recurrent.dtype), self.recurrent)


class TanhCell(Cell):
    """Elman's recurrent unit: h_t = tanh(W_x x_t + W_h h_{t-1} + b)."""

    def forward(self, projected: Tensor, state: CellState, read: Tensor | None = None) -> CellState:
        return CellState(torch.tanh(self._products(projected, state, read)))


class ReLUCell(Cell):
    """Rectified recurrent unit: h_t = relu(W_x x_t + W_h h_{t-1} + b)."""

    def forward(self, projected: Tensor, state: CellState, read: Tensor | None = None) -> CellState:
        return CellState(torch.relu(self._products(projected, state, read)))


class LeakyCell(Cell):
    """Leaky units: h_t = (1 - 1/tau) h_{t-1} + 1/tau tanh(W_x x_t + W_h h_{t-1} + b).

    Each unit has a time constant tau. Learned time constants are tau = 1 + exp(theta), so that they stay above 1; they
    start at 1.01 at least.
    """

    def __init__(self, input_dim: int, hidden_dim: int, settings: CellSettings) -> None:
        super().__init__(input_dim, hidden_dim)
        low, high = settings.time_constants
        constants = low * (high / low) ** torch.linspace(0, 1, hidden_dim)
        self.learned = settings.learn_time_constant
        if self.learned:
            self.theta = nn.Parameter(torch.log((constants - 1).clamp(min=1e-2)))
        else:
            self.register_buffer("constants", constants)

    @property
    def time_constant(self) -> Tensor:
        """Time constants tau in steps, (H,)."""
        constants = 1 + torch.exp(self.theta) if self.learned else self.constants
        assert isinstance(constants, Tensor)
        return constants

    def forward(self, projected: Tensor, state: CellState, read: Tensor | None = None) -> CellState:
        rate = 1 / self.time_constant
        proposal = torch.tanh(self._products(projected, state, read))
        return CellState((1 - rate) * state.hidden + rate * proposal)


class LSTMCell(Cell):
    """Long short-term memory with a forget gate (Hochreiter and Schmidhuber, 1997; Gers et al., 2000).

        i, f, o = sigmoid(W_x x_t + W_h h_{t-1} + b)    of each gate
        g = tanh(W_x x_t + W_h h_{t-1} + b)
        c_t = f c_{t-1} + i g
        h_t = o tanh(c_t)

    With a linear output, h_t = o c_t. The gates are stored in the order i, f, g, o. The biases of the forget gates are
    initialised with 1.
    """

    gates = 4
    forget_gate = 1
    has_memory_cell = True

    def __init__(self, input_dim: int, hidden_dim: int, linear_output: bool = False) -> None:
        super().__init__(input_dim, hidden_dim)
        self.linear_output = linear_output

    def forward(self, projected: Tensor, state: CellState, read: Tensor | None = None) -> CellState:
        assert state.cell is not None
        i, f, g, o = self._products(projected, state, read).chunk(4, -1)
        cell = torch.sigmoid(f) * state.cell + torch.sigmoid(i) * torch.tanh(g)  # c_t
        return CellState(torch.sigmoid(o) * (cell if self.linear_output else torch.tanh(cell)), cell)


class PeepholeCell(Cell):
    """LSTM whose gates read the memory cell (Gers and Schmidhuber, 2000).

        i = sigmoid(W_x x_t + W_h h_{t-1} + w_i c_{t-1} + b),    f alike
        c_t = f c_{t-1} + i tanh(W_x x_t + W_h h_{t-1} + b)
        o = sigmoid(W_x x_t + W_h h_{t-1} + w_o c_t + b)
        h_t = o tanh(c_t)

    The peephole weights w are vectors: each gate reads its own unit's cell. Gates without a peephole have no such term.
    """

    gates = 4
    forget_gate = 1
    has_memory_cell = True

    def __init__(self, input_dim: int, hidden_dim: int, peepholes: tuple[Gate, ...] | None = None) -> None:
        super().__init__(input_dim, hidden_dim)
        names = ("input", "forget", "output") if peepholes is None else peepholes
        self.peepholes = nn.ParameterDict({name: nn.Parameter(0.1 * torch.randn(hidden_dim)) for name in names})

    def forward(self, projected: Tensor, state: CellState, read: Tensor | None = None) -> CellState:
        assert state.cell is not None
        i, f, g, o = self._products(projected, state, read).chunk(4, -1)
        i, f = self._peep("input", i, state.cell), self._peep("forget", f, state.cell)
        cell = torch.sigmoid(f) * state.cell + torch.sigmoid(i) * torch.tanh(g)  # c_t
        o = self._peep("output", o, cell)
        return CellState(torch.sigmoid(o) * torch.tanh(cell), cell)

    def _peep(self, name: Gate, gate: Tensor, cell: Tensor) -> Tensor:
        return gate + self.peepholes[name] * cell if name in self.peepholes else gate


class CoupledCell(Cell):
    """LSTM with coupled forget and input gates: c_t = f c_{t-1} + (1 - f) g, otherwise as `LSTMCell`.

    The gates are stored in the order f, g, o.
    """

    gates = 3
    forget_gate = 0
    has_memory_cell = True

    def forward(self, projected: Tensor, state: CellState, read: Tensor | None = None) -> CellState:
        assert state.cell is not None
        f, g, o = self._products(projected, state, read).chunk(3, -1)
        f = torch.sigmoid(f)
        cell = f * state.cell + (1 - f) * torch.tanh(g)  # c_t
        return CellState(torch.sigmoid(o) * torch.tanh(cell), cell)


class GRUCell(Cell):
    """Gated recurrent unit that resets the recurrent product, as in cuDNN and in Calixto et al. (2017), eq. 9.

        r, z = sigmoid(W_x x_t + W_h h_{t-1} + b)    of each gate
        n = tanh(W_x x_t + r (W_h h_{t-1}) + b)
        h_t = (1 - z) n + z h_{t-1}

    The gates are stored in the order r, z, n.
    """

    gates = 3

    def forward(self, projected: Tensor, state: CellState, read: Tensor | None = None) -> CellState:
        hidden = state.hidden
        x_r, x_z, x_n = projected.to(hidden.dtype).chunk(3, -1)
        read = hidden if read is None else read
        h_r, h_z, h_n = linear(read.to(self.recurrent.dtype), self.recurrent).to(hidden.dtype).chunk(3, -1)
        r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
        proposal = torch.tanh(x_n + r * h_n)  # n
        return CellState((1 - z) * proposal + z * hidden)


class GRUBeforeCell(Cell):
    """Gated recurrent unit that resets the state before the product, Cho et al. (2014), with the lecture's update gate.

        r, z = sigmoid(W_x x_t + W_h h_{t-1} + b)    of each gate
        n = tanh(W_x x_t + W_h (r h_{t-1}) + b)
        h_t = (1 - z) h_{t-1} + z n

    The gates are stored in the order r, z, n.
    """

    gates = 3

    def forward(self, projected: Tensor, state: CellState, read: Tensor | None = None) -> CellState:
        hidden, weight, size = state.hidden, self.recurrent, 2 * self.hidden_dim
        x_r, x_z, x_n = projected.to(hidden.dtype).chunk(3, -1)
        read = hidden if read is None else read
        h_r, h_z = linear(read.to(weight.dtype), weight[:size]).to(hidden.dtype).chunk(2, -1)
        r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
        proposal = torch.tanh(x_n + linear((r * read).to(weight.dtype), weight[size:]))  # n
        return CellState((1 - z) * hidden + z * proposal)


def build_cell(settings: CellSettings, input_dim: int, hidden_dim: int) -> Cell:
    """Build the cell of the settings for inputs of size E = `input_dim` and states of size H = `hidden_dim`."""
    if settings.name == "leaky":
        return LeakyCell(input_dim, hidden_dim, settings)
    if settings.name == "peephole":
        return PeepholeCell(input_dim, hidden_dim, settings.peepholes)
    if settings.name == "lstm":
        return LSTMCell(input_dim, hidden_dim, settings.linear_output)
    kinds: dict[str, type[Cell]] = {
        "tanh": TanhCell,
        "relu": ReLUCell,
        "coupled": CoupledCell,
        "gru": GRUCell,
        "gru-before": GRUBeforeCell,
    }
    return kinds[settings.name](input_dim, hidden_dim)


@torch.no_grad()
def orthogonal_gates(weight: Tensor) -> None:
    """Fill `weight` (n H, H) in place with one random orthogonal matrix (H, H) for each of n gates."""
    for gate in weight.view(-1, weight.shape[1], weight.shape[1]).unbind():
        gate.copy_(nn.init.orthogonal_(torch.empty(gate.shape)))
