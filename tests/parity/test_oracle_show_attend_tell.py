"""The oracle of Show, Attend and Tell: hand-computed values, invariances, and the gradients of hard attention."""

import math

import numpy as np
import oracle_show_attend_tell as oracle
import pytest

LN3 = math.log(3)
K, M, N, D, A = 3, 2, 2, 2, 2
ANNOTATIONS = np.array([[1.0, -2.0], [0.5, 1.0], [-1.0, 0.25]])
SENTENCE = [0, 2, 1]


def weights(gate=True, units=N):
    generator = np.random.default_rng(0)
    shapes = {"E": (M, K), "W_att": (A, D), "U_att": (A, units), "b_att": (A,), "v_att": (A,)}
    for k in "ifog":
        shapes |= {f"W_{k}y": (units, M), f"W_{k}h": (units, units), f"W_{k}z": (units, D), f"b_{k}": (units,)}
    for k in "ch":
        shapes |= {f"W_init_{k}": (units, D), f"b_init_{k}": (units,)}
    shapes |= {"L_o": (K, M), "L_h": (M, units), "L_z": (M, D), "b_L": (M,), "b_out": (K,)}
    shapes |= {"w_beta": (units,), "b_beta": (1,)} if gate else {}
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


def soft(theta, sentence=SENTENCE, annotations=ANNOTATIONS, **settings):
    return oracle.run(theta, annotations, sentence, **settings)


def test_attention_by_hand():
    # Energies v tanh(0) = 0 and v tanh(ln 2) = 3/5 v, v = 5/3 ln 3: weights 1/4 and 3/4. h = 1 cancels b = -2.
    theta = {"W_att": np.array([[math.log(2) / 4]]), "U_att": np.array([[2.0]]), "b_att": np.array([-2.0])}
    theta["v_att"] = np.array([LN3 / 0.6])
    assert oracle.attend(theta, np.array([[0.0], [4.0]]), np.ones(1)) == pytest.approx([0.25, 0.75])


def test_the_doubly_stochastic_penalty_by_hand():
    # Sums over time 1.5 and 0.5: (1 - 1.5)^2 + (1 - 0.5)^2
    alphas = np.array([[0.75, 0.25], [0.75, 0.25]])
    assert oracle.doubly_stochastic_penalty(alphas) == pytest.approx(0.5)
    assert oracle.doubly_stochastic_penalty(alphas, mass=1.5) == pytest.approx(1.0)
    theta = weights()
    steps = soft(theta)
    found = np.array([one.alpha for one in steps])
    expected = -oracle.log_prob(steps, SENTENCE) + 0.3 * ((1 - found.sum(axis=0)) ** 2).sum()
    assert oracle.soft_loss(theta, ANNOTATIONS, SENTENCE, penalty=0.3) == pytest.approx(expected)


# Hard attention


def same(one, other):
    return all(np.allclose(one[name], other[name], atol=1e-8) for name in one)


def test_the_estimate_is_unbiased_whatever_the_baseline():
    theta = weights(gate=False, units=1)
    exact = oracle.lower_bound_gradient(theta, ANNOTATIONS[:2], SENTENCE)
    expected = oracle.expected_gradient(theta, ANNOTATIONS[:2], SENTENCE, baseline=-1.7)
    for name in theta:
        np.testing.assert_allclose(expected[name], exact[name], atol=1e-8, err_msg=name)
    # Without the term of the sampled path it is not.
    assert not same(oracle.expected_gradient(theta, ANNOTATIONS[:2], SENTENCE, reinforce=0.0), exact)
