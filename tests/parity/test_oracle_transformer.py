"""The oracle of the Transformer against numbers computed by hand and properties of the printed equations."""

import math

import numpy as np
import oracle_transformer as oracle
import pytest

LN_3 = math.log(3)


def without_positions(monkeypatch):
    monkeypatch.setattr(oracle, "positional_encoding", lambda position, d: np.zeros(d))


def normalise(x):
    """Layer normalisation without gain and bias, by NumPy's own mean and (biased) variance."""
    x = np.asarray(x, dtype=np.float64)
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)


def test_positional_encodings_by_hand():
    # d = 4: the divisors are 10000^0 = 1 and 10000^(2/4) = 100. d = 6: 1, 10000^(1/3) and 10000^(2/3).
    assert oracle.positional_encoding(0, 4).tolist() == [0.0, 1.0, 0.0, 1.0]
    by_hand = [math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)]
    assert oracle.positional_encoding(3, 4) == pytest.approx(by_hand, rel=1e-14)
    angles = [2, 2, 2 / 21.544346900318843, 2 / 21.544346900318843, 2 / 464.15888336127773, 2 / 464.15888336127773]
    by_hand = [f(angle) for f, angle in zip([math.sin, math.cos] * 3, angles, strict=True)]
    assert oracle.positional_encoding(2, 6) == pytest.approx(by_hand, rel=1e-14)


def test_network_of_dimension_two_by_hand(monkeypatch):
    # Encoder without sub-layers: the source (token 0, token 1) becomes (s, -s), (-s, s), with s = 1 but for epsilon.
    # norm_1 of the decoder has gain 0, so every query is its bias (ln 3 / (sqrt(2) s), 0). Scores are
    # +ln 3 / 2 and -ln 3 / 2, the weights 3/4 and 1/4, the value (s, -s) * (3/4 - 1/4), W_O swaps it: (-s, s) / 2.
    without_positions(monkeypatch)
    s = normalise(normalise([3.0, 1.0]))[0]
    shapes = oracle.weight_shapes(layers=1, d=2, d_ff=1, source_vocab=2, target_vocab=2)
    weights = {name: np.zeros(shape) for name, shape in shapes.items()}
    for name in ("enc.1.norm_1", "enc.1.norm_2", "dec.1.norm_2", "dec.1.norm_3"):
        weights[f"{name}.gain"][:] = 1.0
    weights["E_x"][:] = np.array([[3.0, 1.0], [1.0, 3.0]]) / math.sqrt(2)
    weights["E_y"][:] = [[1.0, 0.0], [2.0, 5.0]]
    weights["dec.1.norm_1.bias"][0] = LN_3 / (math.sqrt(2) * s)
    for name in ("W_Q", "W_K", "W_V"):
        weights[f"dec.1.cross.{name}"][:] = np.eye(2)
    weights["dec.1.cross.W_O"][:] = [[0.0, 1.0], [1.0, 0.0]]
    high = normalise(normalise([LN_3 / (math.sqrt(2) * s) - s / 2, s / 2]))[0]
    given = oracle.cross_attention(weights, [0, 1], [1, 0, 1], layers=1, heads=1)
    np.testing.assert_allclose(given, [[0.75, 0.25]] * 3, rtol=1e-12)
    given = oracle.logits(weights, [0, 1], [1, 0, 1], layers=1, heads=1)
    np.testing.assert_allclose(given, [[high, -3 * high]] * 3, rtol=1e-12)
