"""Gradients through time: analytic values, exact Jacobians, and every model of the protocol."""

import json
import math

import numpy as np
import pytest
import torch

from limner.data.examples import Example, collate
from limner.errors import SettingsError
from limner.evaluation.gradients import GradientNorms, fit_decay, squared_norms
from limner.models.hmm import HMM, HMMSettings
from limner.models.ngram import NGram, NGramSettings
from limner.models.protocols import ModelInputs
from limner.models.rnn import RNN, RNNSettings
from limner.models.sequence_labeller import SequenceLabeller, SequenceLabellerSettings

HIDDEN, VOCAB = 4, 8
SENTENCES = ([4, 5, 6, 7, 4, 5], [6, 6, 4], [])


def build(cell="tanh", scale=0.5, **changes):
    torch.manual_seed(2)
    settings = RNNSettings.parse({"cell": cell, "embedding_dim": 3, "hidden_dim": HIDDEN, **changes})
    model = RNN(settings, ModelInputs(VOCAB)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model


def norms(model, sentences=SENTENCES, probes=100):
    batch = collate([Example(str(number), one) for number, one in enumerate(sentences)])
    found = squared_norms(model, batch, probes, torch.Generator().manual_seed(0))
    size = sum(found.sizes.values())
    blocks = {name: (values / (found.sizes[name] * found.pairs)).sqrt() for name, values in found.blocks.items()}
    return (found.whole / (size * found.pairs)).sqrt(), blocks


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
def test_a_linear_network_has_the_powers_of_its_eigenvalue(factor):
    """h_t = relu(W h_{t-1} + b) with W = factor 1 and positive states: d h_t / d h_k = factor^(t - k) 1."""
    model = build("relu", scale=0)
    with torch.no_grad():
        cell = model.recurrent.layers[0].cell
        cell.recurrent.copy_(factor * torch.eye(HIDDEN))
        cell.input.weight.zero_()
        cell.input.bias.fill_(1.0)
    measured = norms(model, probes=2)[0]  # every sign vector is exact for a multiple of the identity
    assert measured.tolist() == pytest.approx([factor**distance for distance in range(len(measured))])


def test_the_whole_state_is_differentiated_by_autograd():
    """All tensors together, against `torch.autograd.functional.jacobian` of two steps."""
    model = build("lstm")
    batch = collate([Example("one", [5])])
    tokens, memory = batch.target_in[0], model.encode(batch)

    def two_steps(flat):
        state = model.start(memory)
        layer = state.layers[0]
        hidden, cell = flat[None].split(HIDDEN, 1)
        state = state._replace(layers=(layer._replace(state=layer.state._replace(hidden=hidden, cell=cell)),))
        for token in tokens:
            state = model.step(token[None], memory, state)[1]
        return torch.cat([state.layers[0].state.hidden, state.layers[0].state.cell], 1)[0]

    jacobian = torch.autograd.functional.jacobian(two_steps, torch.zeros(2 * HIDDEN, dtype=torch.float64))
    assert float(norms(model, [[5]])[0][2]) == pytest.approx(float(jacobian.norm()) / math.sqrt(2 * HIDDEN))


def test_random_vectors_estimate_the_exact_norms():
    model = build("gru", hidden_dim=16)
    sentences = [[4, 5, 6, 7]] * 300
    exact, estimated = norms(model, sentences[:1], probes=16)[0], norms(model, sentences, probes=3)[0]
    torch.testing.assert_close(estimated, exact, rtol=0.05, atol=0)


def test_padding_and_the_parameters_do_not_change():
    model = build("lstm")
    together, alone = norms(model)[0], [norms(model, [one])[0] for one in SENTENCES]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    pairs = [torch.arange(len(one), 0, -1.0) for one in alone]
    total = sum((a[4:5] ** 2 * p[4:5]).sum() for a, p in zip(alone, pairs, strict=True))
    count = sum(p[4:5].sum() for p in pairs)
    assert float(together[4]) == pytest.approx(math.sqrt(float(total / count)))


def test_the_belief_of_a_hidden_markov_model_is_a_state():
    model = HMM(HMMSettings(states=3, pseudo_count=0.1, iterations=3), ModelInputs(VOCAB)).double()
    model.fit([[4, 5, 6], [7, 4]])
    measured = norms(model)[0]
    assert torch.isfinite(measured).all()
    assert float(measured[0]) == 1


LABELLER = SequenceLabellerSettings(word_dim=3, hidden_dim=4, label_dim=3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (NGram(NGramSettings(order=2), ModelInputs(VOCAB)), "no recurrent state"),
        (RNN(RNNSettings.parse({"cell": "tanh", "output_recurrence": True}), ModelInputs(VOCAB)), "no recurrent state"),
        (SequenceLabeller(LABELLER, ModelInputs(VOCAB, source_vocab_size=VOCAB)), "labellers read the whole sequence"),
    ],
)
def test_a_model_without_a_recurrent_state_is_refused(model, message):
    batch = collate([Example("0", [4], [4, 5, 6])])
    with pytest.raises(SettingsError, match=message):
        squared_norms(model, batch, 2, torch.Generator().manual_seed(0))


def test_the_factor_is_that_of_an_exponential_decay():
    decay = fit_decay((1.0, 0.3, 0.15, 0.0, 0.0375), (9, 8, 7, 6, 5))
    assert decay is not None and decay.factor == pytest.approx(0.5)
    assert (decay.first, decay.last, str(decay)) == (1, 4, "λ 0.500 at 1–4")
    assert fit_decay((1.0, 0.0), (2, 1)) is None


def test_a_distance_counts_as_much_as_its_pairs():
    """Repeating each distance as often as it has pairs gives the same line; one pair hardly changes it."""
    norms, pairs = (1.0, 0.5, 0.3, 0.1, 0.9), (4000, 2000, 1000, 500, 1)
    distances = np.repeat(np.arange(1, 5), pairs[1:])
    slope = np.polyfit(distances, np.log(np.array(norms))[distances], 1)[0]
    decay, before = fit_decay(norms, pairs), fit_decay(norms[:-1], pairs[:-1])
    assert decay is not None and before is not None
    assert decay.factor == pytest.approx(math.exp(slope))
    assert decay.factor == pytest.approx(before.factor, rel=0.01)


def test_the_command_stores_and_plots_the_norms(trained, trained_on_colours, tmp_path, command_line):
    plot = tmp_path / "norms.svg"
    models = ("--model", str(trained), "--model", str(trained_on_colours))
    status, printed, _ = command_line("gradients", *models, "--plot", plot, "--probes", 2)
    assert status == 0 and "factor" in printed
    assert plot.read_text().count("<svg") == 1
    for run in (trained, trained_on_colours):
        stored = GradientNorms.load(run / "gradients" / "val.json")
        (curve,) = stored.curves
        assert (curve.name, curve.norms[0]) == ("state", pytest.approx(1))
        assert curve.norms[1] != pytest.approx(1)
        assert len(curve.norms) == len(stored.pairs)
        assert stored.sentences > 0
        decay = json.loads((run / "gradients" / "val.json").read_text())["decays"]["state"]
        assert decay == stored.decays["state"].model_dump()
        assert (decay["first"], decay["last"]) == (1, len(stored.pairs) - 1)
        assert stored.label(curve) == f"state ({stored.decays['state']})"


def test_a_plot_of_another_format_is_refused_before_measuring(trained, command_line):
    status, _, errors = command_line("gradients", "--model", trained, "--plot", "norms.gif")
    assert status == 1 and "ends in .png or .svg" in errors
