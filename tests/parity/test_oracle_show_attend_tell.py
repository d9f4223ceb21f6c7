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
GATED = ("w_beta", "b_beta")


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


def test_every_weight_has_an_effect_and_an_absent_bias_is_zero():
    theta = weights()
    expected = oracle.soft_loss(theta, ANNOTATIONS, SENTENCE)
    for name, array in theta.items():
        assert oracle.soft_loss(theta | {name: array * 1.5}, ANNOTATIONS, SENTENCE) != pytest.approx(expected), name
        if name.startswith("b_"):
            absent = {other: theta[other] for other in theta if other != name}
            zero = theta | {name: np.zeros_like(array)}
            assert oracle.soft_loss(absent, ANNOTATIONS, SENTENCE) == oracle.soft_loss(zero, ANNOTATIONS, SENTENCE)


@pytest.mark.parametrize("path", [None, (2, 0)])
def test_probabilities_of_all_sentences_sum_to_one(path):
    theta, total = weights(), 0.0
    for words in product(range(K), repeat=2):
        sentence = [None, *words]
        steps = soft(theta, sentence, path=path)
        np.testing.assert_allclose([one.alpha.sum() for one in steps], 1.0, rtol=1e-12)
        total += math.exp(oracle.log_prob(steps, sentence))
    assert total == pytest.approx(1.0)


def test_no_first_word_is_a_word_whose_embedding_is_zero():
    theta = weights()
    zero = theta | {"E": np.column_stack([theta["E"], np.zeros(M)])}
    np.testing.assert_array_equal(soft(theta, [None, 2])[0].log_probs, soft(zero, [K, 2])[0].log_probs)


def test_permuting_annotations_permutes_the_attention_only():
    theta, order = weights(), [2, 0, 1]
    for one, other in zip(soft(theta), soft(theta, annotations=ANNOTATIONS[order]), strict=True):
        np.testing.assert_allclose(other.alpha, one.alpha[order], rtol=1e-12)
        np.testing.assert_allclose(other.log_probs, one.log_probs, rtol=1e-12)


def test_a_closed_gate_hides_the_image_but_for_the_first_state():
    theta = weights() | {"w_beta": np.zeros(N), "b_beta": np.array([-2000.0])}
    state = oracle.initial_state(theta, ANNOTATIONS)
    one, other = (oracle.step(theta, annotations, 0, state) for annotations in (ANNOTATIONS, -ANNOTATIONS))
    np.testing.assert_array_equal(one.log_probs, other.log_probs)
    # An open gate is no gate.
    opened = oracle.step(theta | {"b_beta": np.array([2000.0])}, ANNOTATIONS, 0, state)
    without = oracle.step({k: a for k, a in theta.items() if k not in GATED}, ANNOTATIONS, 0, state)
    np.testing.assert_array_equal(opened.log_probs, without.log_probs)


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


def test_hard_attention_of_one_location_or_equal_ones_is_soft_attention():
    theta = weights()
    for annotations, path in ((ANNOTATIONS[:1], (0, 0)), (ANNOTATIONS[[1, 1]], (1, 0))):
        one, other = soft(theta, annotations=annotations, path=path), soft(theta, annotations=annotations)
        np.testing.assert_allclose([s.log_probs for s in one], [s.log_probs for s in other], rtol=1e-12)
        assert oracle.lower_bound(theta, annotations, SENTENCE) == pytest.approx(oracle.log_prob(other, SENTENCE))


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


def test_a_sampled_gradient_is_the_mean_over_its_samples():
    theta = weights(gate=False, units=1)
    one, other, mean = (
        oracle.sampled_gradient(theta, ANNOTATIONS, [0, 2], paths, baseline=-1.0, entropy=0.1)
        for paths in ([(0,)], [(2,)], [(0,), (2,)])
    )
    assert same(mean, {name: (one[name] + other[name]) / 2 for name in theta})


def test_the_moving_baseline():
    assert oracle.moving_baseline([-10.0, -20.0]) == pytest.approx([0.0, -1.0, -2.9])
    assert oracle.moving_baseline([-3.0] * 200)[-1] == pytest.approx(-3.0)
