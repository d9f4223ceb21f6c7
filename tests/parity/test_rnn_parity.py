"""The generative recurrent network against the oracle, sentence by sentence."""

import numpy as np
import pytest
import torch
from oracle_recurrent import (
    coupled_lstm_step,
    gru_step,
    leaky_step,
    lstm_step,
    output_log_probs,
    outputs_of,
    relu_step,
    rnn_step,
    run_conditioned,
    run_output_recurrence,
    torch_gru_step,
)

from limner.data.examples import Example, collate
from limner.models.protocols import ModelInputs
from limner.models.rnn import RNN, RNNSettings
from limner.text.vocab import SPECIAL_TOKENS

VOCAB, EMBEDDING, HIDDEN, IMAGE = 9, 4, 5, 3
STEPS = {
    "tanh": (rnn_step, "h"),
    "relu": (relu_step, "h"),
    "leaky": (leaky_step, "h"),
    "lstm": (lstm_step, "ifco"),
    "peephole": (lstm_step, "ifco"),
    "coupled": (coupled_lstm_step, "fco"),
    "gru": (torch_gru_step, "rzh"),
    "gru-before": (gru_step, "rzh"),
}
"""Step of the oracle, and the gates in the order in which our cell stores them."""


def build(**changes):
    torch.manual_seed(3)
    settings = RNNSettings.model_validate({"embedding_dim": EMBEDDING, "hidden_dim": HIDDEN, **changes})
    model = RNN(settings, ModelInputs(VOCAB, {"pooled": (IMAGE,)})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def data(sentence=(4, 7, 5, 5, 8)):
    image = np.random.default_rng(1).normal(size=IMAGE).astype(np.float16)
    batch = collate([Example("one", sentence, image={"pooled": image})])
    batch.image = batch.image._replace(pooled=batch.image.pooled.double())
    return batch


def array(tensor):
    return tensor.detach().numpy()


def cell_weights(cell, name):
    """Weights of a cell under the oracle's names."""
    theta, gates = {}, STEPS[name][1]
    for place, gate in enumerate(gates):
        rows = slice(place * HIDDEN, (place + 1) * HIDDEN)
        theta[f"W_x{gate}"], theta[f"W_h{gate}"] = array(cell.input.weight)[rows], array(cell.recurrent)[rows]
        theta[f"b_{gate}"] = array(cell.input.bias)[rows]
    if name == "leaky":
        theta["tau"] = array(cell.time_constant)
    if name == "peephole":
        theta |= {f"W_c{gate[0]}": array(weight) for gate, weight in cell.peepholes.items()}
    return theta


def output_weights(model):
    theta = {"W_hy": array(model.softmax.weight), "b_y": array(model.softmax.bias)}
    for k, layer in enumerate(model.output, start=1):
        theta |= {f"V_{k}": array(layer.weight), f"a_{k}": array(layer.bias)}
    return theta


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(("conditioning", "at"), [("every-step", "step"), ("initial-state", "start"), ("both", "both")])
def test_every_cell_and_conditioning_equals_the_oracle(name, conditioning, at):
    model, batch = build(cell=name, conditioning=conditioning, output_layers=2), data()
    theta = cell_weights(model.recurrent.layers[0].cell, name)
    image = array(batch.image.pooled[0])
    extra = array(model.extra(batch.image.pooled))[0] if model.extra is not None else None
    if model.initial is not None:  # the oracle applies the initial layer itself, to the raw image vector
        weight, bias = array(model.initial.weight), array(model.initial.bias)
        named = [("W_init", "b_init"), ("W_init_c", "b_init_c")]
        for (w, b), rows in zip(named, range(0, len(weight), HIDDEN), strict=False):
            theta[w], theta[b] = weight[rows : rows + HIDDEN], bias[rows : rows + HIDDEN]
    zeros = (np.zeros(HIDDEN),) * (2 if model._has_memory_cell else 1)
    words = array(model.embedding(batch.target_in))[0]
    if extra is not None:  # the embedded vector is the oracle's input of every step
        words = np.array([np.concatenate([word, extra]) for word in words])
    states = run_conditioned(STEPS[name][0], theta, words, image, "start" if at != "step" else "none", zeros)
    expected = [output_log_probs(output_weights(model), h) for h in outputs_of(states)]
    ours = model(batch).logits.log_softmax(-1)[0]
    np.testing.assert_allclose(array(ours), np.array(expected), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_stacked_layers_have_their_own_initial_states(name):
    model, batch = build(cell=name, conditioning="initial-state", layers=2), data()
    inputs = array(model.embedding(batch.target_in))[0]
    first = np.tanh(array(model.initial(batch.image.pooled))[0]).reshape(2, HIDDEN)
    for layer, start in zip(model.recurrent.layers, first, strict=True):
        theta, states = cell_weights(layer.cell, name), [(start,)]
        for x in inputs:
            states.append(STEPS[name][0](theta, x, states[-1]))
        inputs = outputs_of(states[1:])
    expected = [output_log_probs(output_weights(model), h) for h in inputs]
    np.testing.assert_allclose(array(model(batch).logits.log_softmax(-1)[0]), np.array(expected), rtol=1e-9)


def test_output_recurrence_remembers_the_previous_target_only():
    model, batch = build(cell="tanh", conditioning="every-step", output_recurrence=True), data()
    weight, bias = array(model.feedforward[0].weight), array(model.feedforward[0].bias)
    one_hot = np.eye(VOCAB)
    theta = {
        "W_xh": weight[:, EMBEDDING:],  # the image vector is the input x_t
        "W_yh": weight[:, :EMBEDDING] @ array(model.embedding.weight).T,  # the one-hot target is y_{t-1}
        "b_h": bias,
        **output_weights(model),
    }
    extra = array(model.extra(batch.image.pooled))[0]
    targets = batch.target_out[0].numpy()
    inputs = np.tile(extra, (len(targets), 1))
    _, expected = run_output_recurrence(theta, inputs, one_hot[SPECIAL_TOKENS.bos], one_hot[targets])
    np.testing.assert_allclose(array(model(batch).logits.softmax(-1)[0]), expected, rtol=1e-9)
