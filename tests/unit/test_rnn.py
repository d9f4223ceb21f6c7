"""Generative recurrent network: explicit lengths, memory, and settings that exclude each other."""

import itertools
import math

import pytest
import torch

from limner.data.examples import Example, collate
from limner.decoding.scoring import sentence_log_probs
from limner.errors import SettingsError
from limner.models.protocols import ModelInputs
from limner.models.rnn import RNN, RNNSettings
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.losses import word_loss

VOCAB = 7
WORDS = (SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos, *range(SPECIAL_TOKENS.unk, VOCAB))  # all that is not </s>


def build(**changes):
    torch.manual_seed(1)
    settings = RNNSettings.parse({"embedding_dim": 4, "hidden_dim": 5, "cell": "gru", **changes})
    model = RNN(settings, ModelInputs(VOCAB, {"pooled": (3,)})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model


def log_probs(model, sentences):
    batch = collate([Example(str(number), one) for number, one in enumerate(sentences)])
    if batch.image.pooled is not None:
        batch.image = batch.image._replace(pooled=batch.image.pooled.double())
    return sentence_log_probs(model(batch), batch)


def test_explicit_lengths_are_the_probabilities_of_all_sentences_of_a_length():
    model = build(length="explicit", max_length=2)
    probs = model.length_bias.detach().softmax(0)  # of T = 0, 1 and T >= 2
    expected = [float(probs[0]), float(probs[1]), float(probs[2] / 2), float(probs[2] / 4)]
    for length, value in enumerate(expected):
        sentences = list(itertools.product(WORDS, repeat=length))
        assert float(log_probs(model, sentences).detach().exp().sum()) == pytest.approx(value, rel=1e-9)


def test_words_given_the_length_do_not_depend_on_it():
    """Log P(x) - log P(T) of a sentence is the sum of its words' log-probabilities without </s>."""
    model, plain, sentence = build(length="explicit", max_length=6), build(length="end-symbol"), [4, 6, 5]
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if k != "length_bias"})
    with torch.no_grad():
        logits = plain(collate([Example("one", sentence)])).logits[0].clone()
        logits[:, SPECIAL_TOKENS.eos] = -math.inf
        words = sum(float(logits.log_softmax(1)[t, token]) for t, token in enumerate(sentence))
        length = float(model.length_bias.log_softmax(0)[3])
    assert float(log_probs(model, [sentence])[0].detach()) == pytest.approx(words + length)


def test_the_likelihood_estimates_the_relative_frequencies_of_the_lengths():
    model = build(length="explicit", max_length=4)
    data = collate([Example(str(number), [5] * length) for number, length in enumerate([1] * 5 + [3] * 4 + [0])])
    optimizer = torch.optim.LBFGS([model.length_bias], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = word_loss(model(data), data)
        value.backward()
        return value

    optimizer.step(loss)
    torch.testing.assert_close(
        model.length_bias.softmax(0), torch.tensor([0.1, 0.5, 0, 0.4, 0]).double(), atol=1e-3, rtol=0
    )


def test_lengths_depend_on_the_image():
    model = build(length="explicit", conditioning="every-step")
    with torch.no_grad():
        model.length_image.weight.zero_()
        model.length_image.weight[2, 0] = 50
    image = {"pooled": torch.tensor([1.0, 0, 0]).numpy()}
    batch = collate([Example("one", [4, 5], image=image), Example("none", [4, 5])])
    batch.image = batch.image._replace(pooled=batch.image.pooled.double())
    end = model(batch).logits[:, 2, SPECIAL_TOKENS.eos].detach().exp()
    assert float(end[0]) > 0.99
    assert float(end[1]) < 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": "lstm", "output_recurrence": True}, "expected cell 'tanh' or 'relu'"),
        ({"cell": "tanh", "output_recurrence": True, "delay": 2}, "expected cell 'tanh' or 'relu'"),
        (
            {"cell": "tanh", "output_recurrence": True, "conditioning": "both"},
            "expected conditioning 'none' or 'every-step'",
        ),
    ],
)
def test_settings_that_exclude_each_other_are_refused(changes, message):
    with pytest.raises(SettingsError, match=message):
        RNNSettings.parse(changes)
