"""Gradients through time against the numerical Jacobians of the oracle."""

import numpy as np
import pytest
import torch
from oracle_recurrent import run, state_jacobian
from parity_models import CELLS, array, randomised, recurrent_cell, zero_state

from limner.data.examples import Example, collate
from limner.evaluation.gradients import squared_norms
from limner.models.protocols import ModelInputs
from limner.models.rnn import RNN, RNNSettings

HIDDEN, VOCAB = 4, 8
SENTENCES = ([4, 5, 6, 7, 4, 5], [6, 6, 4], [])


@pytest.mark.parametrize("name", ["tanh", "lstm", "coupled", "gru", "gru-before"])
def test_exact_norms_equal_the_numerical_jacobians_of_the_oracle(name):
    settings = RNNSettings.parse({"cell": name, "embedding_dim": 3, "hidden_dim": HIDDEN})
    model, step = randomised(RNN(settings, ModelInputs(VOCAB))), CELLS[name][0]
    theta, zeros = recurrent_cell(model.recurrent.layers[0].cell, name), zero_state(name, HIDDEN)
    sums, counts = np.zeros(8), np.zeros(8)
    for sentence in SENTENCES:
        batch = collate([Example("", sentence)])
        inputs = array(model.embedding(batch.target_in))[0]
        states = [zeros, *run(step, theta, inputs, zeros)]
        for k in range(len(states)):
            for t in range(k, len(states)):
                jacobian = state_jacobian(step, theta, inputs[k:t], states[k])
                sums[t - k] += (jacobian**2).sum()
                counts[t - k] += 1
    batch = collate([Example(str(number), sentence) for number, sentence in enumerate(SENTENCES)])
    found = squared_norms(model, batch, HIDDEN, torch.Generator())
    np.testing.assert_allclose(found.blocks["layers.0.state.hidden"], sums, rtol=1e-6)
    np.testing.assert_array_equal(found.pairs, counts)
