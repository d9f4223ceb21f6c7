"""Show and Tell against the oracle of its equations in NumPy float64."""

import numpy as np
import oracle_show_and_tell as oracle
import pytest
import torch

from limner.data.examples import Example, collate
from limner.decoding.scoring import sentence_log_probs
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import beam_search
from limner.models.protocols import ModelInputs
from limner.models.show_and_tell import ShowAndTell, ShowAndTellSettings
from limner.text.vocab import SPECIAL_TOKENS

VOCAB, EMBEDDING, HIDDEN, IMAGE_DIM = 7, 5, 6, 4
SENTENCES = [[4, 5, 6], [6], [4, 5, 5, 6, 4], []]


@pytest.fixture(params=[True, False], ids=["printed", "tanh"])
def pair(request):
    """A model in float64 with random weights, the same weights for the oracle, and whether the output has a tanh."""
    linear = request.param
    cell = {"name": "lstm", "linear_output": linear}
    settings = ShowAndTellSettings.parse({"cell": cell, "embedding_dim": EMBEDDING, "hidden_dim": HIDDEN})
    model = ShowAndTell(settings, ModelInputs(VOCAB, {"pooled": (IMAGE_DIM,)})).double().eval()
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.6 * torch.randn_like(parameter))
    cell = model.recurrent.layers[0].cell
    weights = {
        "W_I": model.image_embedding.weight,
        "b_I": model.image_embedding.bias,
        "W_e": model.embedding.weight.t(),
        "W_p": model.softmax.weight,
        "b_p": model.softmax.bias,
    }
    for k, gate in enumerate("ifco"):
        rows = slice(k * HIDDEN, (k + 1) * HIDDEN)
        weights |= {f"W_{gate}x": cell.input.weight[rows], f"W_{gate}m": cell.recurrent[rows]}
        weights |= {f"b_{gate}": cell.input.bias[rows]}
    return model, {name: value.detach().numpy() for name, value in weights.items()}, not linear


def images() -> np.ndarray:
    return np.random.default_rng(6).normal(size=(len(SENTENCES), IMAGE_DIM)).astype(np.float16)


def data():
    rows = zip(SENTENCES, images(), strict=True)
    batch = collate([Example(str(k), target, None, {"pooled": image}) for k, (target, image) in enumerate(rows)])
    batch.image = batch.image._replace(pooled=batch.image.pooled.double())
    return batch


def test_log_probabilities_of_sentences(pair) -> None:
    model, theta, squash = pair
    ours = sentence_log_probs(model(data()), data()).detach()
    for row, (sentence, image) in enumerate(zip(SENTENCES, images(), strict=True)):
        words = [SPECIAL_TOKENS.bos, *sentence, SPECIAL_TOKENS.eos]
        assert -oracle.loss(theta, image.astype(np.float64), words, squash) == pytest.approx(
            float(ours[row]), abs=1e-10
        )


def test_a_wide_beam_finds_the_best_sentences_of_the_oracle(pair) -> None:
    model, theta, squash = pair
    settings = DecodingSettings(beam_size=400, n_best=5, max_length=3)
    one = data()
    ours = beam_search([model], one, settings)[0]
    special = {"start": SPECIAL_TOKENS.bos, "stop": SPECIAL_TOKENS.eos}
    expected = oracle.best_sentences(theta, images()[0].astype(np.float64), **special, most_words=3, squash=squash)
    allowed = [pair for pair in expected if SPECIAL_TOKENS.pad not in pair[1]]
    finished = [one for one in ours if one.ended]
    for hypothesis, (log_prob, words) in zip(finished, allowed, strict=False):
        assert (hypothesis.tokens, hypothesis.log_prob) == (words, pytest.approx(log_prob, abs=1e-9))
