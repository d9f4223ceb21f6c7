"""Recurrent cells and layers: parity with torch, masks, structures, kernels."""

import math

import pytest
import torch
from torch import nn

from limner.errors import SettingsError
from limner.layers import stack
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
    assert stack.has_kernel(model.layers[0].cell, x)
    with_kernel = model(x)[0]
    gradient = torch.autograd.grad(with_kernel.square().sum(), list(model.parameters()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack, "has_kernel", lambda cell, inputs: False)
        by_equation = model(x)[0]
    torch.testing.assert_close(with_kernel, by_equation)
    torch.testing.assert_close(gradient, torch.autograd.grad(by_equation.square().sum(), list(model.parameters())))


def test_time_constants_of_leaky_units() -> None:
    """A time constant of 1 is the tanh cell; a large one hardly changes the state; a range covers its ends."""
    x, tanh, leaky = inputs(), layers("tanh"), layers({"name": "leaky", "time_constant": 1})
    torch.testing.assert_close(leaky(x)[0], tanh(x)[0])
    spread = build_cell(CellSettings(name="leaky", time_constant=(1, 64)), INPUT, 7)
    torch.testing.assert_close(spread.time_constant, torch.tensor([1.0, 2, 4, 8, 16, 32, 64]))
    assert layers({"name": "leaky", "time_constant": 1000.0})(x)[0].abs().max() < LENGTH / 1000
    learned = build_cell(CellSettings(name="leaky", time_constant=4.0, learn_time_constant=True), INPUT, HIDDEN)
    torch.testing.assert_close(learned.time_constant, torch.full((HIDDEN,), 4.0))
    learned(learned.project(torch.ones(1, INPUT)), learned.start(1)).hidden.sum().backward()
    assert learned.theta.grad is not None


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


LAYER_INPUT, LAYER_HIDDEN = 4, 3
LENGTHS = torch.tensor([5, 2, 1, 4])
MASK = torch.arange(5) < LENGTHS[:, None]


GRU = RecurrentSettings(cell=CellSettings(name="gru"))


def directions(layer):
    """The cells of both directions with the names that torch gives their weights."""
    return ((layer.forwards[0].cell, "l0"), (layer.backwards[0].cell, "l0_reverse"))


def test_dropout_of_the_states_is_one_mask_for_all_steps():
    """Units read only themselves and one constant input, so each output shows whether its state was dropped."""
    layer, steps, rows = BidirectionalLayers(1, 8, GRU).double().train(), 6, 5
    with torch.no_grad():
        for cell, _ in directions(layer):
            cell.input.weight.zero_()
            cell.input.bias.copy_(torch.tensor([0.0, 0.0, 0.5]).repeat_interleave(8))
            cell.recurrent.zero_()
            cell.recurrent[16:] = torch.eye(8)
    states, _ = layer(torch.zeros(rows, steps, 1, dtype=torch.float64), torch.ones(rows, steps, dtype=torch.bool), 0.5)
    forward, backward = states.split(8, 2)
    for each in (forward, backward.flip(1)):  # (B, S, H); z = r = 1/2: h_t = (n_t + h_{t-1}) / 2
        proposals = 2 * each[:, 1:] - each[:, :-1]
        dropped = torch.isclose(proposals, torch.tensor(math.tanh(0.5), dtype=torch.float64))
        kept = torch.isclose(proposals, torch.tanh(0.5 + 0.5 * 2 * each[:, :-1]))
        assert torch.equal(dropped, ~kept)
        assert torch.equal(dropped.all(1), dropped.any(1))  # each at all steps or at none
        assert 0 < int(dropped[:, 0].sum()) < rows * 8
        assert len({tuple(row) for row in dropped[:, 0].tolist()}) > 1  # examples have masks of their own
    assert not torch.equal(forward, backward.flip(1))
    layer.eval()
    again = [layer(torch.ones(1, 2, 1, dtype=torch.float64), MASK[:1, :2], rate)[0] for rate in (0.0, 0.5)]
    assert torch.equal(*again)


def test_residual_layers_add_their_input_above_the_first():
    settings = GRU.model_copy(update={"layers": 2})
    residual = BidirectionalLayers(LAYER_INPUT, LAYER_HIDDEN, settings, residual=True)
    plain = BidirectionalLayers(LAYER_INPUT, LAYER_HIDDEN, settings)
    plain.load_state_dict(residual.state_dict())
    inputs = torch.randn(4, 5, LAYER_INPUT)
    (states, ends), (plain_states, plain_ends) = residual(inputs, MASK), plain(inputs, MASK)
    first = BidirectionalLayers(LAYER_INPUT, LAYER_HIDDEN, GRU, residual=True)
    first.load_state_dict({name: residual.state_dict()[name] for name in first.state_dict()})
    torch.testing.assert_close(states, plain_states + first(inputs, MASK)[0])
    torch.testing.assert_close(ends, plain_ends)
