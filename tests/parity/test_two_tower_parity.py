"""Two-tower model and its losses against the oracle of their equations in NumPy float64."""

import numpy as np
import oracle_two_tower as oracle
import pytest
import torch

from limner.data.examples import Example, collate
from limner.models.protocols import ModelInputs
from limner.models.two_tower import TwoTower, TwoTowerSettings
from limner.training.matching import contrastive_loss, distillation_loss

VOCAB, IMAGE_DIM, HIDDEN = 9, 4, 6
SENTENCES = [[4, 5, 6], [8], [4, 5, 5, 6, 7], []]
OWNERS = [0, 0, 1, 2, 2]


@pytest.fixture(params=["final", "mean"])
def pair(request):
    """A model in float64 with random weights, the same weights for the oracle, and whether states are averaged."""
    settings = TwoTowerSettings(word_dim=5, hidden_dim=HIDDEN, joint_dim=7, pooling=request.param)
    model = TwoTower(settings, ModelInputs(VOCAB, {"pooled": (IMAGE_DIM,)})).double().eval()
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.6 * torch.randn_like(parameter))
    cell = model.layers.layers[0].cell
    weights = {
        "E": model.embedding.weight,
        "W_g": model.sentence.weight,
        "b_g": model.sentence.bias,
        "W_f": model.image.weight,
        "b_f": model.image.bias,
    }
    for k, gate in enumerate("rzn"):
        rows = slice(k * HIDDEN, (k + 1) * HIDDEN)
        weights |= {f"W_{gate}": cell.input.weight[rows], f"U_{gate}": cell.recurrent[rows]}
        weights |= {f"b_{gate}": cell.input.bias[rows]}
    return model, {name: value.detach().numpy() for name, value in weights.items()}, request.param == "mean"


def data():
    rows = np.random.default_rng(6).normal(size=(len(SENTENCES), IMAGE_DIM))
    batch = collate(
        [
            Example(str(k), target, None, {"pooled": row})
            for k, (target, row) in enumerate(zip(SENTENCES, rows, strict=True))
        ]
    )
    batch.image = batch.image._replace(pooled=torch.from_numpy(rows))
    return batch


@torch.no_grad()
def test_vectors_of_sentences_and_images(pair) -> None:
    model, weights, mean = pair
    batch = data()
    sentences = np.stack([oracle.sentence_vector(tokens, weights, mean) for tokens in SENTENCES])
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


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_distillation_loss(temperature: float) -> None:
    random = np.random.default_rng(2)
    logits, log_probs = random.normal(size=(5, 3)), -30 + 4 * random.normal(size=(5, 3))
    ours = distillation_loss(torch.from_numpy(logits), torch.from_numpy(log_probs), temperature)
    assert float(ours) == pytest.approx(oracle.distillation(logits, log_probs, temperature), abs=1e-12)


def test_the_distillation_loss_ignores_what_no_ranking_depends_on() -> None:
    """A constant of a sentence changes no ranking of images, nor, normalised by P(w), one of sentences."""
    random = np.random.default_rng(3)
    logits, log_probs = torch.from_numpy(random.normal(size=(5, 3))), torch.from_numpy(random.normal(size=(5, 3)))
    moved = log_probs + torch.arange(5.0)[:, None]
    torch.testing.assert_close(distillation_loss(logits, log_probs, 1.0), distillation_loss(logits, moved, 1.0))
