"""Additive attention without annotations and in its faster form for decoding; its formula is in `tests/parity`."""

import pytest
import torch

from limner.layers import attention
from limner.layers.attention import AdditiveAttention, energies

QUERY, DEPTH, SIZE = 4, 3, 5
SETS, LOCATIONS = 3, 4
MASK = torch.tensor([[True, True, True, True], [False, True, False, True], [False] * 4])


def layer_and(queries: int, dtype=torch.float64):
    """A layer with random weights, K projected queries U s of each set, and the annotation sets."""
    layer = AdditiveAttention(QUERY, DEPTH, SIZE).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    states = torch.randn(SETS * queries, QUERY, dtype=dtype, requires_grad=True)
    values = torch.randn(SETS, LOCATIONS, DEPTH, dtype=dtype, requires_grad=True)
    return layer, states, values


def test_without_annotations_the_weights_are_zero_and_no_gradient_is_lost():
    layer, states, values = layer_and(2)
    context, weights = layer(states, layer.annotate(values, MASK))
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("chunk", [1, 2 * LOCATIONS * SIZE, attention.CHUNK])
def test_energies_by_sigmoids_equal_energies_by_tanh(queries, dtype, chunk, monkeypatch):
    monkeypatch.setattr(attention, "CHUNK", chunk)  # one set at a time, or all of them
    q, k, v = (torch.randn(shape).to(dtype) for shape in ((SETS, queries, SIZE), (SETS, LOCATIONS, SIZE), (SIZE,)))
    near = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
    expected = torch.tanh(q[:, :, None] + k[:, None]) @ v
    for learning in (True, False):
        with torch.set_grad_enabled(learning):
            result = energies(q, 2 * k, v)
        assert result.dtype == torch.promote_types(dtype, torch.float32)
        torch.testing.assert_close(result, expected.to(result.dtype), rtol=0, atol=near)


def test_half_precision_keys_give_float32_weights():
    layer, states, values = layer_and(1, torch.float32)
    expected = layer(states, layer.annotate(values, MASK))
    with torch.autocast("cpu", torch.bfloat16):
        to = layer.annotate(values, MASK)
        assert to.keys.dtype == torch.bfloat16
        context, weights = layer(states, to)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights, expected[1], rtol=0, atol=0.05)
    (context.float().sum() + weights.square().sum()).backward()
    assert {p.grad.dtype for p in (states, values, *layer.parameters())} == {torch.float32}
