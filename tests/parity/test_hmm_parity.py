"""The hidden Markov model and its estimation against the oracle."""

import numpy as np
import pytest
import torch
from oracle_hmm import Hmm, baum_welch, best_path_by_enumeration, next_word_probs
from oracle_hmm import beliefs as oracle_beliefs
from oracle_hmm import log_likelihood as oracle_log_likelihood

from limner.data.examples import Example, collate
from limner.models import hmm
from limner.models.hmm import HMM, HMMSettings
from limner.models.protocols import ModelInputs
from limner.text.vocab import SPECIAL_TOKENS

VOCAB, EOS = 8, SPECIAL_TOKENS.eos
RANDOM = np.random.default_rng(5)
SENTENCES = [RANDOM.integers(SPECIAL_TOKENS.unk, VOCAB, length).tolist() for length in (0, 3, 1, 4, 4, 2, 5, 3, 2)]


def iterations(states, seed, count):
    settings = HMMSettings(states=states, pseudo_count=0, iterations=count, tolerance=0)
    return list(hmm.baum_welch(SENTENCES, VOCAB, settings, seed))


@pytest.mark.parametrize(("states", "seed"), [(1, 0), (2, 1), (3, 2)])
def test_every_iteration_equals_the_oracle(states, seed):
    steps = iterations(states, seed, 6)
    oracle = Hmm(*(values.numpy() for values in steps[0].parameters))
    ended = [[*sentence, EOS] for sentence in SENTENCES]
    for step in steps:
        for ours, theirs in zip(step.parameters, (oracle.pi, oracle.A, oracle.B), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        expected = sum(oracle_log_likelihood(oracle, sentence) for sentence in ended)
        assert step.log_likelihood == pytest.approx(expected, rel=1e-10)
        oracle = baum_welch(oracle, ended)


@pytest.mark.parametrize("sentence", [[], [5], [4, 7, 7], [3, 4, 5, 6, 7]])
def test_beliefs_next_words_and_states_equal_the_oracle(sentence):
    parameters = iterations(3, 1, 2)[-1].parameters
    model = HMM(HMMSettings(states=3), ModelInputs(VOCAB)).double().eval()
    model.load_state_dict(parameters._asdict())
    oracle = Hmm(*(values.numpy() for values in parameters))
    data = collate([Example("one", sentence)])
    probs = model(data).logits[0].exp()
    np.testing.assert_allclose(probs, next_word_probs(oracle, sentence), rtol=1e-9, atol=1e-12)
    state, beliefs = model.start(model.encode(data)), []
    for token in data.target_in[0]:
        state = model.step(token[None], None, state)[1]
        beliefs.append(state[0])
    np.testing.assert_allclose(torch.stack(beliefs), oracle_beliefs(oracle, sentence), rtol=1e-9, atol=1e-12)
    assert tuple(model.states(sentence)) == best_path_by_enumeration(oracle, [*sentence, EOS])[0]
