"""The oracle of the hidden Markov model: enumeration, recursions and Baum-Welch agree."""

import math

import numpy as np
import oracle_hmm as oracle
import pytest


def test_two_states_by_hand():
    hmm = oracle.Hmm(np.array([0.5, 0.5]), np.array([[0.0, 1.0], [0.5, 0.5]]), np.array([[1.0, 0.0], [0.25, 0.75]]))
    # alpha_1 = (1/2, 1/8); alpha_2 = ((1/8)(1/2) * 0, (1/2 + 1/16) * 3/4)
    np.testing.assert_allclose(oracle.forward(hmm, [0, 1]), [[1 / 2, 1 / 8], [0, 27 / 64]])
    np.testing.assert_allclose(oracle.backward(hmm, [0, 1]), [[3 / 4, 3 / 8], [1, 1]])
    # gamma_1 = (3/8, 3/64) / (27/64); the belief of h_2 after word 0 is (4/5, 1/5) A.
    gamma, xi = oracle.posteriors(hmm, [0, 1])
    np.testing.assert_allclose(gamma, [[8 / 9, 1 / 9], [0, 1]])
    np.testing.assert_allclose(xi, [[[0, 8 / 9], [0, 1 / 9]]])
    np.testing.assert_allclose(oracle.beliefs(hmm, [0]), [[0.5, 0.5], [0.1, 0.9]])
    assert oracle.best_path_by_enumeration(hmm, [0, 1]) == ((0, 1), pytest.approx(math.log(3 / 8)))
    new = oracle.baum_welch(hmm, [[0, 1]])
    np.testing.assert_allclose(new.pi, [8 / 9, 1 / 9])
    np.testing.assert_allclose(new.A, [[0, 1], [0, 1]])
    np.testing.assert_allclose(new.B, [[1, 0], [1 / 10, 9 / 10]])
