"""The oracle of Kiros et al. (2014) itself, against values computed by hand on a few words and d = 2."""

import math

import numpy as np
import pytest
from oracle_kiros import (
    convnet,
    lbl_distribution,
    lbl_predict,
    mlblb_distribution,
    mlblf_distribution,
    perplexity,
    perplexity_from_word,
)

R = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
LN2, LN3 = math.log(2.0), math.log(3.0)


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


# Language models


def test_eq_1_applies_the_first_matrix_to_the_most_distant_word():
    C = [np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[2.0, 0.0], [0.0, 3.0]])]
    assert_close(lbl_predict(R, C, (1, 2)), [3.0, 3.0])  # (1, 0) of word 1, (2, 3) of word 2
    assert_close(lbl_predict(R, C, (2, 1)), [1.0, 3.0])


def test_eq_2_scores_with_the_inner_product_and_the_bias():
    C = [np.array([[0.0, LN2], [0.0, LN3]])]  # word 1 predicts (ln 2, ln 3)
    assert_close(lbl_distribution(R, C, np.zeros(3), (1,)), [2 / 11, 3 / 11, 6 / 11])
    assert_close(lbl_distribution(R, C, np.array([0.0, LN2, -math.log(6.0)]), (1,)), [2 / 9, 6 / 9, 1 / 9])


def test_eq_3_adds_the_image_to_the_prediction():
    C_m = np.array([[LN2, 0.0, 0.0], [0.0, LN3, 9.0]])
    x = np.array([1.0, 2.0, 0.0])  # adds (ln 2, ln 9) to the context's (0, ln 3)
    given = mlblb_distribution(R, [np.array([[0.0, 0.0], [0.0, LN3]])], C_m, np.zeros(3), (1,), x)
    assert_close(given, [2 / 83, 27 / 83, 54 / 83])


W_HF = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
W_FR = np.array([[1.0, 2.0], [0.0, 1.0]])  # words are (1, 2), (0, 1), (1, 3)
W_FX = np.array([[1.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
X = np.array([1.0, 0.5, 1.0])  # gates (2, 1)


def test_eqs_7_to_9_by_hand():
    C = [np.diag([LN2, -LN2])]
    C_m = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 2 * LN2]])
    # word 0 predicts (1, -2) ln 2, the image adds (0, 2) ln 2: r_hat = (1, 0) ln 2
    # factors: W_fr r_hat = (1, 0) ln 2, gated (2, 0) ln 2; scores (2, 0, 2) ln 2
    assert_close(mlblf_distribution(W_HF, W_FX, W_FR, C, C_m, np.zeros(3), (0,), X), [4 / 9, 1 / 9, 4 / 9])
    bias = np.array([0.0, 0.0, LN2])
    assert_close(mlblf_distribution(W_HF, W_FX, W_FR, C, C_m, bias, (0,), X), [4 / 13, 1 / 13, 8 / 13])


# Perplexity and retrieval


def after_word_1(context):
    return np.array([0.5, 0.25, 0.25]) if context[-1] == 1 else np.array([0.25, 0.5, 0.25])


def test_eq_10_includes_the_eos_token():
    words = [1, 1, 2]  # start token 0, end token 2: 1/2, 1/4, 1/4
    assert_close(perplexity(words, after_word_1, 1, 0), 2.0 ** (5 / 3))


def test_perplexity_from_word_skips_initial_words_and_short_descriptions():
    four, five = [1, 1, 1, 2], [1, 2, 1, 1, 2]
    halves = (four, lambda context: np.full(3, 0.5))
    # C = 1: of `four` words 2-4 at 1/4 each, the first at 1/2 left out; the description of three words is out
    assert_close(perplexity_from_word([(four, after_word_1), ([1, 1, 2], after_word_1)], 1, 0, 1, 4), 4.0)
    # six words pooled, three at 1/4 and three at 1/2
    assert_close(perplexity_from_word([(four, after_word_1), halves], 1, 0, 1, 4), 2.0**1.5)
    # C = 2: only the one of five words, from its third on: 1/2, 1/4, 1/4
    assert_close(perplexity_from_word([(five, after_word_1), (four, after_word_1)], 1, 0, 2, 5), 2.0 ** (5 / 3))
    with pytest.raises(ValueError, match="5 words"):
        perplexity_from_word([(four, after_word_1)], 1, 0, 2, 5)


# Feature maps and the convolutional network


def test_convnet_by_hand():
    maps = np.arange(81.0).reshape(1, 9, 9)
    filters = np.zeros((2, 1, 3, 3))
    filters[0, 0, 1, 1], filters[1, 0, 1, 1] = -1.0, 1.0  # the output of the first filter is negative everywhere
    weight = np.zeros((2, 18))
    weight[0, 9 + 5] = weight[1, 9 + 5] = 1.0  # channel 1, row 1, column 2: rows 2-4, columns 4-6
    theta = {"filters": filters, "filter_bias": np.array([-1.0, 0.0]), "weight": weight, "bias": np.array([1.0, -99.0])}
    # its largest is at (4, 6) of the filtered maps, (5, 7) of the input: 52
    assert_close(convnet(maps, theta), [52.0 / (2.0 + 1e-4 * 52**2) ** 0.75 + 1.0, 0.0])


# Katz back-off; ids: start token 0, end token 1, words a 2, b 3 and c 4
