"""The oracle of Kiros et al. (2014) itself, against values computed by hand on a few words and d = 2."""

import math

import numpy as np
import pytest
from oracle_kiros import (
    contexts,
    contrast_normalise,
    convnet,
    convolve,
    encode,
    gated_representations,
    image_to_text_scores,
    katz_counts,
    katz_discounts,
    katz_distribution,
    lbl_distribution,
    lbl_predict,
    max_pool,
    max_pool_grid,
    mlblb_distribution,
    mlblf_distribution,
    patches_of,
    perplexity,
    perplexity_from_word,
    response_normalise,
    shortlist,
    spherical_kmeans_step,
    svd_start,
    text_to_image_scores,
    triangle,
    whitening,
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


def test_a_bias_of_minus_infinity_excludes_a_word():
    C = [np.array([[0.0, LN2], [0.0, LN3]])]
    assert_close(lbl_distribution(R, C, np.array([-math.inf, 0.0, 0.0]), (1,)), [0.0, 3 / 9, 6 / 9])


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


def test_eq_6_gates_the_word_representations():
    assert_close(gated_representations(W_HF, W_FX, W_FR, X), [[2.0, 4.0], [0.0, 1.0], [2.0, 5.0]])


def test_eqs_8_and_9_score_gated_representations_against_the_prediction():
    rng = np.random.default_rng(0)
    W_hf, W_fx, W_fr = rng.normal(size=(3, 4)), rng.normal(size=(4, 2)), rng.normal(size=(4, 2))
    C, C_m, b, x = [rng.normal(size=(2, 2))], rng.normal(size=(2, 2)), rng.normal(size=3), rng.normal(size=2)
    prediction = C[0] @ (W_hf @ W_fr)[1] + C_m @ x
    energies = np.exp(gated_representations(W_hf, W_fx, W_fr, x) @ prediction + b)
    assert_close(mlblf_distribution(W_hf, W_fx, W_fr, C, C_m, b, (1,), x), energies / energies.sum())


def test_svd_initialisation_splits_the_largest_singular_value_evenly():
    E = np.array([[0.0, 4.0], [1.0, 0.0], [0.0, 0.0]])
    W_hf, W_fr = svd_start(E, 1)
    assert_close(np.abs(W_hf), [[2.0], [0.0], [0.0]])
    assert_close(np.abs(W_fr), [[0.0, 2.0]])
    assert_close(W_hf @ W_fr, [[0.0, 4.0], [0.0, 0.0], [0.0, 0.0]])


# Perplexity and retrieval


def test_contexts_are_padded_with_the_bos_token():
    assert contexts([5, 6, 7], 2, 0) == [(0, 0), (0, 5), (5, 6)]
    assert contexts([5, 6], 0, 0) == [(), ()]


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


def image_is_distribution(context, x):
    return x


def test_text_to_image_scores_each_image_by_perplexity():
    images = [np.array([0.5, 0.5]), np.array([0.2, 0.8])]
    assert_close(text_to_image_scores([0, 1], images, image_is_distribution, 1, 0), [2.0, 2.5])


def test_image_to_text_scores_divide_by_the_perplexity_under_the_mean_image():
    x, mean = np.array([0.25, 0.75]), np.array([0.1, 0.9])
    sentences = [[0], [1]]  # word 1 is more probable, but the image raises word 0
    ratios = image_to_text_scores(x, mean, sentences, image_is_distribution, 1, 0)
    assert_close(ratios, [4 / 10, 0.9 / 0.75])


def test_shortlist_is_ordered_by_distance_and_ties_by_index():
    images = [np.array([3.0, 4.0]), np.array([0.0, 5.5]), np.array([4.0, 3.0]), np.array([1.0, 0.0])]
    assert shortlist(np.zeros(2), images, 2) == [3, 0]
    assert shortlist(np.zeros(2), images, 4) == [3, 0, 2, 1]


# Feature maps and the convolutional network


def test_contrast_normalise_uses_the_population_variance():
    assert_close(contrast_normalise(np.array([1.0, 4.0, 7.0])), [-0.75, 0.0, 0.75])  # variance 6, root of 16
    assert_close(contrast_normalise(np.array([9.0, 9.0])), [0.0, 0.0])


def test_whitening_rotates_back_to_the_original_axes():
    m, W = whitening(np.array([[1.0, 1.0], [-1.0, -1.0]]))
    assert_close(m, [0.0, 0.0])
    long, short = 2.1**-0.5 / 2, 0.1**-0.5 / 2  # variance 2 along (1, 1), none along (1, -1)
    assert_close(W, [[long + short, long - short], [long - short, long + short]])


def test_spherical_kmeans_sums_the_patches_and_normalises():
    patches = np.array([[3.0, 0.0], [0.0, 4.0], [-1.0, -5.0]])
    centroids = np.array([[0.6, 0.8], [0.0, -1.0], [-1.0, 0.0]])
    # (3, 0) and (0, 4) go to the first, the long negative product of (-1, -5) notwithstanding; the last is empty
    expected = [[0.6, 0.8], np.array([-1.0, -5.0]) / math.sqrt(26.0), [-1.0, 0.0]]
    assert_close(spherical_kmeans_step(patches, centroids), expected)


def test_patches_are_flattened_as_row_column_channel():
    row, column, channel = np.indices((4, 3, 3))
    image = 100.0 * row + 10.0 * column + channel
    patches = list(patches_of(image, 2))
    assert [(top, left) for top, left, _ in patches] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert_close(patches[3][2], [110, 111, 112, 120, 121, 122, 210, 211, 212, 220, 221, 222])


def test_triangle_is_the_mean_distance_minus_the_distance():
    centroids = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])  # distances 0, 5, 1, mean 2
    assert_close(triangle(np.zeros(2), centroids), [2.0, 0.0, 1.0])


