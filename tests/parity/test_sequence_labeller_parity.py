"""The sequence labeller against the oracle in NumPy float64: outputs, pooling, and output recurrence."""

from types import SimpleNamespace

import numpy as np
import oracle_recurrent as oracle
import pytest
import torch
from parity_models import array, cell_weights, randomised

from limner.data.dataset import GenerationInput
from limner.data.examples import Example, Item, collate
from limner.decoding.sentence import Sentence
from limner.errors import TrainingError
from limner.evaluation.validate import label_texts
from limner.layers.frame_encoder import frame_mask
from limner.models import ModelInputs, build_model
from limner.models.sequence_labeller import SequenceLabellerSettings
from limner.text.vocab import SPECIAL_TOKENS

LABELS, WORDS, SPECIAL = 3, 6, len(SPECIAL_TOKENS)
SOURCES = ((4, 5, 6, 7), (8, 9), (5,))


def model_of(**changes):
    settings = SequenceLabellerSettings.parse({"word_dim": 4, "hidden_dim": 5, "label_dim": 2, **changes})
    return randomised(build_model(settings, ModelInputs(SPECIAL + LABELS, {}, SPECIAL + WORDS)))


def batch_of(model, labels=lambda source: (4, 5, 6, 4)[: len(source)]):
    targets = [(4,) if model.settings.outputs == "last" else labels(source) for source in SOURCES]
    examples = [
        Example(str(row), target, source) for row, (source, target) in enumerate(zip(SOURCES, targets, strict=True))
    ]
    return collate(examples), targets


def tanh_theta(layer):
    return cell_weights(layer.cell, "h")


def readout(model):
    return {"W_hy": array(model.readout.weight), "b_y": array(model.readout.bias)}


def words(model, source):
    return array(model.embedding.weight)[list(source)]


def label_log_probs(model, row, length):
    return array(model(batch_of(model)[0]).logits[row, :length, SPECIAL:])


@pytest.mark.parametrize("pooling", ["final", "mean", "max"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_one_output_at_the_end(bidirectional, pooling):
    model = model_of(cell="tanh", bidirectional=bidirectional, pooling=pooling)
    zero = (np.zeros(5),)
    for row, source in enumerate(SOURCES):
        inputs = words(model, source)
        if bidirectional:
            thetas = [tanh_theta(model.layers.forwards[0]), tanh_theta(model.layers.backwards[0])]
            hidden = oracle.run_bidirectional(oracle.rnn_step, *thetas, inputs, (zero, zero))
            final = np.concatenate([hidden[-1, :5], hidden[0, 5:]])
        else:
            hidden = oracle.outputs_of(oracle.run(oracle.rnn_step, tanh_theta(model.layers.layers[0]), inputs, zero))
            final = hidden[-1]
        pooled = {"final": final, "mean": hidden.mean(0), "max": hidden.max(0)}[pooling]
        expected = oracle.output_log_probs(readout(model), pooled)
        np.testing.assert_allclose(label_log_probs(model, row, 1)[0], expected, atol=1e-12)


def test_one_output_per_step_of_stacked_layers():
    model = model_of(outputs="every", cell="tanh", layers=2)
    zero = (np.zeros(5),)
    for row, source in enumerate(SOURCES):
        thetas = [tanh_theta(layer) for layer in model.layers.layers]
        layers = oracle.run_stacked(oracle.rnn_step, thetas, words(model, source), [zero, zero])
        expected = [oracle.output_log_probs(readout(model), h) for h in oracle.outputs_of(layers[-1])]
        np.testing.assert_allclose(label_log_probs(model, row, len(source)), expected, atol=1e-12)


@pytest.mark.parametrize("cell", ["none", "tanh"])
def test_output_recurrence(cell):
    """The previous label as input: the only memory without a cell, the dashed lines of the lecture with one."""
    model = model_of(outputs="every", cell=cell, previous_label=True)
    data, targets = batch_of(model)
    logits = model(data).logits
    embedded = array(model.label_embedding.weight)
    for row, source in enumerate(SOURCES):
        inputs = words(model, source)
        if cell == "none":
            weight, bias = map(array, (model.layers.weight, model.layers.bias))
            below = np.tanh(inputs @ weight.T + bias)
            theta = {"W_xh": array(model.label_layers.weight), "b_h": array(model.label_layers.bias)}
        else:
            states = oracle.run(oracle.rnn_step, tanh_theta(model.layers.layers[0]), inputs, (np.zeros(5),))
            below = oracle.outputs_of(states)
            theta = tanh_theta(model.label_layers.layers[0])
        weights = dict(theta)
        weights["W_yh"], weights["W_xh"] = weights["W_xh"][:, 5:], weights["W_xh"][:, :5]
        read = embedded[list(targets[row])]
        _, expected = oracle.run_output_recurrence(
            {**weights, **readout(model)}, below, embedded[SPECIAL_TOKENS.bos], read
        )
        found = logits[row, : len(source), SPECIAL:].exp().detach().numpy()
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_logits_are_log_probabilities_and_the_end_is_certain_after_the_last_label():
    model = model_of(outputs="every")
    data, _ = batch_of(model)
    probabilities = model(data).logits.exp()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones_like(probabilities.sum(-1)))
    for row, source in enumerate(SOURCES):
        assert probabilities[row, : len(source), :SPECIAL].max() == 0
        assert (probabilities[row, len(source) :, SPECIAL_TOKENS.eos] == 1).all()


@pytest.mark.parametrize(("bidirectional", "depends"), [(False, False), (True, True)])
def test_outputs_depend_on_later_steps_in_bidirectional_layers_only(bidirectional, depends):
    model = model_of(outputs="every", bidirectional=bidirectional)
    data, _ = batch_of(model)
    before = model(data).logits[0, :2]
    data.source[0, 3] = 9
    assert torch.equal(before, model(data).logits[0, :2]) is not depends


def frames_model(frames):
    torch.manual_seed(2)
    settings = SequenceLabellerSettings(reads="image", outputs="every", hidden_dim=5)
    return build_model(settings, ModelInputs(SPECIAL + LABELS, {"grid": (frames, 3)}))


@pytest.mark.parametrize("black", [[], [3], [0, 2, 3]])
def test_a_black_frame_between_others_keeps_its_place_and_label(black):
    grid = np.ones((8, 3), np.float16)
    grid[6:] = 0  # padding
    grid[black] = 0
    batch = collate([Example("clip", (4, 5, 6, 4, 5, 6), None, {"grid": grid})])
    assert frame_mask(batch.image.grid).tolist() == [[True] * 6 + [False] * 2]
    output = frames_model(8).train()(batch)
    assert output.logits[0].argmax(-1).eq(SPECIAL_TOKENS.eos).tolist() == [False] * 6 + [True]


def test_another_number_of_labels_than_frames_is_an_error_with_a_remedy():
    grid = np.ones((8, 3), np.float16)
    batch = collate([Example("clip", (4, 5, 6), None, {"grid": grid})])
    model = frames_model(8)
    message = r"item 'clip': expected 8 labels, .* feature table \(up to 8 an item\), found 3; .*--frames 3'"
    with pytest.raises(TrainingError, match=message):
        model.train()(batch)
    trained = SimpleNamespace(model=model.eval(), recipe=SimpleNamespace(data=SimpleNamespace(lang="frame_labels")))
    inputs, decoded = [GenerationInput(Item("clip", "test"), None, ("a b c",))], [Sentence((4,) * 8, 0.0, 0.0, True)]
    with pytest.raises(TrainingError, match=message):
        label_texts([trained], inputs, decoded, None)
