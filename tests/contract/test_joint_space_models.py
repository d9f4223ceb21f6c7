"""The contract of models that embed images and sentences in one space; they are no language models."""

import dataclasses

import pytest
import torch
from models import VOCAB, Case, batch, example

from limner.data.examples import collate
from limner.models import build_model
from limner.models.protocols import ModelInputs
from limner.models.two_tower import TwoTower, TwoTowerSettings
from limner.storage.tensors import load_tensors, save_tensors
from limner.training.matching import contrastive_loss, softmax_loss


def _case(name: str, image: dict[str, tuple[int, ...]], **changes: object) -> Case:
    sizes = {"word_dim": 5, "hidden_dim": 6, "joint_dim": 7, "image_encoder": {"convnet_width": 4}}
    return Case(name, TwoTowerSettings.model_validate({**sizes, **changes}), image)


CASES = [
    _case("final", {"pooled": (4,)}),
    _case("mean", {"grid": (3, 4)}, pooling="mean", image_hidden_dim=8),
    _case("words", {"pooled": (4,)}, pooling="words"),
    _case("bidirectional", {"pooled": (4,)}, bidirectional=True, layers=2, cell="lstm"),
    _case("bidirectional-mean", {"maps": (3, 16, 16)}, bidirectional=True, pooling="mean"),
]
pytestmark = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
OWNERS = torch.arange(4)


def build(case: Case) -> TwoTower:
    torch.manual_seed(1)
    model = build_model(case.settings, ModelInputs(VOCAB, case.image)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def loss(model: TwoTower, data) -> torch.Tensor:
    cosines = model.pair_scores(data.image, data)
    logits = model.log_sharpness.exp() * cosines
    return contrastive_loss(cosines, OWNERS, 0.2, hardest=True) + softmax_loss(logits, OWNERS, data.target_out)


@torch.no_grad()
def test_vectors_have_unit_length_and_scores_are_their_products(case: Case) -> None:
    model, data = build(case), batch(case)
    images, sentences = model.image_vector(data.image), model.sentence_vector(data)
    torch.testing.assert_close(images.norm(dim=1), torch.ones(4))
    torch.testing.assert_close(sentences.norm(dim=1), torch.ones(4))
    torch.testing.assert_close(model.pair_scores(data.image, data), sentences @ images.t())


@torch.no_grad()
def test_padding_batch_composition_and_order_do_not_change_vectors(case: Case) -> None:
    model, lengths = build(case), (3, 1, 5, 0)
    data = batch(case, lengths)
    for row, length in enumerate(lengths):
        alone = collate([example(case, row, length)])
        torch.testing.assert_close(model.sentence_vector(alone)[0], model.sentence_vector(data)[row])
        torch.testing.assert_close(model.image_vector(alone.image)[0], model.image_vector(data.image)[row])


@torch.no_grad()
def test_the_order_of_the_words_matters_to_recurrent_encoders(case: Case) -> None:
    model, data = build(case), batch(case, (5, 5, 5, 5))
    data.target_in[0, 1:] = torch.tensor([4, 5, 6, 7, 8])
    other = dataclasses.replace(data, target_in=data.target_in.clone())
    other.target_in[0, 1:] = torch.tensor([8, 7, 6, 5, 4])
    same = torch.allclose(model.sentence_vector(data)[0], model.sentence_vector(other)[0])
    assert same == (case.settings.pooling == "words")


def test_every_parameter_gets_a_gradient(case: Case) -> None:
    model, data = build(case).train(), batch(case)
    loss(model, data).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@torch.no_grad()
def test_a_missing_image_gives_a_vector(case: Case) -> None:
    model = build(case)
    lone = collate([example(case, 0, 3), example(case, 0, 3, with_image=False)])
    vectors = model.image_vector(lone.image)
    assert torch.isfinite(vectors).all() and not torch.allclose(vectors[0], vectors[1])


@torch.no_grad()
def test_weights_round_trip(case: Case, tmp_path) -> None:
    model, data = build(case), batch(case)
    save_tensors(tmp_path / "model.safetensors", model.state_dict())
    other = build_model(case.settings, ModelInputs(VOCAB, case.image)).eval()
    other.load_state_dict(load_tensors(tmp_path / "model.safetensors"))
    torch.testing.assert_close(other.pair_scores(data.image, data), model.pair_scores(data.image, data), rtol=0, atol=0)


def test_one_batch_can_be_overfitted(case: Case) -> None:
    torch.manual_seed(0)
    model, data = build_model(case.settings, ModelInputs(VOCAB, case.image)).train(), batch(case)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        value = contrastive_loss(model.pair_scores(data.image, data), OWNERS, 0.2, hardest=True)
        if float(value.detach()) == 0:
            break
        value.backward()
        optimizer.step()
    assert float(value.detach()) < 0.02
