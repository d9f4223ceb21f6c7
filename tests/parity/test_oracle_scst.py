"""The oracle of self-critical training: estimates agree with the gradient of the expected reward."""

import math

import numpy as np
import oracle_scst as oracle
import oracle_show_and_tell
import pytest
import torch

V, END, LONGEST = 3, 0, 3
SENTENCES = oracle.all_sentences(V, END, LONGEST)
REWARDS = dict(zip(SENTENCES, np.random.default_rng(5).uniform(size=len(SENTENCES)), strict=True))


def table(seed=0):
    generator = np.random.default_rng(seed)
    prefixes = {sentence[:t] for sentence in SENTENCES for t in range(len(sentence))}
    return {" ".join(map(str, prefix)): generator.normal(size=V) for prefix in sorted(prefixes)}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=1e-8, err_msg=str(name))


def test_all_sentences_and_their_probabilities():
    assert oracle.all_sentences(2, 0, 2) == [(0,), (1, 0), (1, 1)]
    assert len(SENTENCES) == len(set(SENTENCES)) == 1 + 2 + 4 + 8
    assert sum(math.exp(oracle.log_prob(oracle.table_policy, table(), s)) for s in SENTENCES) == pytest.approx(1.0)


def test_one_word_by_hand():
    # p = (1/4, 3/4), r = (1, 0): E[r] = 1/4; dL / ds = -p_0 (1 - p_0) and p_0 p_1.
    theta, rewards = {"": np.array([0.0, math.log(3)])}, {(0,): 1.0, (1,): 0.0}
    assert oracle.expected_reward(oracle.table_policy, theta, rewards) == pytest.approx(0.25)
    np.testing.assert_allclose(
        oracle.loss_gradient(oracle.table_policy, theta, rewards)[""], [-3 / 16, 3 / 16], atol=1e-9
    )
    # The greedy sentence is (1,), with reward 0: a sample (0,) moves its logit up by 1 - p, the sample (1,) nothing.
    assert oracle.greedy_sentence(oracle.table_policy, theta, 0, 1) == (1,)
    for sample, expected in (((0,), [-3 / 4, 3 / 4]), ((1,), [0, 0])):
        gradient = oracle.self_critical_gradient(oracle.table_policy, theta, sample, rewards, 0, 1)
        np.testing.assert_allclose(gradient[""], expected, atol=1e-9)


@pytest.mark.parametrize("baseline", [0.0, 0.7, -3.0])
def test_the_expected_estimate_is_the_gradient_whatever_the_baseline(baseline):
    theta = table()
    exact = oracle.loss_gradient(oracle.table_policy, theta, REWARDS)
    assert_same(oracle.expected_gradient(oracle.table_policy, theta, REWARDS, baseline), exact)
    by_logits = oracle.expected_logit_gradients(oracle.table_policy, theta, REWARDS, baseline)
    assert_same({" ".join(map(str, prefix)): row for prefix, row in by_logits.items()}, exact)


def test_the_gradient_equals_autograd():
    theta = table()
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in theta.items()}
    reward = 0.0
    for sentence, value in REWARDS.items():
        logs = [torch.log_softmax(tensors[" ".join(map(str, sentence[:t]))], 0)[w] for t, w in enumerate(sentence)]
        reward = reward + torch.exp(sum(logs)) * value
    (-reward).backward()
    expected = {name: tensor.grad.numpy() for name, tensor in tensors.items()}
    assert_same(oracle.loss_gradient(oracle.table_policy, theta, REWARDS), expected)


def test_the_gradient_of_one_sample_at_the_logits():
    theta, sample = table(), (2, 1, 0)
    gradient = oracle.sampled_gradient(oracle.table_policy, theta, [sample], REWARDS, 0.4)
    rows = oracle.logit_gradients(oracle.table_policy, theta, sample, REWARDS[sample], 0.4)
    for name, array in gradient.items():
        on_path = {"": 0, "2": 1, "2 1": 2}
        np.testing.assert_allclose(array, rows[on_path[name]] if name in on_path else 0.0, atol=1e-9)
    np.testing.assert_allclose(rows.sum(axis=1), 0.0, atol=1e-12)
    greedy = REWARDS[oracle.greedy_sentence(oracle.table_policy, theta, END, LONGEST)]
    assert_same(
        oracle.self_critical_gradient(oracle.table_policy, theta, sample, REWARDS, END, LONGEST),
        oracle.sampled_gradient(oracle.table_policy, theta, [sample], REWARDS, greedy),
    )


def test_the_greedy_sentence_stops_at_the_end_word_or_is_cut():
    flat = {name: np.zeros(V) for name in table()}
    assert oracle.greedy_sentence(oracle.table_policy, flat, END, LONGEST) == (0,)
    never = {name: np.array([-9.0, 0.0, 1.0]) for name in flat}
    assert oracle.greedy_sentence(oracle.table_policy, never, END, LONGEST) == (2, 2, 2)
    late = never | {"2": np.array([5.0, 0.0, 0.0])}
    assert oracle.greedy_sentence(oracle.table_policy, late, END, LONGEST) == (2, 0)


def test_a_step_along_the_gradient_raises_the_expected_reward():
    theta, scores = table(), []
    for _ in range(5):
        scores.append(oracle.expected_reward(oracle.table_policy, theta, REWARDS))
        gradient = oracle.expected_gradient(oracle.table_policy, theta, REWARDS, 0.5)
        theta = {name: array - 0.5 * gradient[name] for name, array in theta.items()}
    assert scores == sorted(scores)


def test_a_captioning_oracle_is_a_policy():
    generator = np.random.default_rng(3)
    shapes = {"W_e": (2, V + 1), "W_p": (V, 2), "W_I": (2, 2)}  # id V is the start word, which is not predicted
    shapes |= {f"W_{gate}{source}": (2, 2) for gate in "ifoc" for source in "xm"}
    theta = {name: generator.normal(size=shape) for name, shape in shapes.items()}
    image = np.array([0.5, -1.0])

    def policy(moved, prefix):
        return oracle_show_and_tell.next_word_log_probs(moved, image, [V, *prefix])[-1]

    rewards = {sentence: REWARDS.get(sentence, 0.1) for sentence in oracle.all_sentences(V, END, 2)}
    assert sum(math.exp(oracle.log_prob(policy, theta, sentence)) for sentence in rewards) == pytest.approx(1.0)
    exact = oracle.loss_gradient(policy, theta, rewards)
    assert_same(oracle.expected_gradient(policy, theta, rewards, 0.3), exact)
    assert any(np.abs(array).max() > 1e-4 for array in exact.values())