def test_encode_normalises_whitens_and_computes_distances():
    image = np.array([[[1.0, 4.0, 7.0], [9.0, 9.0, 9.0]]])  # normalised (-.75, 0, .75) and (0, 0, 0)
    m, W = np.array([0.25, 0.0, 0.75]), np.diag([4.0, 1.0, 4.0])  # whitened (-4, 0, 0) and (-1, 0, -3)
    centroids = np.array([[-4.0, 0.0, 0.0], [0.0, 0.0, -3.0]])  # distances 0, 5 and root 18, 1
    maps = encode(image, 1, m, W, centroids)
    assert maps.shape == (1, 2, 2)
    assert_close(maps, [[[2.5, 0.0], [0.0, (math.sqrt(18.0) - 1.0) / 2]]])


def test_grid_regions_overlap_where_the_size_is_not_divisible():
    maps = np.arange(15.0).reshape(5, 3, 1)
    # rows 0-2 and 2-4, columns 0-1 and 1-2
    assert_close(max_pool_grid(maps, 2)[:, :, 0], [[7.0, 8.0], [13.0, 14.0]])
    falling = -maps
    assert_close(max_pool_grid(falling, 2)[:, :, 0], [[0.0, -1.0], [-6.0, -7.0]])


def test_convolution_does_not_flip_and_adds_the_bias():
    maps = np.arange(18.0).reshape(2, 3, 3)
    filters = np.zeros((1, 2, 2, 2))
    filters[0, 0, 0, 1], filters[0, 1, 1, 0] = 1.0, 10.0
    # right of channel 0 plus ten times the one below of channel 1
    assert_close(convolve(maps, filters, np.array([0.5])), [[[121.5, 132.5], [154.5, 165.5]]])


def test_response_normalisation_sums_over_five_channels():
    a = np.full((6, 1, 1), 100.0)  # 1e-4 a^2 = 1
    expected = [100 / (2 + channels) ** 0.75 for channels in (3, 4, 5, 5, 4, 3)]
    assert_close(response_normalise(a)[:, 0, 0], expected)


def test_max_pool_windows_overlap():
    maps = np.zeros((1, 7, 7))
    maps[0, 2, 4] = 1.0  # in the windows that begin at rows 0 and 2, columns 2 and 4
    assert_close(max_pool(maps), [[[0, 1, 1], [0, 1, 1], [0, 0, 0]]])


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


def table(sentences, order, k, context):
    counts = katz_counts(sentences, order, start=0, end=1)
    return katz_distribution(context, counts, k, never={0})


def test_counts_include_eos_and_exclude_ngrams_ending_in_bos():
    unigrams, bigrams, trigrams = katz_counts([[2, 3], [2]], 3, start=0, end=1)
    assert unigrams == {(2,): 2, (3,): 1, (1,): 2}
    assert bigrams == {(0, 2): 2, (2, 3): 1, (3, 1): 1, (2, 1): 1}
    assert trigrams == {(0, 0, 2): 2, (0, 2, 3): 1, (2, 3, 1): 1, (0, 2, 1): 1}


def counts_of_counts(n):
    ngrams = [r for r, number in n.items() for _ in range(number)]
    return {(i,): r for i, r in enumerate(ngrams)}


