"""Recurrent cells and layers: parity with torch, masks, structures, kernels."""

import pytest
import torch
from torch import nn

from limner.errors import SettingsError
from limner.layers import kernels, stack
from limner.layers.cells import CellSettings, build_cell
from limner.layers.stack import BidirectionalLayers, LayerState, RecurrentLayers, RecurrentSettings

NAMES = ("tanh", "relu", "leaky", "lstm", "peephole", "coupled", "gru", "gru-before")
STRUCTURES = (
    {},
    {"layers": 2},
    {"transition_layers": 2},
    {"transition_layers": 1, "transition_skip": True},
    {"delay": 3},
)
ROWS, LENGTH, INPUT, HIDDEN = 3, 6, 4, 5


def layers(cell="lstm", **structure) -> RecurrentLayers:
    torch.manual_seed(1)
    return noisy(RecurrentLayers(INPUT, HIDDEN, RecurrentSettings.parse({"cell": cell, **structure})))


def noisy(module: nn.Module):
    with torch.no_grad():
        for parameter in module.parameters():  # zero biases would hide mistakes
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module.double()


def inputs() -> torch.Tensor:
    return torch.randn(ROWS, LENGTH, INPUT, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
@pytest.mark.parametrize("cell", NAMES)
def test_steps_equal_the_whole_sequence(cell, structure) -> None:
    model, x = layers(cell, **structure), inputs()
    expected, last = model(x)
    state = model.start(ROWS)
    for t in range(LENGTH):
        output, state = model.step(x[:, t], state)
        torch.testing.assert_close(output, expected[:, t])
    torch.testing.assert_close(flat(state), flat(last))


def flat(states: tuple[LayerState, ...]) -> list[torch.Tensor]:
    return [part for layer in states for part in (*layer.state, layer.past) if part is not None]


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
@pytest.mark.parametrize("cell", NAMES)
def test_masked_positions_do_not_change_the_state(cell, structure) -> None:
    model, x = layers(cell, **structure), inputs()
    mask = torch.tensor([[True] * LENGTH, [True, False, True, True, False, False], [False] * LENGTH])
    outputs, last = model(x, mask=mask)
    alone, expected = model(x[1:2, [0, 2, 3]])
    torch.testing.assert_close(outputs[1:2, [0, 2, 3]], alone)
    torch.testing.assert_close([part[1:2] for part in flat(last)], flat(expected))
    assert not any(part[2].any() for part in flat(last))


@pytest.mark.parametrize("cell", ["tanh", "relu", "gru", "lstm"])
def test_kernels_of_torch_equal_the_equations(cell) -> None:
    model, x = layers(cell), inputs()
    assert kernels.applies_to(model.layers[0].cell, x)
    with_kernel = model(x)[0]
    gradient = torch.autograd.grad(with_kernel.square().sum(), list(model.parameters()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack.kernels, "applies_to", lambda cell, inputs: False)
        by_equation = model(x)[0]
    torch.testing.assert_close(with_kernel, by_equation)
    torch.testing.assert_close(gradient, torch.autograd.grad(by_equation.square().sum(), list(model.parameters())))


def copy_to_torch(ours, theirs, layer: int, suffix: str = "") -> None:
    cell = ours.cell
    state = {
        f"weight_ih_l{layer}{suffix}": cell.input.weight,
        f"weight_hh_l{layer}{suffix}": cell.recurrent,
        f"bias_ih_l{layer}{suffix}": cell.input.bias,
        f"bias_hh_l{layer}{suffix}": torch.zeros_like(cell.input.bias),
    }
    with torch.no_grad():
        for name, value in state.items():
            getattr(theirs, name).copy_(value)


TORCH = {"tanh": nn.RNN, "relu": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("cell", TORCH)
def test_parity_with_torch(cell, count) -> None:
    model, x = layers(cell, layers=count), inputs()
    options = {"nonlinearity": cell} if cell in ("tanh", "relu") else {}
    theirs = TORCH[cell](INPUT, HIDDEN, count, batch_first=True, **options).double()
    for index, layer in enumerate(model.layers):
        copy_to_torch(layer, theirs, index)
    torch.testing.assert_close(model(x)[0], theirs(x)[0])
    half = torch.tensor([[True] * LENGTH, [True] * 3 + [False] * 3, [True] + [False] * 5])
    torch.testing.assert_close(model(x, mask=half)[0][half], theirs(x)[0][half])


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("cell", TORCH)
def test_bidirectional_parity_with_torch_on_sequences_of_different_lengths(cell, count) -> None:
    torch.manual_seed(1)
    settings = RecurrentSettings.parse({"cell": cell, "layers": count})
    model, x = noisy(BidirectionalLayers(INPUT, HIDDEN, settings)), inputs()
    options = {"nonlinearity": cell} if cell in ("tanh", "relu") else {}
    theirs = TORCH[cell](INPUT, HIDDEN, count, batch_first=True, bidirectional=True, **options).double()
    for index, (there, back) in enumerate(zip(model.forwards, model.backwards, strict=True)):
        copy_to_torch(there, theirs, index)
        copy_to_torch(back, theirs, index, "_reverse")
    lengths = torch.tensor([6, 4, 1])
    mask = torch.arange(LENGTH) < lengths[:, None]
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    expected = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)[0]
    outputs, ends = model(x, mask)
    torch.testing.assert_close(outputs[mask], expected[mask])
    first_last = torch.cat([expected[range(3), lengths - 1, :HIDDEN], expected[:, 0, HIDDEN:]], -1)
    torch.testing.assert_close(ends, first_last)


def test_time_constants_of_leaky_units() -> None:
    """A time constant of 1 is the tanh cell; a large one hardly changes the state; a range covers its ends."""
    x, tanh, leaky = inputs(), layers("tanh"), layers({"name": "leaky", "time_constant": 1})
    torch.testing.assert_close(leaky(x)[0], tanh(x)[0])
    spread = build_cell(CellSettings(name="leaky", time_constant=(1, 64)), INPUT, 7)
    torch.testing.assert_close(spread.time_constant, torch.tensor([1.0, 2, 4, 8, 16, 32, 64]))
    slow = layers({"name": "leaky", "time_constant": 1000.0})
    assert slow(x)[0].abs().max() < LENGTH / 1000
    learned = build_cell(CellSettings(name="leaky", time_constant=4.0, learn_time_constant=True), INPUT, HIDDEN)
    torch.testing.assert_close(learned.time_constant, torch.full((HIDDEN,), 4.0))
    learned(learned.project(torch.ones(1, INPUT)), learned.start(1)).hidden.sum().backward()
    assert learned.theta.grad is not None


def test_a_delayed_connection_reads_the_state_of_exactly_d_steps_ago() -> None:
    model, x = layers("tanh", delay=3), inputs().requires_grad_()
    with torch.no_grad():
        model.layers[0].cell.recurrent.zero_()  # the delay is the only connection over time
    hidden = model(x)[0]
    gradient = torch.autograd.grad(hidden[:, 5].sum(), x)[0].abs().sum((0, 2))
    assert (gradient > 0).tolist() == [False, False, True, False, False, True]


def test_peepholes_of_chosen_gates() -> None:
    """Without its peephole weights the cell is an LSTM, and only the chosen gates have weights."""
    chosen, lstm, x = layers({"name": "peephole", "peepholes": ["forget"]}), layers("lstm"), inputs()
    assert list(chosen.layers[0].cell.peepholes) == ["forget"]
    with torch.no_grad():
        chosen.layers[0].cell.peepholes["forget"].zero_()
        for name in ("input.weight", "input.bias", "recurrent"):
            chosen.layers[0].cell.get_parameter(name).copy_(lstm.layers[0].cell.get_parameter(name))
    torch.testing.assert_close(chosen(x)[0], lstm(x)[0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "lstm", "time_constant": 2.0}, "belong to the cell 'leaky', got 'lstm'"),
        ({"name": "gru", "peepholes": ["input"]}, "belong to the cell 'peephole', got 'gru'"),
        ({"name": "peephole", "peepholes": []}, "one to three different gates"),
        ({"name": "leaky", "time_constant": 0.5}, "expected a number from 1 to 1,000,000"),
        ({"name": "leaky", "time_constant": [8, 2]}, "rising order"),
        ("lstmm", "'tanh', 'relu'"),
    ],
)
def test_wrong_cell_settings_are_refused(values, message) -> None:
    with pytest.raises(SettingsError, match=message):
        RecurrentSettings.parse({"cell": values})


@pytest.mark.parametrize(("values", "message"), [({"transition_skip": True}, "transition_layers"), ({"delay": 1}, "2")])
def test_wrong_structures_are_refused(values, message) -> None:
    with pytest.raises(SettingsError, match=message):
        RecurrentSettings.parse(values)
