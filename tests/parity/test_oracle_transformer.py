"""The oracle of the Transformer against numbers computed by hand and properties of the printed equations."""

import math

import numpy as np
import oracle_transformer as oracle
import pytest

SOURCE, TARGET = [3, 0, 4, 1], [0, 2, 5, 2, 1]
LN_3 = math.log(3)


def random_weights(*, layers=2, d=6, d_ff=10):
    generator = np.random.default_rng(0)
    shapes = oracle.weight_shapes(layers=layers, d=d, d_ff=d_ff, source_vocab=5, target_vocab=7)
    # The factor 0.5 keeps attention weights away from 0 and 1.
    return {name: 0.5 * generator.normal(size=shape) for name, shape in shapes.items()}


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


def test_the_factor_of_the_embeddings_leaves_the_positional_encodings_alone():
    # d = 4, so the factor is 2. Positions are counted from 0.
    table = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    by_hand = [[10, 13, 14, 17], [2 + math.sin(1), 4 + math.cos(1), 6 + math.sin(0.01), 8 + math.cos(0.01)]]
    np.testing.assert_allclose(oracle.embed(table, [1, 0]), by_hand, rtol=1e-14)


def test_layer_norm_by_hand():
    # (1, 2, 6): mean 3, variance (4 + 1 + 9) / 3. (0, 0.003, 0.006): variance 6e-6, comparable with epsilon.
    weights = {"norm.gain": np.array([1.0, 2.0, -1.0]), "norm.bias": np.array([0.5, 0.0, 7.0])}
    root, small = math.sqrt(14 / 3 + 1e-5), math.sqrt(1.6e-5)
    by_hand = [[-2 / root + 0.5, -2 / root, -3 / root + 7], [-0.003 / small + 0.5, 0.0, -0.003 / small + 7]]
    given = oracle.layer_norm(weights, "norm", np.array([[1.0, 2.0, 6.0], [0.0, 0.003, 0.006]]))
    np.testing.assert_allclose(given, by_hand, rtol=1e-12, atol=1e-15)


def test_attention_by_hand():
    # d_k = 4, so scores are halved. Query 1 has ln 3 and 0: weights 3/4, 1/4. Query 2 has 0 and ln 4: 1/5, 4/5.
    q = np.array([[2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 4.0, 0.0]])
    k = np.array([[LN_3, 5.0, 0.0, 0.0], [0.0, 5.0, math.log(2), 0.0]])
    v = np.array([[4.0, 0.0], [0.0, 8.0]])
    output, weights = oracle.attention(q, k, v, causal=False)
    np.testing.assert_allclose(weights, [[0.75, 0.25], [0.2, 0.8]], rtol=1e-14)
    np.testing.assert_allclose(output, [[3.0, 2.0], [0.8, 6.4]], rtol=1e-14)
    output, weights = oracle.attention(q, k, v, causal=True)
    np.testing.assert_allclose(weights, [[1.0, 0.0], [0.2, 0.8]], rtol=1e-14)
    np.testing.assert_allclose(output, [[4.0, 0.0], [0.8, 6.4]], rtol=1e-14)


def test_two_heads_by_hand():
    # d = 2, two heads, d_k = 1. x = (1, 2), memory (1, 0), (0, 1).
    # Head 1: q = 1 * 1 + 2 * 0 = 1, k = (ln 3, 0), v = (8, 4): weights 3/4, 1/4, output 7.
    # Head 2: q = 1 * 3 + 2 * -1 = 1, k = (0, ln 9), v = (10, 20): weights 1/10, 9/10, output 19.
    # (7, 19) W_O = (7 * 1 + 19 * 0, 7 * 100 + 19 * 1); the mean weights are 17/40, 23/40.
    weights = {
        "a.W_Q": np.array([[1.0, 3.0], [0.0, -1.0]]),
        "a.W_K": np.array([[LN_3, 0.0], [0.0, 2 * LN_3]]),
        "a.W_V": np.array([[8.0, 10.0], [4.0, 20.0]]),
        "a.W_O": np.array([[1.0, 100.0], [0.0, 1.0]]),
    }
    output, mean = oracle.multi_head(weights, "a", np.array([[1.0, 2.0]]), np.eye(2), heads=2)
    np.testing.assert_allclose(output, [[7.0, 719.0]], rtol=1e-14)
    np.testing.assert_allclose(mean, [[0.425, 0.575]], rtol=1e-14)


def test_feed_forward_by_hand():
    # (1, 2) W_1 + b_1 = (1 - 2, 3 + 2, 6) + (0.5, 1, -6) = (-0.5, 6, 0); ReLU (0, 6, 0); times W_2, plus b_2.
    weights = {
        "a.W_1": np.array([[1.0, 3.0, 0.0], [-1.0, 1.0, 3.0]]),
        "a.b_1": np.array([0.5, 1.0, -6.0]),
        "a.W_2": np.array([[9.0, 9.0], [2.0, -1.0], [9.0, 9.0]]),
        "a.b_2": np.array([0.25, -4.0]),
    }
    assert oracle.feed_forward(weights, "a", np.array([[1.0, 2.0]])).tolist() == [[12.25, -10.0]]


def test_network_with_uniform_attention_equals_running_means():
    # W_Q = 0 makes all scores equal, so attention is a mean over the tokens seen, whatever the heads: the whole
    # network of two layers, with its order of sub-layers and norms, is then a chain of matrix products.
    weights = random_weights()
    for name, array in weights.items():
        if name.endswith("W_Q"):
            array[:] = 0.0

    def norm(x, name):
        return normalise(x) * weights[f"{name}.gain"] + weights[f"{name}.bias"]

    def network(x, name):
        return np.clip(x @ weights[f"{name}.W_1"] + weights[f"{name}.b_1"], 0, None) @ weights[f"{name}.W_2"]

    memory = math.sqrt(6) * weights["E_x"][SOURCE] + [oracle.positional_encoding(n, 6) for n in range(4)]
    for name in ("enc.1", "enc.2"):
        memory = norm(memory + memory.mean(axis=0) @ weights[f"{name}.W_V"] @ weights[f"{name}.W_O"], f"{name}.norm_1")
        memory = norm(memory + network(memory, name) + weights[f"{name}.b_2"], f"{name}.norm_2")
    x = math.sqrt(6) * weights["E_y"][TARGET] + [oracle.positional_encoding(n, 6) for n in range(5)]
    for name in ("dec.1", "dec.2"):
        seen = np.cumsum(x, axis=0) / [[1], [2], [3], [4], [5]]
        x = norm(x + seen @ weights[f"{name}.self.W_V"] @ weights[f"{name}.self.W_O"], f"{name}.norm_1")
        looked_up = memory.mean(axis=0) @ weights[f"{name}.cross.W_V"] @ weights[f"{name}.cross.W_O"]
        x = norm(x + looked_up, f"{name}.norm_2")
        x = norm(x + network(x, name) + weights[f"{name}.b_2"], f"{name}.norm_3")
    by_hand = x @ weights["E_y"].T
    np.testing.assert_allclose(oracle.logits(weights, SOURCE, TARGET, layers=2, heads=2), by_hand, rtol=1e-9)
    uniform = oracle.cross_attention(weights, SOURCE, TARGET, layers=2, heads=2)
    np.testing.assert_allclose(uniform, np.full((5, 4), 0.25), rtol=1e-14)


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
