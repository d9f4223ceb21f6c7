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
CELLS = {
    "tanh": ("rnn", oracle.rnn_step, {}),
    "relu": ("rnn", oracle.relu_step, {}),
    "leaky": ("rnn", oracle.leaky_step, {"tau": (H,)}),
    "lstm": ("lstm", oracle.lstm_step, {}),
    "peepholes": ("lstm", oracle.lstm_step, {"W_ci": (H,), "W_cf": (H,), "W_co": (H,)}),
    "matrix peepholes": ("lstm", oracle.lstm_step, {"W_ci": (H, H), "W_cf": (H, H), "W_co": (H, H)}),
    "gru": ("gru", oracle.gru_step, {}),
    "torch gru": ("gru", oracle.torch_gru_step, {"b_hh": (H,)}),
    "deep": ("rnn", oracle.deep_transition_step, {"W_1": (H, H), "b_1": (H,)}),
}


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


def test_reset_before_and_after_the_product_differ_when_units_mix():
    theta = weights("gru")
    before, after = hidden(oracle.gru_step, theta), hidden(partial(oracle.gru_step, reset="after"), theta)
    np.testing.assert_allclose(before[0], after[0])  # h_0 = 0
    assert not np.allclose(before[1], after[1])
    # A diagonal W_hh commutes with the reset.
    theta["W_hh"] = np.diag(np.diag(theta["W_hh"]))
    same = hidden(partial(oracle.gru_step, reset="after"), theta)
    np.testing.assert_allclose(hidden(oracle.gru_step, theta), same)


def test_the_two_updates_of_a_gru_are_one_network_with_the_gate_negated():
    theta = weights("gru")
    negated = theta | {name: -theta[name] for name in ("W_xz", "W_hz", "b_z")}
    np.testing.assert_allclose(
        hidden(oracle.gru_step, theta), hidden(partial(oracle.gru_step, update="cho"), negated), rtol=1e-12
    )


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


@pytest.mark.parametrize("name", CELLS)
def test_every_weight_has_an_effect_and_an_absent_bias_is_zero(name):
    kind, step, extra = CELLS[name]
    theta = weights(kind, extra)
    expected = hidden(step, theta, cell=kind == "lstm")
    for key, array in theta.items():
        assert not np.allclose(hidden(step, theta | {key: array * 1.5}, cell=kind == "lstm"), expected), key
        if key.startswith("b_"):
            absent = {other: theta[other] for other in theta if other != key}
            zero = theta | {key: np.zeros(H)}
            np.testing.assert_array_equal(
                hidden(step, absent, cell=kind == "lstm"), hidden(step, zero, cell=kind == "lstm")
            )


def test_a_time_constant_of_one_is_the_plain_cell_and_a_large_one_keeps_the_state():
    theta = weights("rnn")
    np.testing.assert_allclose(
        hidden(oracle.leaky_step, theta | {"tau": np.ones(H)}), hidden(oracle.rnn_step, theta), rtol=1e-12
    )
    (h,) = oracle.leaky_step(theta | {"tau": np.array([1.0, 1e12, 1.0, 1.0])}, INPUTS[0], (np.full(H, 5.0),))
    assert h[1] == pytest.approx(5.0)
    assert np.all(np.abs(np.delete(h, 1)) <= 1.0)


@pytest.mark.parametrize("gates", ["", "i", "f", "o", "if", "ifo"])
def test_peepholes_of_any_gates(gates):
    theta = weights("lstm", {f"W_c{gate}": (H,) for gate in gates})
    diagonal = theta | {f"W_c{gate}": np.diag(theta[f"W_c{gate}"]) for gate in gates}
    zero = {f"W_c{gate}": np.zeros(H) for gate in "ifo" if gate not in gates}
    expected = hidden(oracle.lstm_step, theta, cell=True)
    np.testing.assert_allclose(hidden(oracle.lstm_step, diagonal, cell=True), expected, rtol=1e-12)
    np.testing.assert_array_equal(hidden(oracle.lstm_step, theta | zero, cell=True), expected)
    # c_0 = 0: at the first step only the output gate sees the (new) cell.
    bare = hidden(oracle.lstm_step, {k: a for k, a in theta.items() if k not in ("W_ci", "W_cf", "W_co")}, cell=True)
    assert np.allclose(expected[0], bare[0]) == ("o" not in gates)


