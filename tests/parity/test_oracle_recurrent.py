"""The oracle of recurrent networks: hand-computed values, torch, and identities between its networks."""

import math

import numpy as np
import oracle_recurrent as oracle
import pytest
import torch

LN2, LN3 = math.log(2), math.log(3)  # tanh(ln 2) = 3/5, sigma(ln 3) = 3/4
X, H, Y, V, T = 3, 4, 3, 2, 5
GATES = {"rnn": "h", "lstm": "ifoc", "gru": "rzh"}
INPUTS = np.random.default_rng(1).normal(size=(T, X))


def draw(shapes, seed=0):
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape) * 0.7 for name, shape in shapes.items()}


def weights(kind, extra=None, inputs=X, seed=0):
    shapes = {}
    for gate in GATES[kind]:
        shapes |= {f"W_x{gate}": (H, inputs), f"W_h{gate}": (H, H), f"b_{gate}": (H,)}
    theta = draw(shapes | (extra or {}), seed)
    if "tau" in theta:
        theta["tau"] = 1.0 + np.abs(theta["tau"])
    return theta


def one_unit(values):
    """Scalars as matrices and vectors of one unit; peepholes W_c. are vectors."""
    vectors = ("b_", "tau", "W_ci", "W_cf", "W_co")
    return {name: np.full((1,) if name.startswith(vectors) else (1, 1), float(v)) for name, v in values.items()}


def one(step, theta, x, *state):
    return [float(part[0]) for part in step(one_unit(theta), np.array([float(x)]), tuple(np.array([s]) for s in state))]


def hidden(step, theta, inputs=INPUTS, cell=False):
    return oracle.outputs_of(oracle.run(step, theta, inputs, oracle.start(theta, cell)))


# Cells


def test_one_unit_of_an_lstm_with_peepholes_by_hand():
    # x = 1, h = 2, c = 4: f = sigma(1 - 2 + 4 - 3 + ln 3) = 3/4; i = sigma(1 + 2 - 4 + 1 - ln 3) = 1/4;
    # g = tanh(-1 - 2 + 3 + ln 2) = 3/5; c' = 3 + 0.15; o reads c': sigma(1 - 1 - 2 * 3.15 + 6.3 + ln 3) = 3/4.
    theta = {"W_xf": 1, "W_hf": -1, "W_cf": 1, "b_f": LN3 - 3, "W_xi": 1, "W_hi": 1, "W_ci": -1, "b_i": 1 - LN3}
    theta |= {"W_xc": -1, "W_hc": -1, "b_c": 3 + LN2, "W_xo": 1, "W_ho": -0.5, "W_co": -2, "b_o": 6.3 + LN3}
    h, c = one(oracle.lstm_step, theta, 1, 2.0, 4.0)
    assert c == pytest.approx(3.15)
    assert h == pytest.approx(0.75 * math.tanh(3.15))
    # Coupled, i = 1 - f = 1/4 whatever the input gate's weights, which need not be there.
    coupled = {name: value for name, value in theta.items() if name not in ("W_xi", "W_hi", "W_ci", "b_i")}
    assert one(oracle.coupled_lstm_step, coupled, 1, 2.0, 4.0) == pytest.approx([h, c])


@pytest.mark.parametrize(
    ("kind", "reference", "order", "step"),
    [
        ("rnn", torch.nn.RNN(X, H), "h", oracle.rnn_step),
        ("rnn", torch.nn.RNN(X, H, nonlinearity="relu"), "h", oracle.relu_step),
        ("lstm", torch.nn.LSTM(X, H), "ifco", oracle.lstm_step),
        ("gru", torch.nn.GRU(X, H), "rzh", oracle.torch_gru_step),
    ],
)
def test_cells_equal_torch(kind, reference, order, step):
    reference = reference.double()
    w, u, b, b_u = (array.detach().numpy().reshape(len(order), H, -1) for array in reference.parameters())
    theta = {}
    for k, gate in enumerate(order):
        both = kind != "gru" or gate != "h"
        theta |= {f"W_x{gate}": w[k], f"W_h{gate}": u[k], f"b_{gate}": (b[k] + b_u[k] if both else b[k])[:, 0]}
    if kind == "gru":
        theta["b_hh"] = b_u[2][:, 0]
    expected = reference(torch.from_numpy(INPUTS))[0].detach().numpy()
    np.testing.assert_allclose(hidden(step, theta, cell=kind == "lstm"), expected, rtol=1e-9, atol=1e-12)
