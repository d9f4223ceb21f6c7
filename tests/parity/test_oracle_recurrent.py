"""The oracle of recurrent networks: hand-computed values, torch, and identities between its networks."""

import math
from functools import partial

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


def test_one_unit_of_each_plain_cell_by_hand():
    # tanh(2 * 1 - 1 * 3 + 1 + ln 2) = 3/5
    theta = {"W_xh": 2, "W_hh": -1, "b_h": 1 + LN2}
    assert one(oracle.rnn_step, theta, 1, 3.0) == pytest.approx([0.6])
    assert one(oracle.relu_step, theta, 1, 3.0) == pytest.approx([LN2])
    assert one(oracle.relu_step, theta, -1, 3.0) == [0.0]
    # tau = 4: 3/4 * 3 + 1/4 * 3/5
    assert one(oracle.leaky_step, theta | {"tau": 4}, 1, 3.0) == pytest.approx([2.4])


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


def test_one_unit_of_a_gru_by_hand():
    # x = 1, h = 4: z = sigma(1 - 4 + 3 + ln 3) = 3/4; r = sigma(1 - ln 3 - 1) = 1/4;
    # before: tanh(1 + 2 (1/4 * 4) - 3 + ln 2) = 3/5, after with b_hh = 4: tanh(1 + 1/4 (2 * 4 + 4) - 4 + ln 2).
    theta = {"W_xz": 1, "W_hz": -1, "b_z": 3 + LN3, "W_xr": 1, "W_hr": 0, "b_r": -1 - LN3}
    theta |= {"W_xh": 1, "W_hh": 2, "b_h": LN2 - 3}
    assert one(oracle.gru_step, theta, 1, 4.0) == pytest.approx([1 / 4 * 4 + 3 / 4 * 0.6])
    cho = partial(oracle.gru_step, update="cho")
    assert one(cho, theta, 1, 4.0) == pytest.approx([3 / 4 * 4 + 1 / 4 * 0.6])
    after = theta | {"b_hh": 4, "b_h": LN2 - 4}
    assert one(oracle.torch_gru_step, after, 1, 4.0) == pytest.approx([3 / 4 * 4 + 1 / 4 * 0.6])


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


# Sequences


def test_a_delay_of_one_is_the_plain_cell_and_longer_ones_reach_back_exactly():
    theta = weights("rnn")
    delayed = {"W_xh": theta["W_xh"], "b_h": theta["b_h"], "W_delay": theta["W_hh"]}
    expected = hidden(oracle.rnn_step, theta)
    np.testing.assert_allclose(oracle.run_long_delay(delayed, INPUTS, 1, np.zeros(H)), expected, rtol=1e-12)
    # Without W_hh, a delay of 2 is two interleaved networks; the second one begins after zero.
    two = oracle.run_long_delay(delayed, INPUTS, 2, np.zeros(H))
    np.testing.assert_allclose(two[::2], hidden(oracle.rnn_step, theta, INPUTS[::2]), rtol=1e-12)
    np.testing.assert_allclose(two[1::2], hidden(oracle.rnn_step, theta, INPUTS[1::2]), rtol=1e-12)
    # h_0 is reached from step D on.
    other = oracle.run_long_delay(delayed, INPUTS, 2, np.ones(H))
    assert np.allclose(other[0], two[0])
    assert not np.allclose(other[1], two[1])


def test_deep_transition_with_and_without_skip():
    theta = weights("rnn", {"W_1": (H, H), "b_1": (H,), "W_2": (H, H), "b_2": (H,), "W_skip": (H, H)})
    x, h = INPUTS[0], (np.random.default_rng(3).normal(size=H),)
    u = oracle.rnn_step(theta, x, h)[0]
    u = np.tanh(theta["W_1"] @ u + theta["b_1"])
    total = theta["W_2"] @ u + theta["b_2"]
    for skip, expected in [
        ("none", np.tanh(total)),
        ("matrix", np.tanh(total + theta["W_skip"] @ h[0])),
        ("add", np.tanh(total) + h[0]),
    ]:
        np.testing.assert_allclose(oracle.deep_transition_step(theta, x, h, skip=skip)[0], expected, rtol=1e-12)
    # Without deeper layers it is the plain cell.
    plain = weights("rnn")
    np.testing.assert_array_equal(oracle.deep_transition_step(plain, x, h)[0], oracle.rnn_step(plain, x, h)[0])


# Outputs


