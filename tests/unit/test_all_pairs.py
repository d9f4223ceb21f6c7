"""Scores of all pairs of sentences and images: hand-computed prefix tree, softmax against a plain loop."""

import pytest
import torch

from limner.data.examples import Example, collate
from limner.layers.all_pairs import PairOptions, PrefixTree, additive_log_probs, softmax_log_probs
from limner.text.vocab import SPECIAL_TOKENS

EOS = SPECIAL_TOKENS.eos
SENTENCES = [[5, 6], [5, 7], [5, 6], [8], []]
VOCAB, UNITS, IMAGES = 40, 12, 7


def tree_of(sentences):
    return PrefixTree.of(collate([Example("", words) for words in sentences]))


def parts(scale=1.0, bias=1.0):
    torch.manual_seed(4)
    tree = tree_of(SENTENCES)
    language, image = torch.randn(len(tree.row), UNITS), torch.randn(IMAGES, UNITS)
    return tree, language, image, scale * torch.randn(VOCAB, UNITS), bias * torch.randn(VOCAB)


def plain_loop(tree, language, image, weight, bias):
    """Reference scores in float64, one word, sentence and image at a time."""
    language, image, weight, bias = (x.double() for x in (language, image, weight, bias))
    where = {}
    for prefix, (row, column) in enumerate(zip(tree.row.tolist(), tree.column.tolist(), strict=True)):
        where[tuple(SENTENCES[row][:column])] = prefix
    scores = torch.zeros(len(SENTENCES), len(image), dtype=torch.float64)
    for s, sentence in enumerate(SENTENCES):
        for i in range(len(image)):
            for t, word in enumerate([*sentence, EOS]):
                hidden = torch.tanh(language[where[tuple(sentence[:t])]] + image[i])
                scores[s, i] += (weight @ hidden + bias).log_softmax(0)[word]
    return scores


@pytest.mark.parametrize("budget", [1, 4_000, 30_000, 1 << 26])
def test_equals_a_plain_loop_for_every_memory_budget(budget):
    tree, *numbers = parts()
    result = softmax_log_probs(*numbers, tree, PairOptions(budget))
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), plain_loop(tree, *numbers), rtol=1e-5, atol=1e-5)


def test_bfloat16_is_close_to_float32():
    """With 8 mantissa bits, logits up to about 12 have errors up to 0.05; sentences have at most three words."""
    tree, language, image, weight, bias = parts()
    result = softmax_log_probs(language, image, weight, bias, tree, PairOptions(1 << 20, torch.bfloat16))
    expected = plain_loop(tree, language, image, weight, bias)
    assert (result - expected).abs().max() < 0.15
    assert (result - expected).abs().mean() < 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shift", [300.0, -300.0, 88.0, -95.0])
def test_products_that_overflow_or_underflow_are_recomputed(shift, dtype):
    tree, language, image, weight, bias = parts(bias=0)
    exact = plain_loop(tree, language, image, weight, bias)  # a common shift changes no probability
    result = softmax_log_probs(language, image, weight, bias + shift, tree, PairOptions(1 << 20, dtype))
    # bfloat16 keeps multiples of 2 at 300 * log2(e), of a half at 88: the result is coarse but finite.
    tolerance = 1e-3 if dtype == torch.float32 else 3 * 1.5
    assert torch.isfinite(result).all()
    assert (result - exact).abs().max() < tolerance


@pytest.mark.parametrize("budget", [1, 1 << 22])
def test_sums_over_a_large_vocabulary_equal_float64(budget):
    """Realistic numbers of words and prefixes, and logits from about -15 to 15."""
    torch.manual_seed(1)
    small = budget == 1
    vocab, images = (50, 4) if small else (2_500, 12)
    tree = tree_of(torch.randint(4, vocab, (20 if small else 300, 9)).tolist())
    assert small or len(tree.row) > 2_500
    language, image, weight = torch.randn(len(tree.row), 16), torch.randn(images, 16), torch.randn(vocab, 16)
    bias = torch.randn(vocab)
    result = additive_log_probs(language, image, weight, bias, tree, budget)
    parents, words = tree.edges(slice(0, len(tree.row)))
    users = torch.repeat_interleave(torch.arange(len(words)), tree.first_use.diff())
    for column, image_term in enumerate(image.double()):
        logits = (language.double() + image_term) @ weight.double().t() + bias.double()
        edges = logits[parents, words] - logits.logsumexp(1)[parents]
        exact = torch.zeros(tree.sentence_count, dtype=torch.double).index_add_(0, tree.sentence, edges[users])
        torch.testing.assert_close(result[:, column].double(), exact, rtol=0, atol=1e-4)
