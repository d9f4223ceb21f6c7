"""The oracle of the m-RNN against numbers computed by hand."""

import math

import numpy as np
import oracle_mrnn as oracle
import pytest

START, WORD, END = 0, 1, 2
SENTENCE, IMAGE_VECTOR = [START, WORD, END], np.array([2.0])
G1 = 1.7159 * math.tanh(2.0 / 3.0)

# w(t) is (1, 3) with r(1) = ReLU(1) = 1 and r(2) = ReLU(-2.5 + 3) = 0.5, unless noted; I = 2.
# x(t) = w(t) + 2 r(t) - I - 2 is the argument of g_2 in eq. 3.
X_BY_HAND = {
    "m-RNN": (1 + 2 - 2 - 2, 3 + 1 - 2 - 2),
    "RNN-base": (1 + 2 - 2, 3 + 1 - 2),
    "NoEmbInput": (2 - 2 - 2, 1 - 2 - 2),
    "OneLayerEmb": (1 + 2 - 2 - 2, 2 + 0 - 2 - 2),  # w = (1, 2); r(2) = ReLU(-2.5 + 2) = 0
    "EmbOneInput": (1 + 2 - 2 - 2, 2 + 1 - 2 - 2),  # layer I is (1, 2); r as always
    "visInRnn": (2 + 4 - 2, 4 + 0 - 2),  # w = (1, 3) + 0.5 I = (2, 4); r(2) = ReLU(-5 + 4) = 0
    "visInRnn-both": (2 + 4 - 2 - 2, 4 + 0 - 2 - 2),
    "visInRnn-both-shared": (2 + 4 + 1 - 2, 4 + 0 + 1 - 2),  # 0.5 I once more, in place of -I
}


def tiny(variant="m-RNN"):
    """All dimensions 1. Layer I gives 1, 2 and 5 for START, WORD and END; layer II is 2 e - 1: 1, 3 and 9.

    Energies are m ln 2 / g_2(1) * (1, 0, -1) + ln 2 * (0, 1, 0): x(t) = -1 leads to m = -g_2(1) and weights
    (1/2, 2, 2), that is (1/9, 4/9, 4/9); x(t) = 0 leads to (1, 2, 1), that is (1/4, 1/2, 1/4).
    """
    values = {
        "embedding_1": [[1], [2], [5]],
        "embedding_2.weight": [[2]],
        "embedding_2.bias": [-1],
        "recurrent": [[-2.5]],
        "multimodal_word": [[1]],
        "multimodal_recurrent": [[2]],
        "multimodal_visual": [[-1]],
        "multimodal_bias": [-2],
        "visual_in_rnn": [[0.5]],
        "visual_shared": [[0.5]],
        "softmax.weight": [[math.log(2) / G1], [0], [-math.log(2) / G1]],
        "softmax.bias": [0, math.log(2), 0],
    }
    settings = oracle.OracleSettings(variant, "linear")
    names = oracle.parameter_shapes(settings, vocab=3, embedding=1, word=1, multimodal=1, image_dim=1)
    return {name: np.array(values[name], dtype=np.float64) for name in names}, settings


def distribution_by_hand(x):
    up = 2 ** (1.7159 * math.tanh(2 * x / 3) / G1)
    return np.array([up, 2, 1 / up]) / (up + 2 + 1 / up)


@pytest.mark.parametrize("variant", X_BY_HAND)
def test_every_variant_has_the_hand_computed_connections(variant):
    rows = oracle.next_word_distributions(*tiny(variant), SENTENCE, IMAGE_VECTOR)
    np.testing.assert_allclose(rows, [distribution_by_hand(x) for x in X_BY_HAND[variant]], rtol=1e-12)


def test_cost_averages_over_words_and_adds_the_squared_norm():
    # Bits: log2 9 for (WORD, END), log2 9/4 for (END); three words. Norm: 30 + 4 + 1 + 6.25 + 1 + 4 + 1 + 4.
    pairs = [(SENTENCE, IMAGE_VECTOR), ([START, END], IMAGE_VECTOR)]
    squares = 51.25 + 2 * (math.log(2) / G1) ** 2 + math.log(2) ** 2
    expected = (math.log2(9) + math.log2(9 / 4)) / 3 + 0.1 * squares
    assert oracle.cost(*tiny(), pairs, 0.1) == pytest.approx(expected)