# Sequences


def test_one_layer_is_the_stack_of_one_and_layers_read_the_outputs_below():
    first, second = weights("rnn"), weights("rnn", inputs=H, seed=2)
    layers = oracle.run_stacked(oracle.rnn_step, [first, second], INPUTS, [oracle.start(first)] * 2)
    below = hidden(oracle.rnn_step, first)
    np.testing.assert_array_equal(oracle.outputs_of(layers[0]), below)
    np.testing.assert_array_equal(oracle.outputs_of(layers[1]), hidden(oracle.rnn_step, second, below))


def test_each_direction_depends_on_its_own_side():
    forward, backward = weights("gru"), weights("gru", seed=2)
    zero = (oracle.start(forward), oracle.start(backward))
    whole = oracle.run_bidirectional(oracle.gru_step, forward, backward, INPUTS, zero)
    begin = oracle.run_bidirectional(oracle.gru_step, forward, backward, INPUTS[:2], zero)
    end = oracle.run_bidirectional(oracle.gru_step, forward, backward, INPUTS[2:], zero)
    np.testing.assert_array_equal(begin[:, :H], whole[:2, :H])
    np.testing.assert_array_equal(end[:, H:], whole[2:, H:])
    mirrored = oracle.run_bidirectional(oracle.gru_step, backward, forward, INPUTS[::-1], zero[::-1])[::-1]
    np.testing.assert_array_equal(mirrored, np.roll(whole, H, axis=1))


def test_padding_has_no_effect():
    forward, backward = weights("rnn"), weights("rnn", seed=2)

    def encode(inputs):
        zero = (oracle.start(forward), oracle.start(backward))
        return oracle.run_bidirectional(oracle.rnn_step, forward, backward, inputs, zero)

    batch = np.stack([INPUTS, INPUTS])
    batch[1, 2:] = 99.0
    outputs, last = oracle.run_padded(encode, batch, [T, 2])
    np.testing.assert_array_equal(outputs[1, :2], encode(INPUTS[:2]))
    np.testing.assert_array_equal(outputs[1, 2:], 0.0)
    np.testing.assert_array_equal(last, [outputs[0, -1], outputs[1, 1]])


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


def test_output_probabilities_and_losses():
    theta = draw({"W_hy": (Y, 2), "b_y": (Y,), "V_1": (5, H), "a_1": (5,), "V_2": (2, 5), "a_2": (2,)})
    states = hidden(oracle.rnn_step, weights("rnn"))
    logs = [oracle.output_log_probs(theta, h) for h in states]
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1.0, rtol=1e-12)
    deep = np.tanh(theta["V_2"] @ np.tanh(theta["V_1"] @ states[0] + theta["a_1"]) + theta["a_2"])
    np.testing.assert_allclose(np.exp(logs[0]), oracle.softmax(theta["W_hy"] @ deep + theta["b_y"]), rtol=1e-12)
    targets = [0, 1, 2, 1, 0]
    assert oracle.loss_per_step(theta, states, targets) == pytest.approx(
        -sum(logs[t][y] for t, y in enumerate(targets))
    )
    assert oracle.loss_at_end(theta, states, 2) == pytest.approx(-logs[-1][2])
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


def test_each_direction_of_a_grid_sees_its_own_quadrant():
    grid = np.random.default_rng(4).normal(size=(3, 4, X))
    thetas = [grid_weights(seed) for seed in range(4)]
    whole = oracle.run_four_directions(thetas, grid)
    assert whole.shape == (3, 4, 4 * H)
    changed = grid.copy()
    changed[1, 2] += 1.0
    differs = ~np.isclose(oracle.run_four_directions(thetas, changed), whole).reshape(3, 4, 4, H).all(axis=3)
    for k, (dr, dc) in enumerate(oracle.DIRECTIONS):
        for r in range(3):
            for c in range(4):
                assert differs[r, c, k] == ((r - 1) * dr >= 0 and (c - 2) * dc >= 0)


