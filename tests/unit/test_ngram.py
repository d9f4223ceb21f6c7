"""Back-off n-grams: hand-computed tables and properties of all counts."""

import math

import numpy as np
import pytest
import torch

from limner.data.examples import Example, collate
from limner.decoding.scoring import sentence_log_probs
from limner.decoding.settings import DecodingSettings, SampleSettings
from limner.decoding.torch_models import beam_search
from limner.errors import RunError, TrainingError
from limner.models.hmm import HMM, HMMSettings, baum_welch
from limner.models.ngram import NGram, NGramSettings
from limner.models.protocols import ModelInputs
from limner.text.vocab import SPECIAL_TOKENS

EOS, UNK, BOS = SPECIAL_TOKENS.eos, SPECIAL_TOKENS.unk, SPECIAL_TOKENS.bos
A, B, C, D = range(4, 8)
VOCAB = 8

BY_HAND = [[A, B], [A, B], [A, C, D, D, C, C]]
"""Bigrams: <s>a 3 times; ab, b</s> twice; ac, cd, dd, dc, cc, c</s> once; the trigrams are as many of each count.

With the cutoff 2: n_1 = 6, n_2 = 2, n_3 = 1, so 3 n_3 / n_1 = 1/2, d_1 = (2*2/6 - 1/2) / (1/2) = 1/3 and
d_2 = (3*1/(2*2) - 1/2) / (1/2) = 1/2. Unigrams: a 3, b 2, c 3, d 2, </s> 3 of 13; n_1 = 0, so nothing is discounted,
and <unk> lives on the 1 that is added to the total.
"""


def fitted(sentences, order=3, cutoff=5, vocab=VOCAB):
    model = NGram(NGramSettings(order=order, cutoff=cutoff), ModelInputs(vocab)).eval()
    model.fit(sentences)
    return model


def after(model, *words):
    """The distribution after some words."""
    tokens = torch.tensor([[BOS] * (model.settings.order - len(words)) + list(words)])
    logits, _ = model.step(tokens[:, -1], model.encode(batch([[]])), tokens[:, :-1])
    return logits[0].exp().tolist()


def batch(sentences):
    return collate([Example(f"item{row}", words) for row, words in enumerate(sentences)])


def corpus(seed, vocab=VOCAB, count=60):
    """Sentences in which every word has a few frequent successors."""
    random = np.random.default_rng(seed)
    words = np.arange(UNK, vocab)
    likes = random.dirichlet(np.full(len(words), 0.2), vocab)
    sentences = []
    for _ in range(count):
        sentence, word = [], BOS
        for _ in range(random.integers(0, 9)):
            word = int(random.choice(words, p=likes[word]))
            sentence.append(word)
        sentences.append(sentence)
    return sentences


def row_of(expected):
    return [float(expected.get(word, 0)) for word in range(VOCAB)]


def test_an_unfitted_model_is_uniform():
    model = NGram(NGramSettings(), ModelInputs(VOCAB))
    assert list(model.parameters()) == []
    data = batch([[A, B]])
    torch.testing.assert_close(
        model(data).logits.exp()[0], torch.tensor(row_of(dict.fromkeys(range(2, 8), 1 / 6))).repeat(3, 1)
    )


def test_fitting_again_replaces_counts_and_sentence_order_has_no_effect():
    model = fitted(corpus(3))
    model.fit(BY_HAND[::-1])
    state, fresh = model.state_dict(), fitted(BY_HAND).state_dict()
    assert all(torch.equal(state[name], fresh[name]) for name in fresh)


def test_tables_of_another_vocabulary_are_refused():
    with pytest.raises(RunError, match="log_probs_1 has 9 tokens, the vocabulary has 8"):
        fitted(BY_HAND).load_state_dict(fitted(BY_HAND, vocab=9).state_dict())


@pytest.mark.parametrize(
    "change",
    [
        {"words_2": slice(0, -1), "log_probs_2": slice(0, -1)},
        {"log_probs_2": slice(0, -1)},
        {"log_backoffs_2": slice(0, -1)},
        {"contexts_2": slice(0, -1)},
        {"first_2": slice(0, 0)},
        {"words_2": lambda words: words + VOCAB},
        {"words_2": lambda words: words - VOCAB},
        {"first_2": lambda first: first + 1},
        {"first_2": lambda first: torch.cat([first[:1], first[2:3], first[1:2], first[3:]])},
        {"words_2": lambda words: words[:, None]},
    ],
)
def test_tables_that_do_not_fit_one_another_are_refused(change):
    state = fitted(BY_HAND).state_dict()
    state |= {name: cut(state[name]) if callable(cut) else state[name][cut] for name, cut in change.items()}
    with pytest.raises(RunError, match=r"tables of order 2 do not fit .* \(contexts_2 \(.*restore"):
        fitted(corpus(3)).load_state_dict(state)


