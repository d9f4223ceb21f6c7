"""Recurrent cells and the structures of recurrent layers against the oracle in NumPy float64."""

from functools import partial

import numpy as np
import oracle_recurrent as oracle
import pytest
import torch

from limner.layers.cells import Cell
from limner.layers.stack import BidirectionalLayers, GridRNN, RecurrentLayer, RecurrentLayers, RecurrentSettings

INPUT, HIDDEN, LENGTH = 4, 5, 7
GATES = {
    "tanh": "h",
    "relu": "h",
    "leaky": "h",
    "lstm": "ifco",
    "peephole": "ifco",
    "coupled": "fco",
    "gru": "rzh",
    "gru-before": "rzh",
}
STEPS = {
    "tanh": oracle.rnn_step,
    "relu": partial(oracle.rnn_step, activation="relu"),
    "leaky": oracle.leaky_step,
    "lstm": oracle.lstm_step,
    "peephole": oracle.lstm_step,
    "coupled": partial(oracle.lstm_step, coupled=True),
    "gru": partial(oracle.gru_step, reset="after", update="cho"),
    "gru-before": partial(oracle.gru_step, reset="before", update="lecture"),
}
CELLS = [
    *GATES,
    {"name": "leaky", "time_constant": [1.5, 9.0]},
    {"name": "leaky", "time_constant": 3.0, "learn_time_constant": True},
    {"name": "peephole", "peepholes": ["forget", "output"]},
]


def theta_of(cell: Cell, name: str) -> dict[str, np.ndarray]:
    """Weights of a cell under the oracle's names."""
    theta = {}
    parts = (cell.input.weight, cell.recurrent, cell.input.bias)
    for prefix, stacked in zip(("W_x", "W_h", "b_"), parts, strict=True):
        for gate, part in zip(GATES[name], stacked.detach().numpy().reshape(len(GATES[name]), HIDDEN, -1), strict=True):
            theta[prefix + gate] = part[:, 0] if prefix == "b_" else part
    for gate in getattr(cell, "peepholes", {}):
        theta[f"W_c{gate[0]}"] = cell.peepholes[gate].detach().numpy()
    if name == "leaky":
        theta["tau"] = cell.time_constant.detach().numpy()
    return theta


def random(module: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(3)
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return module


def name_of(cell) -> str:
    return cell if isinstance(cell, str) else cell["name"]


def inputs() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(4).normal(size=(LENGTH, INPUT)))


def zeros(name: str) -> oracle.State:
    return (np.zeros(HIDDEN),) * (2 if name in ("lstm", "peephole", "coupled") else 1)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_cells(cell) -> None:
    name = name_of(cell)
    model = random(RecurrentLayers(INPUT, HIDDEN, RecurrentSettings.parse({"cell": cell})))
    theta = theta_of(model.layers[0].cell, name)
    expected = oracle.outputs_of(oracle.run(STEPS[name], theta, inputs().numpy(), zeros(name)))
    np.testing.assert_allclose(model(inputs()[None])[0][0].detach(), expected, atol=1e-12)


@pytest.mark.parametrize("name", GATES)
def test_stacked_layers(name) -> None:
    model = random(RecurrentLayers(INPUT, HIDDEN, RecurrentSettings.parse({"cell": name, "layers": 3})))
    thetas = [theta_of(layer.cell, name) for layer in model.layers]
    expected = oracle.run_stacked(STEPS[name], thetas, inputs().numpy(), [zeros(name)] * 3)
    np.testing.assert_allclose(model(inputs()[None])[0][0].detach(), oracle.outputs_of(expected[-1]), atol=1e-12)


@pytest.mark.parametrize("name", GATES)
def test_bidirectional_layers_on_padded_sequences(name) -> None:
    model = random(BidirectionalLayers(INPUT, HIDDEN, RecurrentSettings.parse({"cell": name})))
    there, back = (theta_of(part[0].cell, name) for part in (model.forwards, model.backwards))
    lengths, rows = [LENGTH, 3, 1], torch.stack([inputs(), inputs() + 1, -inputs()])
    encode = lambda one: oracle.run_bidirectional(STEPS[name], there, back, one, (zeros(name),) * 2)  # noqa: E731
    expected, _ = oracle.run_padded(encode, rows.numpy(), lengths)
    mask = torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    outputs, ends = model(rows, mask)
    np.testing.assert_allclose((outputs * mask[..., None]).detach(), expected, atol=1e-12)
    last = [expected[row, length - 1, :HIDDEN] for row, length in enumerate(lengths)]
    np.testing.assert_allclose(ends.detach(), np.concatenate([last, expected[:, 0, HIDDEN:]], 1), atol=1e-12)


@pytest.mark.parametrize("skip", ["none", "matrix"])
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_deep_transition(name, skip) -> None:
    settings = {"cell": name, "transition_layers": 2, "transition_skip": skip == "matrix"}
    layer = random(RecurrentLayer(INPUT, HIDDEN, RecurrentSettings.parse(settings)))
    theta = theta_of(layer.cell, name)
    for k, transition in enumerate(layer.transition, start=1):
        theta |= {f"W_{k}": transition.weight.detach().numpy(), f"b_{k}": transition.bias.detach().numpy()}
    if skip == "matrix":
        theta["W_skip"] = layer.skip.weight.detach().numpy()
    step = partial(oracle.deep_transition_step, activation=name, skip=skip)
    expected = oracle.outputs_of(oracle.run(step, theta, inputs().numpy(), zeros(name)))
    np.testing.assert_allclose(layer(inputs()[None], layer.start(1))[0][0].detach(), expected, atol=1e-12)


@pytest.mark.parametrize("delay", [2, 3, 9])
def test_long_delay_connections(delay) -> None:
    layer = random(RecurrentLayer(INPUT, HIDDEN, RecurrentSettings.parse({"cell": "tanh", "delay": delay})))
    theta = theta_of(layer.cell, "tanh") | {"W_delay": layer.delayed.detach().numpy()}
    expected = oracle.run_long_delay(theta, inputs().numpy(), delay, np.zeros(HIDDEN))
    np.testing.assert_allclose(layer(inputs()[None], layer.start(1))[0][0].detach(), expected, atol=1e-12)


def test_the_four_scans_of_a_grid() -> None:
    rows, columns = 3, 4
    model = random(GridRNN(INPUT, HIDDEN))
    grid = torch.from_numpy(np.random.default_rng(5).normal(size=(2, rows, columns, INPUT)))
    thetas = []
    for k in range(4):
        part = slice(k * HIDDEN, (k + 1) * HIDDEN)
        theta = {"W_xh": model.input.weight[part], "b_h": model.input.bias[part]}
        theta |= {"W_row": model.row[k].t(), "W_col": model.column[k].t()}
        thetas.append({name: value.detach().numpy() for name, value in theta.items()})
    expected = np.stack([oracle.run_four_directions(thetas, one) for one in grid.numpy()])
    np.testing.assert_allclose(model(grid).detach(), expected, atol=1e-12)
