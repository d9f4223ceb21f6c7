"""The oracle of Show and Tell: hand-computed values and invariances."""

import math

import numpy as np
import oracle_recurrent
import oracle_show_and_tell as oracle
import pytest

LN3 = math.log(3)
D, X, N, V = 3, 2, 4, 5
IMAGE, SENTENCE = np.array([0.5, -1.0, 2.0]), [0, 3, 2, 4, 1]


def weights():
    generator = np.random.default_rng(0)
    shapes = {"W_I": (X, D), "b_I": (X,), "W_e": (X, V), "W_p": (V, N), "b_p": (V,)}
    for gate in "ifoc":
        shapes |= {f"W_{gate}x": (N, X), f"W_{gate}m": (N, N), f"b_{gate}": (N,)}
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


def test_one_unit_of_the_printed_lstm_by_hand():
    # x = 1, m = 2, c = 4: i = sigma(1 - 2 + 1 + ln 3), f and o likewise 3/4 and 1/4; tanh(1 - 2 + 1 + ln 2) = 3/5;
    # c = 3/4 * 4 + 3/4 * 3/5 = 3.45, and m = 1/4 * 3.45 without tanh.
    theta = {f"W_{gate}x": np.ones((1, 1)) for gate in "ifoc"} | {f"W_{gate}m": -np.ones((1, 1)) for gate in "ifoc"}
    theta |= {f"b_{gate}": np.array([1 + v]) for gate, v in zip("ifoc", (LN3, LN3, -LN3, math.log(2)), strict=True)}
    state = (np.array([2.0]), np.array([4.0]))
    m, c = oracle.lstm(theta, np.array([1.0]), state)
    assert c == pytest.approx([3.45])
    assert m == pytest.approx([3.45 / 4])
    assert oracle.lstm(theta, np.array([1.0]), state, squash=True)[0] == pytest.approx([math.tanh(3.45) / 4])


def test_with_tanh_it_is_the_usual_lstm():
    theta = weights()
    renamed = {f"W_x{gate}": theta[f"W_{gate}x"] for gate in "ifoc"} | {
        f"W_h{gate}": theta[f"W_{gate}m"] for gate in "ifoc"
    }
    renamed |= {f"b_{gate}": theta[f"b_{gate}"] for gate in "ifoc"}
    inputs = np.array([theta["W_I"] @ IMAGE + theta["b_I"], *(theta["W_e"][:, word] for word in SENTENCE[:-1])])
    states = oracle_recurrent.run(oracle_recurrent.lstm_step, renamed, inputs, (np.zeros(N), np.zeros(N)))
    expected = [oracle.log_softmax(theta["W_p"] @ h + theta["b_p"]) for h, _ in states[1:]]
    actual = oracle.next_word_log_probs(theta, IMAGE, SENTENCE[:-1], squash=True)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("squash", [False, True])
def test_the_image_is_a_word_read_once_before_the_start_word(squash):
    theta = weights()
    column = theta["W_I"] @ IMAGE + theta["b_I"]
    theta["W_e"] = np.column_stack([theta["W_e"], column])  # word 5
    _, state = oracle.step(theta, V, (np.zeros(N), np.zeros(N)), squash)
    expected, _ = oracle.step(theta, 0, state, squash)
    np.testing.assert_allclose(oracle.next_word_log_probs(theta, IMAGE, [0], squash)[0], expected, rtol=1e-12)
    assert not np.allclose(oracle.next_word_log_probs(theta, -IMAGE, [0], squash)[0], expected)


def test_the_loss_of_a_sentence():
    theta = weights()
    log_probs = oracle.next_word_log_probs(theta, IMAGE, SENTENCE[:-1])
    expected = -sum(log_probs[t, word] for t, word in enumerate(SENTENCE[1:]))
    assert oracle.loss(theta, IMAGE, SENTENCE) == pytest.approx(expected)
