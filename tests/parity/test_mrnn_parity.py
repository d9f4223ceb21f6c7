"""All variants of the m-RNN against the oracle of the equations in NumPy float64."""

import math
from typing import get_args

import numpy as np
import oracle_mrnn as oracle
import pytest
import torch

from limner.data.examples import Example, collate
from limner.decoding.scoring import sentence_log_probs
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import beam_search
from limner.models.mrnn import MRNN, MRNNSettings, Variant
from limner.models.protocols import ModelInputs
from limner.retrieval.marginal import Marginal
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.losses import word_loss

VOCAB, EMBEDDING, HIDDEN, MULTIMODAL, IMAGE_DIM = 13, 5, 7, 9, 6
VARIANTS = [
    *((name, "linear") for name in get_args(Variant)),
    ("m-RNN", "relu"),
    ("visInRnn-both", "relu"),
    ("OneLayerEmb", "relu"),
]
SENTENCES = [[4, 5, 6], [7], [4, 5, 12, 11, 10, 4], [], [3, 3]]


@pytest.fixture(params=VARIANTS, ids="-".join)
def pair(request):
    """A model in float64 with random weights, and the same weights for the oracle."""
    variant, activation = request.param
    multimodal = HIDDEN if variant == "visInRnn-both-shared" else MULTIMODAL
    settings = MRNNSettings(
        variant=variant,
        embedding_dim=EMBEDDING,
        hidden_dim=HIDDEN,
        multimodal_dim=multimodal,
        embedding_activation=activation,
    )
    model = MRNN(settings, ModelInputs(VOCAB, {"pooled": (IMAGE_DIM,)})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    theirs = oracle.OracleSettings(variant=variant, embedding_activation=activation)
    return model, theta_of(model, theirs), theirs


def theta_of(model: MRNN, settings: oracle.OracleSettings) -> dict[str, np.ndarray]:
    """Our parameters under the oracle's names."""
    renamed = {
        "embedding_1.weight": "embedding_1",
        "recurrent.weight": "recurrent",
        "multimodal_word.weight": "multimodal_word",
        "multimodal_recurrent.weight": "multimodal_recurrent",
        "multimodal_visual.weight": "multimodal_visual",
        "visual_in_rnn.weight": "visual_shared" if settings.variant == "visInRnn-both-shared" else "visual_in_rnn",
    }
    theta = {renamed.get(name, name): value.detach().numpy() for name, value in model.named_parameters()}
    oracle.check_parameters(theta, settings)
    return theta


def random_images(count: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(count, IMAGE_DIM)).astype(np.float16)


def batch_of(sentences, images):
    return collate(
        [Example(str(k), s, image={"pooled": i}) for k, (s, i) in enumerate(zip(sentences, images, strict=True))]
    )


def doubled(batch):
    batch.image = batch.image._replace(pooled=batch.image.pooled.double())
    return batch


def with_special_tokens(sentence):
    return [SPECIAL_TOKENS.bos, *sentence, SPECIAL_TOKENS.eos]


def test_distribution_of_every_word(pair) -> None:
    model, theta, settings = pair
    images = random_images(len(SENTENCES))
    batch = doubled(batch_of(SENTENCES, images))
    ours = model(batch).logits.softmax(2).detach().numpy()
    for row, (sentence, image) in enumerate(zip(SENTENCES, images.astype(float), strict=True)):
        expected = oracle.next_word_distributions(theta, settings, with_special_tokens(sentence), image)
        np.testing.assert_allclose(ours[row, : len(sentence) + 1], expected, atol=1e-12)


def test_perplexity_eq_5(pair) -> None:
    model, theta, settings = pair
    images = random_images(len(SENTENCES))
    batch = doubled(batch_of(SENTENCES, images))
    words = batch.target_mask.sum(1)
    ours = (-sentence_log_probs(model(batch), batch) / words / math.log(2)).tolist()
    for row, (sentence, image) in enumerate(zip(SENTENCES, images.astype(float), strict=True)):
        assert ours[row] == pytest.approx(oracle.log2_perplexity(theta, settings, with_special_tokens(sentence), image))


def test_cost_eq_6(pair) -> None:
    """Ours is in nats: eq. 6 is ours divided by ln 2, with lambda = l2 / ln 2."""
    model, theta, settings = pair
    images, l2 = random_images(len(SENTENCES)), 0.01
    batch = doubled(batch_of(SENTENCES, images))
    with torch.no_grad():
        norm = sum(weight.square().sum() for weight in model.parameters())
        ours = float(word_loss(model(batch), batch) + l2 * norm)
    pairs = [(with_special_tokens(s), i) for s, i in zip(SENTENCES, images.astype(float), strict=True)]
    assert ours / math.log(2) == pytest.approx(oracle.cost(theta, settings, pairs, l2 / math.log(2)))


def test_greedy_decoding_from_a_prefix(pair) -> None:
    model, theta, settings = pair
    images = random_images(3)
    prefixes = [[], [4], [5, 9]]
    batch = doubled(batch_of([[]] * 3, images))
    result = beam_search([model], batch, DecodingSettings(max_length=8), prefixes)
    for hypotheses, prefix, image in zip(result, prefixes, images.astype(float), strict=True):
        expected = oracle.generate(
            theta,
            settings,
            image,
            prefix=prefix,
            start=SPECIAL_TOKENS.bos,
            end=SPECIAL_TOKENS.eos,
            max_words=8,
            banned=(SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos),
        )
        assert hypotheses[0].tokens == tuple(expected)


def test_normalised_probability_eq_7(pair) -> None:
    """Ours divides by the mean over the sampled images, the paper by their sum."""
    model, theta, settings = pair
    images = random_images(6)
    query, samples = images[0], images[1:]
    for sentence in SENTENCES:
        repeated = doubled(batch_of([sentence] * len(images), images))
        log_probs = sentence_log_probs(model(repeated), repeated).detach()
        marginal = Marginal(1)
        for some in log_probs[1:].split(2):
            marginal.add([0], some[None])
        ours = float(log_probs[0] - marginal.log_probs()[0]) - math.log(len(samples))
        expected = oracle.normalised_log_prob(
            theta, settings, with_special_tokens(sentence), query.astype(float), samples.astype(float)
        )
        assert ours == pytest.approx(expected, abs=1e-6)
