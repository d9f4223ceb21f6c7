"""Gradients through time against the numerical Jacobians of the oracle."""

import numpy as np
import pytest
import torch
from oracle_recurrent import (
    coupled_lstm_step,
    gru_step,
    lstm_step,
    rnn_step,
    run,
    state_jacobian,
    torch_gru_step,
)

from limner.data.examples import Example, collate
from limner.evaluation.gradients import squared_norms
from limner.models.protocols import ModelInputs
from limner.models.rnn import RNN, RNNSettings

HIDDEN, VOCAB = 4, 8
SENTENCES = ([4, 5, 6, 7, 4, 5], [6, 6, 4], [])


def build(cell):
    torch.manual_seed(2)
    model = RNN(
        RNNSettings.parse({"cell": cell, "embedding_dim": 3, "hidden_dim": HIDDEN}), ModelInputs(VOCAB)
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model


STEPS = {
    "tanh": (rnn_step, "h"),
    "lstm": (lstm_step, "ifco"),
    "coupled": (coupled_lstm_step, "fco"),
    "gru": (torch_gru_step, "rzh"),
    "gru-before": (gru_step, "rzh"),
}


@pytest.mark.parametrize("name", STEPS)
def test_exact_norms_equal_the_numerical_jacobians_of_the_oracle(name):
    model, (step, gates) = build(name), STEPS[name]
    cell, theta = model.recurrent.layers[0].cell, {}
    for place, gate in enumerate(gates):
        rows = slice(place * HIDDEN, (place + 1) * HIDDEN)
        theta[f"W_x{gate}"] = cell.input.weight[rows].detach().numpy()
        theta[f"W_h{gate}"] = cell.recurrent[rows].detach().numpy()
        theta[f"b_{gate}"] = cell.input.bias[rows].detach().numpy()
    sums, counts = np.zeros(8), np.zeros(8)
    for sentence in SENTENCES:
        batch = collate([Example("one", sentence)])
        inputs = model.embedding(batch.target_in)[0].detach().numpy()
        zeros = (np.zeros(HIDDEN),) * (2 if "c" in gates else 1)
        states = [zeros, *run(step, theta, inputs, zeros)]
        for k in range(len(states)):
            for t in range(k, len(states)):
                jacobian = state_jacobian(step, theta, inputs[k:t], states[k])
                sums[t - k] += (jacobian**2).sum()
                counts[t - k] += 1
    batch = collate([Example(str(number), one) for number, one in enumerate(SENTENCES)])
    found = squared_norms(model, batch, HIDDEN, torch.Generator())
    np.testing.assert_allclose(found.blocks["layers.0.state.hidden"], sums, rtol=1e-6)
    np.testing.assert_array_equal(found.pairs, counts)