def test_discounts_by_hand():
    # tail 6 * 1 / 20 = 0.3; r*/r is 0.5, 0.9, 0, -, 0.6
    discounts = katz_discounts(counts_of_counts({1: 20, 2: 5, 3: 3, 5: 2, 6: 1}))
    assert_close([discounts[r] for r in range(1, 6)], [2 / 7, 6 / 7, 1.0, 1.0, 3 / 7])


@pytest.mark.parametrize(
    ("n", "why"),
    [
        ({2: 3, 3: 1, 6: 1}, "no n-gram was counted once"),
        ({1: 6, 2: 1, 6: 1}, "the denominator is 0"),
        ({1: 2, 2: 3}, "2* / 2 is above 1 for r = 1"),
        ({1: 20, 2: 3, 6: 1}, "1* is 0.3 and so is the tail"),
        ({}, "nothing was counted"),
    ],
)
def test_invalid_discounts_are_one(n, why):
    assert katz_discounts(counts_of_counts(n)) == dict.fromkeys(range(1, 6), 1.0), why


def test_bigrams_by_hand():
    # unigrams: nothing is discounted and c was not counted, so the total is 6
    sentences = [[2, 3], [2]]
    assert_close(table(sentences, 2, 5, ()), [0, 2 / 6, 2 / 6, 1 / 6, 1 / 6])
    # bigrams: n_1 = 3, n_2 = 1, so d_1 = 2/3 and d_2 = 1
    assert_close(table(sentences, 2, 5, (0,)), [0, 2 / 12, 8 / 12, 1 / 12, 1 / 12])  # a of 3; alpha = 1/3 / 2/3
    assert_close(table(sentences, 2, 5, (2,)), [0, 3 / 9, 2 / 9, 3 / 9, 1 / 9])  # alpha = 1/3 / 1/2
    assert_close(table(sentences, 2, 5, (3,)), [0, 8 / 12, 2 / 12, 1 / 12, 1 / 12])
    assert_close(table(sentences, 2, 5, (4,)), table(sentences, 2, 5, ()))  # c does not occur


def test_trigrams_by_hand():
    # unigrams of 9: end 3, a 3, b 2, c 1; bigrams: d_1 = d_2 = 1; trigrams: n_1 = 6, n_2 = 1, d_1 = 1/3, d_2 = 1
    sentences = [[2, 3], [2], [3, 2]]
    assert_close(table(sentences, 3, 5, (0,)), [0, 3 / 16, 8 / 16, 4 / 16, 1 / 16])
    assert_close(table(sentences, 3, 5, (2,)), [0, 8 / 16, 3 / 16, 4 / 16, 1 / 16])
    assert_close(table(sentences, 3, 5, (0, 0)), [0, 3 / 18, 12 / 18, 2 / 18, 1 / 18])  # alpha = 2/9 / 1/4
    assert_close(table(sentences, 3, 5, (0, 2)), [0, 1 / 6, 3 / 6, 1 / 6, 1 / 6])  # alpha = 2/3 / 1/4
    assert_close(table(sentences, 3, 5, (4, 2)), table(sentences, 3, 5, (2,)))
    assert_close(table(sentences, 3, 5, (2, 4)), table(sentences, 3, 5, ()))


def test_mass_freed_by_unigrams_is_distributed_over_unseen_words():
    # end 2, four words once: n_1 = 4, n_2 = 1, d_1 = 1/2; a third of the mass is for ids 6 and 7
    assert_close(table([[2, 3, 4], [5]], 1, 8, ()), [0, 4 / 12, 1 / 12, 1 / 12, 1 / 12, 1 / 12, 2 / 12, 2 / 12])


def test_unigrams_are_not_discounted_if_every_word_occurs():
    assert_close(table([[2, 3, 4], [5]], 1, 6, ()), [0, 2 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6])


def test_a_context_with_every_word_observed_is_normalised():
    # after a: end 2, a 1, b 1; d_1 = 2/3 (n_1 = 3, n_2 = 1), so 2, 2/3 and 2/3 of 10/3
    assert_close(table([[2, 2], [2, 3], [2]], 2, 4, (2,)), [0, 3 / 5, 1 / 5, 1 / 5])


@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_context_sums_to_one_with_positive_probabilities(order):
    rng = np.random.default_rng(3)
    frequent = [2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7]  # id 8 is never used
    sentences = [[frequent[i] for i in rng.integers(0, 12, size=length)] for length in rng.integers(1, 6, size=12)]
    counts = katz_counts(sentences, order, start=0, end=1)
    for context in np.ndindex((9,) * (order - 1)):
        distribution = katz_distribution(context, counts, 9, never={0})
        assert distribution.sum() == pytest.approx(1.0, abs=1e-12)
        assert distribution[0] == 0.0
        assert (distribution[1:] > 0.0).all()
