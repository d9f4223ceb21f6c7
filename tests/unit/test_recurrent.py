"""The bidirectional GRU encoder and its cell: torch, hand-computed values and padding."""

import math

import torch

from limner.layers.cells import CellSettings
from limner.layers.stack import BidirectionalLayers, RecurrentSettings

INPUT, HIDDEN = 4, 3
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
    residual = BidirectionalLayers(INPUT, HIDDEN, settings, residual=True)
    plain = BidirectionalLayers(INPUT, HIDDEN, settings)
    plain.load_state_dict(residual.state_dict())
    inputs = torch.randn(4, 5, INPUT)
    (states, ends), (plain_states, plain_ends) = residual(inputs, MASK), plain(inputs, MASK)
    first = BidirectionalLayers(INPUT, HIDDEN, GRU, residual=True)
    first.load_state_dict({name: residual.state_dict()[name] for name in first.state_dict()})
    torch.testing.assert_close(states, plain_states + first(inputs, MASK)[0])
    torch.testing.assert_close(ends, plain_ends)
