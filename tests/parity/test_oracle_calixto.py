"""The oracle of the translation decoders: hand-computed values and invariances."""

import math

import numpy as np
import oracle_calixto as oracle
import pytest

LN2, LN3 = math.log(2), math.log(3)  # tanh(ln 2) = 3/5, sigma(ln 3) = 3/4


def arrays(values):
    return {name: np.array(value, dtype=np.float64) for name, value in values.items()}


def one_unit_gru(name, w, u, b, b_u=None):
    """`w` is, by suffix, the triple for z, r and the proposal; `u` and `b` are such triples."""
    values = {f"{name}.W{gate}{suffix}": [[w[suffix][k]]] for suffix in w for k, gate in enumerate(("_z", "_r", ""))}
    values |= {f"{name}.U{gate}": [[u[k]]] for k, gate in enumerate(("_z", "_r", ""))}
    values |= {f"{name}.b{gate}": [b[k]] for k, gate in enumerate(("_z", "_r", ""))}
    return arrays(values | ({} if b_u is None else {f"{name}.b_U": [b_u]}))


# Layers


def test_the_decoder_is_initialised_from_both_last_encoder_states():
    # N = 2, He = 1: forward h_2 = 3, backward h_1 = 2; tanh(3 - 2 - 1 + ln 2).
    theta = arrays({"W_init": [[1, -1]], "b_init": [LN2 - 1]})
    assert oracle.start_from_text(theta, np.array([[1.0, 2.0], [3.0, 4.0]])) == pytest.approx([0.6])


def test_the_decoder_is_initialised_from_the_first_annotation_and_the_image():
    # i W_I + b_I = (2*1 + 1*2, 2*0 + 1*3) + (-1, 1) = (3, 4); with h_1 = (1, 2) the sum is (4, 6).
    theta = arrays({"W_I": [[1, 0], [2, 3]], "b_I": [-1, 1], "W_init": [[-1, 1]], "b_init": [LN2 - 2]})
    annotations, image = np.array([[1.0, 2.0], [7.0, 9.0]]), np.array([2.0, 1.0])
    assert oracle.start_from_fc7(theta, annotations, image) == pytest.approx([0.6])
    # Without an image b_I is omitted as well: tanh(2 - 1 - 1 + ln 2).
    theta["b_init"] += 1
    assert oracle.start_from_fc7(theta, annotations, None) == pytest.approx([0.6])


# The steps, with all dimensions 1 and every weight in the sum. Energies are v tanh(0) = 0 and v tanh(ln 2) =
# 3/5 v, with v = 5/3 ln 3: weights (1/4, 3/4). Annotations (0, 4) give c = 3, locations (0, 8) give 6.
ANNOTATIONS, TWO_LOCATIONS = np.array([[0.0], [4.0]]), np.array([[0.0], [8.0]])
READ_OUT = {"L_o": [[5], [-5]], "L_s": [[10]], "L_w": [[2]], "L_cs": [[-3]], "L_ci": [[-1]], "b_o": [0, 1]}


def attentions(bias):
    """U = -2 on the state; `bias` cancels it and, in [16], the word."""
    values = {"U_a": [[-2]], "v_a": [LN3 / 0.6], "b_a": [bias]}
    keys = {"W_a_src": [[LN2 / 4]], "W_a_img": [[LN2 / 8]]}
    return arrays(keys | {f"{name}_{side}": value for name, value in values.items() for side in ("src", "img")})


def test_a_step_of_the_doubly_conditional_gru_by_hand():
    theta = arrays(READ_OUT | {"E_y": [[0], [1]], "b_L": [2.5 + LN2]}) | attentions(2)
    # REC1 from s_0 = 7/5, y = 1: z = sigma(1 - 14 + 13) = 1/2, r = sigma(2 - 2) = 1/2,
    # proposal = tanh(1 + 1/2 * 2.8 - 2.4 + ln 2) = 3/5, s' = 0.3 + 0.7 = 1.
    theta |= one_unit_gru("rec1", {"": (1, 2, 1)}, (-10, 0, 2), (13, -2, LN2 - 2.4))
    # The gate depends on s_0, not s': sigma(10 * 1.4 - 14 + ln 3) = 3/4, so i = 4.5.
    theta |= arrays({"W_beta": [[10]], "b_beta": [LN3 - 14]})
    # REC2: z = sigma(3 + 2 * 4.5 - 1 - 11 + ln 3) = 3/4, r = sigma(-3 + 4.5 + 2 - 3.5 - ln 3) = 1/4,
    # proposal = tanh(3 - 4.5 + 1/4 * 4 + 0.5 + ln 2) = 3/5, s = 1/4 * 3/5 + 3/4 * 1 = 0.9.
    inputs = {"_src": (1, -1, 1), "_img": (2, 1, -1)}
    theta |= one_unit_gru("rec2", inputs, (-1, 2, 4), (LN3 - 11, -3.5 - LN3, LN2 + 0.5))
    step = oracle.step_2017(theta, ANNOTATIONS, TWO_LOCATIONS, 1, np.array([1.4]))
    assert step.beta == pytest.approx(0.75)
    assert step.source_alpha == pytest.approx([0.25, 0.75])
    assert step.image_alpha == pytest.approx([0.25, 0.75])
    assert step.state == pytest.approx([0.9])
    # Read-out: tanh(10 * 0.9 + 2 * 1 - 3 * 3 - 4.5 + 2.5 + ln 2) = 3/5.
    assert step.logits == pytest.approx([3.0, -2.0])


def test_a_step_of_the_doubly_attentive_decoder_by_hand():
    theta = arrays(READ_OUT | {"E_y": [[0], [1]], "b_L": [4 + LN2]}) | attentions(-1)
    theta |= arrays({"Y_a_src": [[3]], "Y_a_img": [[3]]})  # 3 * 1 - 2 * 1 - 1 = 0
    # From s_0 = 1, y = 1, c = 3, i = 6: z = sigma(5 + 3 + 12 - 1 - 19 + ln 3) = 3/4,
    # r = sigma(-2 - 3 + 6 + 2 - 3 - ln 3) = 1/4, proposal = tanh(1 + 3 - 6 + 1/4 * 4 + 1 + ln 2) = 3/5.
    inputs = {"_y": (5, -2, 1), "_src": (1, -1, 1), "_img": (2, 1, -1)}
    theta |= one_unit_gru("rec", inputs, (-1, 2, 4), (LN3 - 19, -3 - LN3, LN2 + 1))
    step = oracle.step_2016(theta, ANNOTATIONS, TWO_LOCATIONS, 1, np.array([1.0]))
    assert step.beta is None
    assert step.source_alpha == pytest.approx([0.25, 0.75])
    assert step.image_alpha == pytest.approx([0.25, 0.75])
    assert step.state == pytest.approx([0.9])
    # Read-out: tanh(9 + 2 - 9 - 6 + 4 + ln 2) = 3/5.
    assert step.logits == pytest.approx([3.0, -2.0])
