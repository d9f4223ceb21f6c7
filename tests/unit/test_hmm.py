"""Hidden Markov model: enumeration of the hidden paths, and properties of expectation maximisation."""

import numpy as np
import pytest
import torch

from limner.data.examples import Example, collate
from limner.decoding.scoring import sentence_log_probs
from limner.decoding.settings import DecodingSettings, SampleSettings
from limner.decoding.torch_models import beam_search
from limner.errors import TrainingError
from limner.models.hmm import HMM, HMMSettings, baum_welch
from limner.models.protocols import ModelInputs

VOCAB = 9
RANDOM = np.random.default_rng(3)
SENTENCES = [RANDOM.integers(4, VOCAB, length).tolist() for length in RANDOM.integers(0, 7, 40)]


def fitted(sentences=SENTENCES, **changes):
    model = HMM(HMMSettings(**{"states": 3, "iterations": 5, "pseudo_count": 0.1, **changes}), ModelInputs(VOCAB))
    model = model.double().eval()
    model.fit(sentences)
    return model


def log_prob(model, sentence):
    batch = collate([Example("one", sentence)])
    return float(sentence_log_probs(model(batch), batch)[0])


def test_the_best_of_several_initialisations_is_kept():
    settings = {"states": 4, "iterations": 8, "pseudo_count": 0.0, "tolerance": 0.0}
    models = [*(fitted(seed=seed, **settings) for seed in (1, 2, 3)), fitted(seed=1, restarts=3, **settings)]
    *single, best = [sum(log_prob(model, one) for one in SENTENCES) for model in models]
    assert best == pytest.approx(max(single))
    assert max(single) > min(single)


def test_iterations_end_when_the_gain_is_small():
    steps = list(baum_welch(SENTENCES, VOCAB, HMMSettings(states=2, iterations=500, tolerance=1e-3), 1))
    gains = np.diff([step.objective for step in steps]) / steps[0].tokens
    assert len(steps) < 500
    assert gains[-1] < 1e-3
    assert (gains[:-1] >= 1e-3).all()


def test_unseen_words_have_finite_scores_without_pseudo_counts():
    model = fitted([[4, 5], [5, 4]], pseudo_count=0.0)
    logits = model(collate([Example("one", [8, 4])])).logits
    assert torch.isfinite(logits).all()
    torch.testing.assert_close(logits.logsumexp(-1), torch.zeros(1, 3, dtype=torch.float64))


def test_samples_are_complete_sentences_with_the_frequencies_of_the_training():
    model = fitted([[4]] * 30 + [[5, 6]] * 10, states=4, iterations=100, pseudo_count=0, restarts=5).float()
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
        fitted(sentences)
