"""The oracle of the hidden Markov model: enumeration, recursions and Baum-Welch agree."""

import math

import numpy as np
import oracle_hmm as oracle
import pytest

N, M, END = 3, 4, 0
WORDS = [2, 1, 1, 3, 0]
SENTENCES = [WORDS, [0], [1, 2, 0], [3, 0]]


def model(seed=0, states=N):
    generator = np.random.default_rng(seed)
    return oracle.Hmm(
        generator.dirichlet(np.ones(states)),
        generator.dirichlet(np.ones(states), size=states),
        generator.dirichlet(np.ones(M), size=states),
    )


def total(hmm, sentences=SENTENCES):
    return sum(oracle.log_likelihood(hmm, words) for words in sentences)


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


@pytest.mark.parametrize("words", SENTENCES)
def test_recursions_equal_enumeration(words):
    hmm = model()
    p = oracle.likelihood_by_enumeration(hmm, words)
    alpha, beta = oracle.forward(hmm, words), oracle.backward(hmm, words)
    np.testing.assert_allclose((alpha * beta).sum(axis=1), p, rtol=1e-12)
    assert oracle.log_likelihood(hmm, words) == pytest.approx(math.log(p))
    gamma, xi = oracle.posteriors(hmm, words)
    for one, other in zip((gamma, xi), oracle.posteriors_by_enumeration(hmm, words), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
    np.testing.assert_allclose(gamma.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(xi.sum(axis=2), gamma[:-1], rtol=1e-10)
    np.testing.assert_allclose(xi.sum(axis=1), gamma[1:], rtol=1e-10)


def test_next_word_probabilities_multiply_to_the_likelihood():
    hmm = model()
    rows = oracle.next_word_probs(hmm, WORDS)
    assert rows.shape == (len(WORDS) + 1, M)
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, rtol=1e-12)
    product_ = math.prod(rows[t, word] for t, word in enumerate(WORDS))
    assert product_ == pytest.approx(oracle.likelihood_by_enumeration(hmm, WORDS))
    # The last row is the ratio of two likelihoods.
    ratio = [oracle.likelihood_by_enumeration(hmm, [*WORDS, k]) for k in range(M)]
    np.testing.assert_allclose(rows[-1], np.array(ratio) / oracle.likelihood_by_enumeration(hmm, WORDS), rtol=1e-10)


def test_the_gradient_of_the_likelihood_is_the_expected_counts():
    # d log P / d log B_ik, each entry free, is the expected number of emissions, and so for pi and A.
    hmm = model()
    counts = oracle.expected_counts(hmm, SENTENCES)
    for name, count in zip(("pi", "A", "B"), counts, strict=True):
        array = getattr(hmm, name)
        for index in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[index] *= math.exp(sign * 1e-5)
                ends.append(total(oracle.Hmm(**(vars(hmm) | {name: moved}))))
            assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(count[index], abs=1e-7)
