"""Recurrent cells and the structures of recurrent layers against the oracle in NumPy float64."""

from functools import partial

import numpy as np
import oracle_recurrent as oracle
import pytest
import torch
from parity_models import CELLS, array, randomised, recurrent_cell, zero_state

from limner.layers.grid_rnn import GridRNN
from limner.layers.stack import BidirectionalLayers, RecurrentLayer, RecurrentLayers, RecurrentSettings

INPUT, HIDDEN, LENGTH = 4, 5, 7
VARIANTS = [
    *CELLS,
    {"name": "leaky", "time_constant": [1.5, 9.0]},
    {"name": "leaky", "time_constant": 3.0, "learn_time_constant": True},
    {"name": "peephole", "peepholes": ["forget", "output"]},
]
INPUTS = torch.from_numpy(np.random.default_rng(4).normal(size=(LENGTH, INPUT)))


def settings(cell, **changes) -> RecurrentSettings:
    return RecurrentSettings.parse({"cell": cell, **changes})


def same(actual, expected) -> None:
    np.testing.assert_allclose(actual.detach(), expected, atol=1e-12)


@pytest.mark.parametrize("cell", VARIANTS, ids=str)
@pytest.mark.parametrize("layers", [1, 3])
def test_stacked_cells(cell, layers) -> None:
    name = cell if isinstance(cell, str) else cell["name"]
    model = randomised(RecurrentLayers(INPUT, HIDDEN, settings(cell, layers=layers)))
    thetas = [recurrent_cell(layer.cell, name) for layer in model.layers]
    states = oracle.run_stacked(CELLS[name][0], thetas, INPUTS.numpy(), [zero_state(name, HIDDEN)] * layers)
    same(model(INPUTS[None])[0][0], oracle.outputs_of(states[-1]))


@pytest.mark.parametrize("name", CELLS)
def test_bidirectional_layers_on_padded_sequences(name) -> None:
    model = randomised(BidirectionalLayers(INPUT, HIDDEN, settings(name)))
    there, back = (recurrent_cell(part[0].cell, name) for part in (model.forwards, model.backwards))
    lengths, rows = [LENGTH, 3, 1], torch.stack([INPUTS, INPUTS + 1, -INPUTS])
    encode = lambda row: oracle.run_bidirectional(CELLS[name][0], there, back, row, (zero_state(name, HIDDEN),) * 2)  # noqa: E731
    expected, _ = oracle.run_padded(encode, rows.numpy(), lengths)
    mask = torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    outputs, ends = model(rows, mask)
    same((outputs * mask[..., None]), expected)
    last = [expected[row, length - 1, :HIDDEN] for row, length in enumerate(lengths)]
    same(ends, np.concatenate([last, expected[:, 0, HIDDEN:]], 1))


@pytest.mark.parametrize("skip", ["none", "matrix"])
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_deep_transition(name, skip) -> None:
    layer = RecurrentLayer(INPUT, HIDDEN, settings(name, transition_layers=2, transition_skip=skip == "matrix"))
    theta = recurrent_cell(randomised(layer).cell, name)
    for k, transition in enumerate(layer.transition, start=1):
        theta |= {f"W_{k}": array(transition.weight), f"b_{k}": array(transition.bias)}
    if skip == "matrix":
        theta["W_skip"] = array(layer.skip.weight)
    step = partial(oracle.deep_transition_step, activation=name, skip=skip)
    expected = oracle.outputs_of(oracle.run(step, theta, INPUTS.numpy(), zero_state(name, HIDDEN)))
    same(layer(INPUTS[None], layer.start(1))[0][0], expected)


@pytest.mark.parametrize("delay", [2, 3, 9])
def test_long_delay_connections(delay) -> None:
    layer = randomised(RecurrentLayer(INPUT, HIDDEN, settings("tanh", delay=delay)))
    theta = recurrent_cell(layer.cell, "tanh") | {"W_delay": array(layer.delayed)}
    expected = oracle.run_long_delay(theta, INPUTS.numpy(), delay, np.zeros(HIDDEN))
    same(layer(INPUTS[None], layer.start(1))[0][0], expected)


def test_the_four_scans_of_a_grid() -> None:
    rows, columns = 3, 4
    model = randomised(GridRNN(INPUT, HIDDEN))
    grid = torch.from_numpy(np.random.default_rng(5).normal(size=(2, rows, columns, INPUT)))
    thetas = []
    for k in range(4):
        part = slice(k * HIDDEN, (k + 1) * HIDDEN)
        theta = {"W_xh": model.input.weight[part], "b_h": model.input.bias[part]}
        theta |= {"W_row": model.row[k].t(), "W_col": model.column[k].t()}
        thetas.append({name: array(value) for name, value in theta.items()})
    expected = np.stack([oracle.run_four_directions(thetas, row) for row in grid.numpy()])
    same(model(grid), expected)