def test_output_probabilities():
    theta = draw({"W_hy": (Y, 2), "b_y": (Y,), "V_1": (5, H), "a_1": (5,), "V_2": (2, 5), "a_2": (2,)})
    states = hidden(oracle.rnn_step, weights("rnn"))
    logs = [oracle.output_log_probs(theta, h) for h in states]
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1.0, rtol=1e-12)
    deep = np.tanh(theta["V_2"] @ np.tanh(theta["V_1"] @ states[0] + theta["a_1"]) + theta["a_2"])
    np.testing.assert_allclose(np.exp(logs[0]), oracle.softmax(theta["W_hy"] @ deep + theta["b_y"]), rtol=1e-12)
    # Odds of 1 : 3 from energies too large for exp
    assert oracle.softmax(np.array([2000.0, 2000.0 + LN3])) == pytest.approx([0.25, 0.75])


def test_output_recurrence_knows_the_past_through_the_outputs_only():
    shapes = {"W_xh": (H, X), "W_yh": (H, Y), "b_h": (H,), "W_hy": (Y, H), "b_y": (Y,)}
    theta, first = draw(shapes), np.eye(Y)[0]
    states, outputs = oracle.run_output_recurrence(theta, INPUTS, first)
    np.testing.assert_allclose(outputs.sum(axis=1), 1.0, rtol=1e-12)
    # Reading its own predictions as targets changes nothing; given y_{t-1}, earlier inputs do not matter.
    np.testing.assert_allclose(oracle.run_output_recurrence(theta, INPUTS, first, outputs)[0], states, rtol=1e-12)
    other = oracle.run_output_recurrence(theta, INPUTS[::-1], first, outputs)
    np.testing.assert_allclose(other[0][2], states[2], rtol=1e-12)  # the middle input is the same
    # With W_hh they do; and without W_yh's part it is the plain cell.
    both = theta | {"W_hh": draw({"W": (H, H)}, 5)["W"]}
    assert not np.allclose(
        oracle.run_output_recurrence(both, INPUTS[::-1], first, outputs)[0][2],
        oracle.run_output_recurrence(both, INPUTS, first, outputs)[0][2],
    )
    both["W_yh"] = np.zeros((H, Y))
    np.testing.assert_allclose(
        oracle.run_output_recurrence(both, INPUTS, first)[0], hidden(oracle.rnn_step, both), rtol=1e-12
    )


# Two dimensions


def grid_weights(seed=0):
    return draw({"W_xh": (H, X), "W_row": (H, H), "W_col": (H, H), "b_h": (H,)}, seed)


def test_one_row_or_column_is_a_sequence_in_each_direction():
    theta = grid_weights()
    for matrix, grid, at in (("W_col", INPUTS[None], np.s_[0]), ("W_row", INPUTS[:, None], np.s_[:, 0])):
        plain = {"W_xh": theta["W_xh"], "b_h": theta["b_h"], "W_hh": theta[matrix]}
        along, back = hidden(oracle.rnn_step, plain), hidden(oracle.rnn_step, plain, INPUTS[::-1])[::-1]
        for direction in oracle.DIRECTIONS:
            sign = direction[1] if matrix == "W_col" else direction[0]
            expected = along if sign == 1 else back
            np.testing.assert_allclose(oracle.run_grid(theta, grid, direction)[at], expected, rtol=1e-12)


# Conditioning


# Gradients


def test_the_jacobian_is_the_product_of_the_printed_ones():
    theta = weights("rnn")
    states = hidden(oracle.rnn_step, theta)
    product = np.eye(H)
    for h in states:
        product = np.diag(1.0 - h**2) @ theta["W_hh"] @ product
    zero = oracle.start(theta)
    np.testing.assert_allclose(oracle.state_jacobian(oracle.rnn_step, theta, INPUTS, zero), product, atol=1e-9)


def test_the_numerical_gradient_equals_autograd():
    theta = weights("rnn") | draw({"W_hy": (Y, H), "b_y": (Y,)}, 7)
    targets = [0, 2, 1, 1, 0]

    def loss_of(theta):
        states = hidden(oracle.rnn_step, theta)
        return -sum(oracle.output_log_probs(theta, h)[y] for h, y in zip(states, targets, strict=True))

    gradient = oracle.numerical_gradient(loss_of, theta)
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in theta.items()}
    h, loss = torch.zeros(H, dtype=torch.float64), 0.0
    for x, y in zip(torch.from_numpy(INPUTS), targets, strict=True):
        h = torch.tanh(tensors["W_xh"] @ x + tensors["W_hh"] @ h + tensors["b_h"])
        loss = loss - torch.log_softmax(tensors["W_hy"] @ h + tensors["b_y"], 0)[y]
    loss.backward()
    for name, tensor in tensors.items():
        np.testing.assert_allclose(gradient[name], tensor.grad, atol=1e-8, err_msg=name)
