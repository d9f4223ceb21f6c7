"""Two-tower model and its losses against the oracle of their equations in NumPy float64."""

import numpy as np
import oracle_two_tower as oracle
import pytest
import torch
from parity_models import arrays, batch_of, cell_weights, randomised, renamed

from limner.data.examples import Example
from limner.models.protocols import ModelInputs
from limner.models.two_tower import TwoTower, TwoTowerSettings
from limner.training.matching import contrastive_loss, paraphrase_loss, softmax_loss

VOCAB, IMAGE_DIM = 9, 4
SENTENCES = [[4, 5, 6], [8], [4, 5, 5, 6, 7], []]
OWNERS = [0, 0, 1, 2, 2]


@pytest.fixture(params=["final", "mean", "words"])
def pair(request):
    """A model in float64 with random weights, the same weights for the oracle, and the summary of a sentence."""
    settings = TwoTowerSettings(word_dim=5, hidden_dim=6, joint_dim=7, pooling=request.param)
    model = randomised(TwoTower(settings, ModelInputs(VOCAB, {"pooled": (IMAGE_DIM,)})))
    names = {"embedding.weight": "E", "sentence.weight": "W_g", "sentence.bias": "b_g", "image.weight": "W_f"}
    weights = renamed(arrays(model), names | {"image.bias": "b_f"})
    if request.param != "words":
        weights |= cell_weights(model.layers.layers[0].cell, "rzn", ("W_{}", "U_{}", "b_{}"))
    return model, weights, request.param


def data():
    rows = np.random.default_rng(6).normal(size=(len(SENTENCES), IMAGE_DIM)).astype(np.float16)
    examples = enumerate(zip(SENTENCES, rows, strict=True))
    return batch_of([Example(str(row), target, None, {"pooled": vector}) for row, (target, vector) in examples])


@torch.no_grad()
def test_vectors_of_sentences_and_images(pair) -> None:
    model, weights, pooling = pair
    batch = data()
    sentences = np.stack([oracle.sentence_vector(tokens, weights, pooling) for tokens in SENTENCES])
    images = np.stack([oracle.image_vector(x, weights) for x in batch.image.pooled.numpy()])
    np.testing.assert_allclose(model.sentence_vector(batch).numpy(), sentences, atol=1e-12)
    np.testing.assert_allclose(model.image_vector(batch.image).numpy(), images, atol=1e-12)
    np.testing.assert_allclose(model.pair_scores(batch.image, batch).numpy(), sentences @ images.T, atol=1e-12)


@pytest.mark.parametrize("hardest", [True, False])
def test_the_contrastive_loss(hardest: bool) -> None:
    cosines = np.random.default_rng(1).uniform(-1, 1, (5, 3))
    ours = contrastive_loss(torch.from_numpy(cosines), torch.tensor(OWNERS), 0.2, hardest=hardest)
    assert float(ours) == pytest.approx(oracle.contrastive(cosines, OWNERS, 0.2, hardest), abs=1e-12)


def test_the_contrastive_loss_of_a_perfect_model_is_zero() -> None:
    cosines = torch.nn.functional.one_hot(torch.tensor(OWNERS)).double()
    assert float(contrastive_loss(cosines, torch.tensor(OWNERS), 0.2, hardest=True)) == 0


def test_the_softmax_loss_leaves_out_images_that_share_the_sentence() -> None:
    logits = np.random.default_rng(4).normal(size=(5, 3))
    sentences = torch.tensor([[4, 5], [6, 0], [4, 5], [7, 8], [7, 0]])  # images 0 and 1 share a sentence
    ours = softmax_loss(torch.from_numpy(logits), torch.tensor(OWNERS), sentences)
    assert float(ours) == pytest.approx(oracle.softmax_loss(logits, OWNERS, sentences.tolist()), abs=1e-12)
    distinct = softmax_loss(torch.from_numpy(logits), torch.tensor(OWNERS), torch.arange(10).view(5, 2))
    assert float(distinct) == pytest.approx(oracle.softmax_loss(logits, OWNERS, list(range(5))), abs=1e-12)


@pytest.mark.parametrize("owners", [OWNERS, [0, 0, 1, 1, 1], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("words", [[4, 5, 6, 7, 8], [4, 5, 6, 5, 4]])  # other items have sentences of equal words
def test_the_loss_of_paraphrases(owners: list[int], words: list[int]) -> None:
    logits = np.random.default_rng(2).normal(size=(5, 5))
    ours = paraphrase_loss(torch.from_numpy(logits), torch.tensor(owners), torch.tensor(words)[:, None])
    assert float(ours) == pytest.approx(oracle.paraphrases(logits, owners, words), abs=1e-12)
