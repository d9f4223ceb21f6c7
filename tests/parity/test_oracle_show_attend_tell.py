"""The oracle of Show, Attend and Tell: hand-computed values, invariances, and the gradients of hard attention."""

import math
from itertools import product

import numpy as np
import oracle_recurrent
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


def test_the_lstm_is_the_usual_one_on_word_and_context():
    theta = weights()
    renamed = {}
    for k, name in zip("ifog", "ifoc", strict=True):
        renamed[f"W_x{name}"] = np.hstack([theta[f"W_{k}y"], theta[f"W_{k}z"]])
        renamed |= {f"W_h{name}": theta[f"W_{k}h"], f"b_{name}": theta[f"b_{k}"]}
    word, z, state = np.array([0.3, -0.4]), np.array([1.0, 2.0]), (np.array([0.1, -0.2]), np.array([0.5, 1.0]))
    expected = oracle_recurrent.lstm_step(renamed, np.concatenate([word, z]), state)
    np.testing.assert_allclose(oracle.lstm(theta, word, z, state), expected, rtol=1e-12)


def test_the_output_reads_the_previous_word_the_new_state_and_the_context():
    theta = weights()
    state = oracle.initial_state(theta, ANNOTATIONS)
    one = oracle.step(theta, ANNOTATIONS, 2, state)
    z = one.beta * sum(weight * a for weight, a in zip(one.alpha, ANNOTATIONS, strict=True))
    np.testing.assert_allclose(one.context, z, rtol=1e-12)
    inner = theta["E"][:, 2] + theta["L_h"] @ one.state[0] + theta["L_z"] @ z + theta["b_L"]
    for squash, expected in ((False, inner), (True, np.tanh(inner))):
        actual = oracle.step(theta, ANNOTATIONS, 2, state, squash=squash).log_probs
        np.testing.assert_allclose(actual, oracle.log_softmax(theta["L_o"] @ expected + theta["b_out"]), rtol=1e-12)
    assert one.beta == pytest.approx(1 / (1 + math.exp(-(theta["w_beta"] @ state[0] + theta["b_beta"][0]))))


def test_the_first_state_is_of_the_mean_annotation():
    theta = weights()
    h, c = oracle.initial_state(theta, ANNOTATIONS)
    np.testing.assert_allclose(h, np.tanh(theta["W_init_h"] @ ANNOTATIONS.mean(axis=0) + theta["b_init_h"]))
    np.testing.assert_allclose(c, np.tanh(theta["W_init_c"] @ ANNOTATIONS.mean(axis=0) + theta["b_init_c"]))


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


def test_paths_are_a_distribution_and_the_bound_is_one():
    theta = weights()
    paths = [oracle.follow(theta, ANNOTATIONS, SENTENCE, path) for path in oracle.all_paths(ANNOTATIONS, SENTENCE)]
    assert len(paths) == 9
    assert sum(math.exp(one.log_path) for one in paths) == pytest.approx(1.0)
    assert oracle.lower_bound(theta, ANNOTATIONS, SENTENCE) < oracle.marginal_log_prob(theta, ANNOTATIONS, SENTENCE)
    # The entropy of the paths is the mean of the entropies along them.
    mean = sum(math.exp(one.log_path) * one.entropy for one in paths)
    assert oracle.attention_entropy(theta, ANNOTATIONS, SENTENCE) == pytest.approx(mean)
    # p(y | a) is a distribution.
    total = sum(
        math.exp(oracle.marginal_log_prob(theta, ANNOTATIONS, [None, *words])) for words in product(range(K), repeat=2)
    )
    assert total == pytest.approx(1.0)


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


@pytest.mark.parametrize("sentence", [[0, 2], SENTENCE])
def test_the_entropy_term_is_the_gradient_of_the_entropy_for_one_step_only(sentence):
    # At the first step alpha does not depend on the path; later the path's own probability is left out.
    theta, annotations = weights(gate=False, units=1), ANNOTATIONS[:2]
    plain = oracle.expected_gradient(theta, annotations, sentence)
    both = oracle.expected_gradient(theta, annotations, sentence, entropy=0.5)
    gradient = oracle.numerical_gradient(lambda moved: oracle.attention_entropy(moved, annotations, sentence), theta)
    assert same(both, {name: plain[name] + 0.5 * gradient[name] for name in theta}) == (len(sentence) == 2)


def test_the_moving_baseline():
    assert oracle.moving_baseline([-10.0, -20.0]) == pytest.approx([0.0, -1.0, -2.9])
    assert oracle.moving_baseline([-3.0] * 200)[-1] == pytest.approx(-3.0)
