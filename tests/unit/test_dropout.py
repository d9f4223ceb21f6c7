import pytest
import torch

from limner.layers.dropout import dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropped_share_and_scale(rate: float) -> None:
    x = torch.ones(500, 1001)
    out = dropout(x, rate, training=True)
    zero = (out == 0).double().mean()
    assert float(zero) == pytest.approx(rate, abs=0.003)
    assert float(out.mean()) == pytest.approx(1, abs=0.02)
    assert len(out[out != 0].unique()) == 1


def test_units_are_dropped_independently() -> None:
    out = dropout(torch.ones(20_000, 16), 0.5, training=True) > 0
    together = (out[:, :, None] & out[:, None, :]).double().mean(0)
    off_diagonal = together[~torch.eye(16, dtype=torch.bool)]
    torch.testing.assert_close(off_diagonal, torch.full_like(off_diagonal, 0.25), atol=0.015, rtol=0)


def test_the_seed_determines_the_mask() -> None:
    torch.manual_seed(3)
    first = dropout(torch.ones(9, 7), 0.3, training=True)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(torch.ones(9, 7), 0.3, training=True))


def test_the_gradient_is_zero_where_the_value_is_dropped() -> None:
    x = torch.ones(40, 5, requires_grad=True)
    out = dropout(x, 0.5, training=True)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, out.detach())


@pytest.mark.parametrize(("rate", "training"), [(0.5, False), (0.0, True)])
def test_dropout_is_the_identity_in_evaluation_and_at_rate_zero(rate: float, training: bool) -> None:
    x = torch.randn(3, 4)
    assert dropout(x, rate, training) is x
