"""The oracle of self-critical training: estimates agree with the gradient of the expected reward."""

import math

import numpy as np
import oracle_scst as oracle
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
        gradient = oracle.logit_gradients(oracle.table_policy, theta, sample, rewards[sample], rewards[1,])
        np.testing.assert_allclose(gradient, [expected], atol=1e-9)


@pytest.mark.parametrize("baseline", [0.0, 0.7, -3.0])
def test_the_expected_estimate_is_the_gradient_whatever_the_baseline(baseline):
    theta = table()
    exact = oracle.loss_gradient(oracle.table_policy, theta, REWARDS)
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