# Conditioning


@pytest.mark.parametrize("at", ["step", "start", "both"])
@pytest.mark.parametrize("name", ["tanh", "lstm", "gru"])
def test_conditioning_on_a_vector(name, at):
    kind, step, _ = CELLS[name]
    width = X if at == "start" else X + V
    theta = weights(kind, {"W_init": (H, V), "b_init": (H,)}, inputs=width)
    zero, v = oracle.start(theta, kind == "lstm"), np.array([0.5, -1.0])
    states = oracle.run_conditioned(step, theta, INPUTS, v, at, zero)
    # The same network with the vector's part in the biases and the state set by hand.
    moved = dict(theta)
    for gate in GATES[kind]:
        moved[f"W_x{gate}"] = theta[f"W_x{gate}"][:, :X]
        if at != "start":
            moved[f"b_{gate}"] = theta[f"b_{gate}"] + theta[f"W_x{gate}"][:, X:] @ v
    if at != "step":
        zero = (np.tanh(theta["W_init"] @ v + theta["b_init"]), *zero[1:])
    expected = oracle.outputs_of(oracle.run(step, moved, INPUTS, zero))
    np.testing.assert_allclose(oracle.outputs_of(states), expected, rtol=1e-12)


# Gradients


def test_the_jacobian_is_the_product_of_the_printed_ones():
    theta = weights("rnn")
    states = hidden(oracle.rnn_step, theta)
    product = np.eye(H)
    for h in states:
        product = np.diag(1.0 - h**2) @ theta["W_hh"] @ product
    zero = oracle.start(theta)
    np.testing.assert_allclose(oracle.state_jacobian(oracle.rnn_step, theta, INPUTS, zero), product, atol=1e-9)
    norms = oracle.jacobian_norms(oracle.rnn_step, theta, INPUTS, zero)
    assert norms.shape == (T,)
    assert norms[0] == pytest.approx(np.linalg.norm(product, 2))


def test_a_linear_path_keeps_the_gradient():
    # W_hh = 0: the leaky unit's Jacobian over T steps is (1 - 1 / tau)^T, and that of the added skip is 1.
    theta = weights("rnn") | {"W_hh": np.zeros((H, H)), "tau": np.full(H, 4.0)}
    norms = oracle.jacobian_norms(oracle.leaky_step, theta, INPUTS, oracle.start(theta))
    np.testing.assert_allclose(norms, 0.75 ** np.arange(T, 0, -1), rtol=1e-7)
    step = partial(oracle.deep_transition_step, skip="add")
    np.testing.assert_allclose(oracle.jacobian_norms(step, theta, INPUTS, oracle.start(theta)), 1.0, rtol=1e-7)


def test_the_numerical_gradient_equals_autograd():
    theta = weights("rnn") | draw({"W_hy": (Y, H), "b_y": (Y,)}, 7)
    targets = [0, 2, 1, 1, 0]
    gradient = oracle.numerical_gradient(
        lambda moved: oracle.loss_per_step(moved, hidden(oracle.rnn_step, moved), targets), theta
    )
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in theta.items()}
    h, loss = torch.zeros(H, dtype=torch.float64), 0.0
    for x, y in zip(torch.from_numpy(INPUTS), targets, strict=True):
        h = torch.tanh(tensors["W_xh"] @ x + tensors["W_hh"] @ h + tensors["b_h"])
        loss = loss - torch.log_softmax(tensors["W_hy"] @ h + tensors["b_y"], 0)[y]
    loss.backward()
    for name, tensor in tensors.items():
        np.testing.assert_allclose(gradient[name], tensor.grad, atol=1e-8, err_msg=name)
