"""The oracle of self-critical training: estimates agree with the gradient of the expected reward."""

import math

import numpy as np
import oracle_scst as oracle
import pytest


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
