"""Additive attention against its formula, with nothing to attend to, and its gradients written by hand."""

from pathlib import Path

import pytest
import torch

from limner.layers import attention
from limner.layers.attention import AdditiveAttention, Annotations, _Energies

QUERY, DEPTH, SIZE = 4, 3, 5
SETS, PLACES = 3, 4
MASK = torch.tensor([[True, True, True, True], [False, True, False, True], [False] * 4])


def layer_and(queries: int, dtype=torch.float64):
    """A layer with random weights, what K queries of each set ask, U s, and the sets."""
    layer = AdditiveAttention(QUERY, DEPTH, SIZE).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    states = torch.randn(SETS * queries, QUERY, dtype=dtype, requires_grad=True)
    values = torch.randn(SETS, PLACES, DEPTH, dtype=dtype, requires_grad=True)
    return layer, states, values


def printed(layer: AdditiveAttention, states, values, mask):
    """Eqs. 2-4 as they are printed, query by query, place by place: contexts and weights."""
    contexts, weights = [], []
    each = len(states) // len(values)
    for row, state in enumerate(states):
        places = values[row // each]
        energies = torch.stack(
            [
                layer.score @ torch.tanh(layer.query.weight @ state + layer.key.weight @ h + layer.key.bias)
                for h in places
            ]
        )
        there = mask[row // each]
        alpha = torch.zeros_like(energies)
        if there.any():
            alpha = alpha.masked_scatter(there, energies[there].softmax(0))
        contexts.append(alpha @ places)
        weights.append(alpha)
    return torch.stack(contexts), torch.stack(weights)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("masked", [True, False])
def test_it_is_the_printed_formula_and_so_is_its_gradient(queries, masked):
    layer, states, values = layer_and(queries)
    mask = MASK if masked else torch.ones_like(MASK)
    found = layer(layer.query(states), layer.annotate(values, MASK if masked else None))
    expected = printed(layer, states, values, mask)
    inputs, coefficients = [states, values, *layer.parameters()], [torch.randn_like(part) for part in expected]
    gradients = []
    for parts in (found, expected):
        total = sum((part * by).sum() for part, by in zip(parts, coefficients, strict=True))
        gradients.append(torch.autograd.grad(total, inputs))
    for ours, theirs in zip((*found, *gradients[0]), (*expected, *gradients[1]), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("queries", [1, 2])
def test_gradients_by_differences(queries):
    layer, states, values = layer_and(queries)

    def attend(*_):
        found = layer(layer.query(states), layer.annotate(values, MASK))
        return torch.cat([part.flatten() for part in found])

    assert torch.autograd.gradcheck(attend, (states, values, *layer.parameters()))


@pytest.mark.parametrize("queries", [1, 2])
def test_the_gradient_of_the_energies_by_differences(queries):
    shapes = ((SETS, queries, SIZE), (SETS, PLACES, SIZE), (SIZE,))
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def energies(query, keys, score):
        to = Annotations(keys, keys, None, None).shared()
        return _Energies.apply(query, to.keys, score, to.owed[1])

    assert torch.autograd.gradcheck(energies, inputs)


def test_where_there_is_nothing_the_weights_are_zero_and_no_gradient_is_lost():
    layer, states, values = layer_and(2)
    context, weights = layer(layer.query(states), layer.annotate(values, MASK))
    assert not weights[4:].any()
    assert not context[4:].any()
    torch.testing.assert_close(weights[:4].sum(1), torch.ones(4, dtype=torch.float64))
    assert not weights.unflatten(0, (SETS, 2)).transpose(1, 2)[~MASK].any()
    (context.sum() + weights.square().sum()).backward()
    for gradient in (states.grad, values.grad, *(parameter.grad for parameter in layer.parameters())):
        assert torch.isfinite(gradient).all()
        assert gradient.any()
    assert not values.grad[~MASK].any()
    assert not states.grad[4:].any()


def test_a_masked_place_may_hold_anything():
    layer, states, values = layer_and(1)
    other = values.detach().masked_fill(~MASK[:, :, None], 1e3)
    for ours, theirs in zip(
        layer(layer.query(states), layer.annotate(other, MASK)),
        layer(layer.query(states), layer.annotate(values, MASK)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_hypotheses_of_one_example_ask_as_each_alone():
    layer, states, values = layer_and(3)
    together = layer(layer.query(states), layer.annotate(values, MASK))
    for k in range(3):
        rows = torch.arange(SETS) * 3 + k
        alone = layer(layer.query(states[rows]), layer.annotate(values, MASK))
        for ours, theirs in zip(together, alone, strict=True):
            torch.testing.assert_close(ours[rows], theirs)


def test_pieces_change_nothing(monkeypatch):
    layer, states, values = layer_and(2)

    def found():
        parts = layer(layer.query(states), layer.annotate(values, MASK))
        return (*parts, *torch.autograd.grad(sum(part.square().sum() for part in parts), [states, values, layer.score]))

    whole = found()
    monkeypatch.setattr(attention, "ELEMENTS_PER_CHUNK", 1)  # one set at a time
    for ours, theirs in zip(found(), whole, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_steps_of_a_loop_hand_over_what_each_would_alone():
    """The keys' and the annotations' gradient is added up over the steps and handed over once."""
    layer, first, values = layer_and(1)
    inputs = [first, values, *layer.parameters()]

    def loop(to):
        state, total = first, 0.0
        for _ in range(3):
            context, weights = layer(layer.query(state), to)
            state = torch.tanh(state + torch.nn.functional.pad(context, (0, QUERY - DEPTH)))
            total = total + weights.square().sum()
        return total + state.sum()

    to = layer.annotate(values, MASK)
    assert to.owed is None
    shared, alone = (
        torch.autograd.grad(loop(to.shared()), inputs, retain_graph=True),
        torch.autograd.grad(loop(to), inputs),
    )
    for ours, theirs in zip(shared, alone, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_sets_without_gaps_need_no_mask():
    layer, _, values = layer_and(1)
    whole = layer.annotate(values, torch.ones_like(MASK))
    assert (whole.missing, whole.there) == (None, None)
    assert layer.annotate(values, MASK).there.flatten().tolist() == [1, 1, 0]


def test_layers_know_no_models():
    """Whoever imports a layer first must not meet a model that imports the layer."""
    folder = Path(attention.__file__).parent
    assert [file.name for file in sorted(folder.glob("*.py")) if "limner.models" in file.read_text()] == []


def test_half_precision_keys_give_weights_in_single():
    layer, states, values = layer_and(1, torch.float32)
    expected = layer(layer.query(states), layer.annotate(values, MASK))
    with torch.autocast("cpu", torch.bfloat16):
        to = layer.annotate(values, MASK)
        assert to.keys.dtype == torch.bfloat16
        context, weights = layer(layer.query(states), to)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights, expected[1], rtol=0, atol=0.05)
    (context.float().sum() + weights.square().sum()).backward()
    assert {p.grad.dtype for p in (states, values, *layer.parameters())} == {torch.float32}
