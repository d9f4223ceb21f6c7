"""The bidirectional GRU encoder and its cell: torch, hand-computed values and padding."""

import math

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from limner.layers.cells import CellSettings, CellState
from limner.layers.stack import BidirectionalLayers, LayerState, RecurrentLayer, RecurrentSettings

INPUT, HIDDEN = 4, 3
LENGTHS = torch.tensor([5, 2, 1, 4])
MASK = torch.arange(5) < LENGTHS[:, None]


GRU = RecurrentSettings(cell=CellSettings(name="gru"))


def test_a_masked_position_copies_the_state_and_its_gradient():
    layer, inputs, hidden = RecurrentLayer(2, HIDDEN, GRU), torch.randn(2, 1, 2), torch.randn(2, HIDDEN)
    parts = [part.requires_grad_() for part in (inputs, hidden)]
    states, _ = layer(inputs, LayerState(CellState(hidden)), torch.tensor([[False], [True]]))
    assert torch.equal(states[0, 0], hidden[0])
    assert not torch.allclose(states[1, 0], hidden[1])
    gradients = torch.autograd.grad(states[0].sum(), [*parts, *layer.parameters()])
    assert [gradients[0][0].abs().max().item(), gradients[1][0].abs().max().item()] == [0, 1]
    assert not any(gradient.any() for gradient in gradients[2:])


def test_unrolled_steps_equal_single_steps():
    layer, inputs, state = RecurrentLayer(2, HIDDEN, GRU), torch.randn(2, 4, 2), CellState(torch.randn(2, HIDDEN))
    kept = torch.tensor([[0.0, 2.0, 2.0], [2.0, 0.0, 2.0]])
    states, _ = layer(inputs, LayerState(state), dropout_mask=kept)
    for t in range(4):
        state = layer.cell(layer.cell.project(inputs[:, t]), state, state.hidden * kept)
        torch.testing.assert_close(states[:, t], state.hidden)


def bigru(dtype=torch.float64) -> BidirectionalLayers:
    layer = BidirectionalLayers(INPUT, HIDDEN, GRU).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.7)
    return layer


def directions(layer):
    """The cells of both directions with the names that torch gives their weights."""
    return ((layer.forwards[0].cell, "l0"), (layer.backwards[0].cell, "l0_reverse"))


def torch_s(layer: BidirectionalLayers) -> torch.nn.GRU:
    """Torch's layer of the same weights; our U h has no bias."""
    theirs = torch.nn.GRU(INPUT, HIDDEN, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for cell, suffix in directions(layer):
            getattr(theirs, f"weight_ih_{suffix}").copy_(cell.input.weight)
            getattr(theirs, f"bias_ih_{suffix}").copy_(cell.input.bias)
            getattr(theirs, f"weight_hh_{suffix}").copy_(cell.recurrent)
            getattr(theirs, f"bias_hh_{suffix}").zero_()
    return theirs


def test_both_directions_equal_torch_on_packed_sequences():
    layer, sequence = bigru(), torch.randn(4, 5, INPUT, dtype=torch.float64, requires_grad=True)
    theirs, same = torch_s(layer), sequence.detach().clone().requires_grad_()
    annotations, last = layer(sequence, MASK)
    packed = pack_padded_sequence(same, LENGTHS, batch_first=True, enforce_sorted=False)
    states, ends = theirs(packed)
    expected, _ = pad_packed_sequence(states, batch_first=True)
    torch.testing.assert_close(annotations[MASK], expected[MASK])
    torch.testing.assert_close(last, torch.cat([ends[0], ends[1]], 1))
    weights = torch.randn_like(expected)
    ((annotations * weights)[MASK].sum() + last.square().sum()).backward()
    ((expected * weights)[MASK].sum() + ends.square().sum()).backward()
    torch.testing.assert_close(sequence.grad, same.grad)
    for cell, suffix in directions(layer):
        torch.testing.assert_close(cell.input.weight.grad, getattr(theirs, f"weight_ih_{suffix}").grad)
        torch.testing.assert_close(cell.input.bias.grad, getattr(theirs, f"bias_ih_{suffix}").grad)
        torch.testing.assert_close(cell.recurrent.grad, getattr(theirs, f"weight_hh_{suffix}").grad)


def test_padding_does_not_change_the_state():
    layer, sequence = bigru(), torch.randn(4, 5, INPUT, dtype=torch.float64)
    annotations, last = layer(sequence, MASK)
    for row, length in enumerate(LENGTHS.tolist()):
        forward, backward = annotations[row].split(HIDDEN, 1)
        assert torch.equal(forward[length:], forward[length - 1].expand(5 - length, -1))
        assert not backward[length:].any()  # this direction starts at the last token
        assert torch.equal(last[row], torch.cat([forward[length - 1], backward[0]]))
    other = sequence.masked_fill(~MASK[:, :, None], 1e4).requires_grad_()
    changed, other_last = layer(other, MASK)
    assert torch.equal(changed, annotations)
    assert torch.equal(other_last, last)
    (changed.square().sum() + other_last.sum()).backward()
    assert not other.grad[~MASK].any()
    assert other.grad[MASK].all()


def test_padding_may_occur_at_any_position():
    """The image prefix tokens of a missing image are masked positions before the words."""
    layer, sequence = bigru(), torch.randn(2, 3, INPUT, dtype=torch.float64)
    spread, mask = torch.full((2, 6, INPUT), 9.0, dtype=torch.float64), torch.zeros(2, 6, dtype=torch.bool)
    positions = torch.tensor([1, 2, 4])
    spread[:, positions], mask[:, positions] = sequence, True
    annotations, last = layer(sequence, torch.ones(2, 3, dtype=torch.bool))
    result, other_last = layer(spread, mask)
    torch.testing.assert_close(result[:, positions], annotations)
    torch.testing.assert_close(other_last, last)


def test_without_any_token_states_are_zero():
    layer = bigru()
    annotations, last = layer(torch.randn(2, 3, INPUT, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.bool))
    assert not annotations.any()
    assert not last.any()
    (annotations.sum() + last.sum()).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in layer.parameters())


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