def test_no_sentences_are_refused():
    with pytest.raises(TrainingError, match="no sentences to count"):
        fitted([])


@pytest.mark.parametrize("word", [SPECIAL_TOKENS.pad, BOS, EOS, VOCAB, -1])
def test_invalid_token_ids_are_refused(word):
    with pytest.raises(TrainingError, match=rf"sentence 1 has the token id {word}: expected 3 to 7"):
        fitted([[A], [B, word]])


def test_empty_sentences_count_the_eos_token():
    assert after(fitted([[], [], []], order=2), BOS)[EOS] == pytest.approx(3 / 4)


def test_long_contexts_and_large_vocabularies_do_not_overflow():
    """60,000 to the power of 8 is far beyond 64 bits."""
    vocab = 60_000
    sentence = [vocab - 1 - word for word in range(12)]
    model = fitted([sentence, sentence[1:]], order=9, cutoff=1, vocab=vocab)
    # The last context of nine words is followed by </s> twice, its total is 3.
    assert math.exp(model._log_probs(torch.tensor([sentence[-8:]]))[0, EOS]) == pytest.approx(2 / 3)


def test_decoding_and_sampling_generate_no_special_tokens():
    model, data = fitted(corpus(1)), batch([[], []])
    result = beam_search([model], data, DecodingSettings(beam_size=3, n_best=3, min_length=2))
    drawn = beam_search([model], data, DecodingSettings(beam_size=20, n_best=20, sample=SampleSettings()))
    sentences = [one for row in (*result, *drawn) for one in row]
    assert len(sentences) == 46
    assert all(word >= UNK for one in sentences for word in one.tokens)
    assert all(math.isfinite(one.log_prob) for one in sentences)


HMM_VOCAB = 9
RANDOM = np.random.default_rng(3)
SENTENCES = [RANDOM.integers(4, HMM_VOCAB, length).tolist() for length in RANDOM.integers(0, 7, 40)]


def fitted_hmm(sentences=SENTENCES, **changes):
    model = HMM(HMMSettings(**{"states": 3, "iterations": 5, "pseudo_count": 0.1, **changes}), ModelInputs(HMM_VOCAB))
    model = model.double().eval()
    model.fit(sentences)
    return model


def log_prob(model, sentence):
    batch = collate([Example("one", sentence)])
    return float(sentence_log_probs(model(batch), batch)[0])


def test_the_best_of_several_initialisations_is_kept():
    settings = {"states": 4, "iterations": 8, "pseudo_count": 0.0, "tolerance": 0.0}
    models = [*(fitted_hmm(seed=seed, **settings) for seed in (1, 2, 3)), fitted_hmm(seed=1, restarts=3, **settings)]
    *single, best = [sum(log_prob(model, one) for one in SENTENCES) for model in models]
    assert best == pytest.approx(max(single))
    assert max(single) > min(single)


def test_iterations_end_when_the_gain_is_small():
    steps = list(baum_welch(SENTENCES, HMM_VOCAB, HMMSettings(states=2, iterations=500, tolerance=1e-3), 1))
    gains = np.diff([step.objective for step in steps]) / steps[0].tokens
    assert len(steps) < 500
    assert gains[-1] < 1e-3
    assert (gains[:-1] >= 1e-3).all()


def test_unseen_words_have_finite_scores_without_pseudo_counts():
    model = fitted_hmm([[4, 5], [5, 4]], pseudo_count=0.0)
    logits = model(collate([Example("one", [8, 4])])).logits
    assert torch.isfinite(logits).all()
    torch.testing.assert_close(logits.logsumexp(-1), torch.zeros(1, 3, dtype=torch.float64))


def test_samples_are_complete_sentences_with_the_frequencies_of_the_training():
    model = fitted_hmm([[4]] * 30 + [[5, 6]] * 10, states=4, iterations=100, pseudo_count=0, restarts=5).float()
    data = collate([Example(str(number)) for number in range(400)])
    settings = DecodingSettings(max_length=8, sample=SampleSettings())
    words = [one[0].tokens for one in beam_search([model], data, settings)]
    assert set(words) == {(4,), (5, 6)}
    assert words.count((4,)) / len(words) == pytest.approx(0.75, abs=0.07)


@pytest.mark.parametrize(
    ("sentences", "message"), [([], "no sentences"), ([[4], [1]], "sentence 1 has the token id 1")]
)
def test_sentences_that_cannot_be_counted_are_refused(sentences, message):
    with pytest.raises(TrainingError, match=message):
        fitted_hmm(sentences)
