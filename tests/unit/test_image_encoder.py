"""Image encoders: scaling, pooling over locations, masks of missing images and locations."""

import math

import pytest
import torch

from limner.data.examples import ImageFeatures
from limner.errors import RunError, SettingsError
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.layers.image_encoder import (
    GridEncoder,
    ImageEncoder,
    ImageEncoderSettings,
    location_mask,
    mean_over_locations,
    scale,
)
from limner.runs.recipe import load_recipe
from limner.runs.trained_model import load_trained_model
from limner.storage.tensors import load_tensors
from limner.synthetic.scenes import SceneSettings
from limner.synthetic.storage import generate_collection
from limner.training.loop import train

SETTINGS = ImageEncoderSettings(convnet_width=4, convnet_dim=6)
PRESENT = torch.tensor([True, False])


def test_scaling_of_vectors_and_of_each_location():
    features = torch.randn(2, 3, 5)
    assert scale(features, "none") is features
    torch.testing.assert_close(scale(features, "unit").norm(dim=-1), torch.ones(2, 3))
    torch.testing.assert_close(scale(features, "l2").norm(dim=-1), torch.full((2, 3), math.sqrt(5)))
    standardised = scale(features, "layer")
    torch.testing.assert_close(standardised.mean(-1), torch.zeros(2, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(standardised.var(-1, unbiased=False), torch.ones(2, 3), atol=1e-3, rtol=0)


def test_zero_rows_are_padding_unless_all_rows_are_zero():
    grid = torch.tensor([[[1.0, 0.0], [3.0, 4.0], [0.0, 0.0]], [[0.0, 0.0]] * 3])
    assert location_mask(grid).tolist() == [[True, True, False], [True] * 3]
    torch.testing.assert_close(mean_over_locations(grid), torch.tensor([[2.0, 2.0], [0.0, 0.0]]))


@pytest.mark.parametrize(
    ("shapes", "locations", "dim"),
    [({"pooled": (4,)}, 1, 4), ({"grid": (3, 5)}, 3, 5), ({"maps": (3, 32, 32)}, 4, 16)],
    ids=str,
)
def test_grid_features_are_encoded_to_one_vector_per_location(shapes, locations, dim):
    encoder = GridEncoder(shapes, SETTINGS)
    grid, mask = encoder(ImageFeatures(PRESENT, **{name: torch.rand(2, *shape) for name, shape in shapes.items()}))
    assert (encoder.dim, grid.shape) == (dim, (2, locations, dim))
    assert mask.tolist() == [[True] * locations, [False] * locations]
    assert encoder(ImageFeatures(torch.zeros(2, dtype=torch.bool))) is None


@pytest.mark.parametrize(
    ("encoder_type", "shapes", "settings", "message"),
    [
        (ImageEncoder, {}, SETTINGS, "the recipe names no features"),
        (ImageEncoder, {"maps": (5, 4, 4)}, SETTINGS, "expected at least 5x5"),
        (GridEncoder, {"maps": (5, 9, 9)}, SETTINGS, "expected features of kind 'grid', got maps"),
        (GridEncoder, {"grid": (6, 4)}, ImageEncoderSettings(grid_rnn_dim=3), "a square grid, got 6 locations"),
    ],
)
def test_features_that_do_not_fit_are_named(encoder_type, shapes, settings, message):
    with pytest.raises(SettingsError, match=message):
        encoder_type(shapes, settings)


@pytest.mark.parametrize("encoder_type", [ImageEncoder, GridEncoder])
def test_projected_features_are_relu_of_a_linear_layer(encoder_type):
    settings = ImageEncoderSettings(projection_dim=3, scaling="unit")
    encoder = encoder_type({"pooled": (4,)}, settings)
    pooled = torch.randn(2, 4)
    encoded = encoder(ImageFeatures(torch.ones(2, dtype=torch.bool), pooled=pooled))
    values = encoded if encoder_type is ImageEncoder else encoded[0][:, 0]
    layer = encoder.projection
    expected = (pooled / pooled.norm(dim=-1, keepdim=True)) @ layer.weight.T + layer.bias
    torch.testing.assert_close(values, expected.clamp(min=0))
    assert encoder.dim == 3


def test_every_location_of_a_scanned_grid_depends_on_the_whole_grid():
    encoder = GridEncoder({"grid": (9, 4)}, ImageEncoderSettings(grid_rnn_dim=3))
    grid = torch.randn(1, 9, 4, requires_grad=True)
    scanned, _ = encoder(ImageFeatures(torch.tensor([True]), grid=grid))
    assert scanned.shape == (1, 9, 12)
    for location in range(9):
        assert torch.autograd.grad(scanned[0, location].sum(), grid, retain_graph=True)[0].any(-1).all()


NO_LEARNING = ["training.epochs=1", "training.optimizer={name: sgd, lr: 1e-12, momentum: 0.0}"]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    settings = SceneSettings(train=12, val=3, test=2, size=32, ambiguous=1.0, max_objects=1)
    collection = generate_collection(tmp_path_factory.mktemp("scenes") / "c", settings)
    extract(collection, load_backbone("pixels:32"))
    return collection


@pytest.fixture(scope="module")
def captioner(scenes, tmp_path_factory):
    recipe = load_recipe("scenes/demo-caption", ["features.tables=[pixels32]", "training.epochs=1"])
    return train(recipe, scenes, tmp_path_factory.mktemp("runs") / "captioner")


def translation(encoder, *changes):
    given = ["features.tables=[pixels32]", f"training.pretrained_image_encoder={encoder}", *NO_LEARNING, *changes]
    return load_recipe("scenes/demo-translate", given)


def test_the_translator_starts_from_the_convolutions_of_the_captioner(scenes, captioner, tmp_path, caplog):
    caplog.set_level("INFO", "limner.training.loop")
    run = train(translation(captioner), scenes, tmp_path / "run")
    stored, own = (load_tensors(folder / "model.safetensors") for folder in (captioner, run))
    names = [name for name in own if name.startswith("grid_encoder.convnet.")]
    assert len(names) == 16
    for name in names:
        other = name.replace("grid_encoder", "image_encoder")
        torch.testing.assert_close(own[name], stored[other], rtol=0, atol=1e-9)
    summary = load_trained_model(run).config.provenance["image_encoder"]
    assert summary == f"{captioner}: 16 weights of the convolutions"
    assert f"initial weights of the image encoder: {summary}" in caplog.messages


def test_a_run_is_resumed_with_the_same_image_encoder_only(scenes, captioner, tmp_path):
    run = train(translation(captioner), scenes, tmp_path / "run")
    recipe = translation(captioner)
    other = recipe.model_copy(
        update={"training": recipe.training.model_copy(update={"pretrained_image_encoder": None})}
    )
    with pytest.raises(RunError, match="pretrained_image_encoder"):
        train(other, scenes, run, resume=True)


def test_an_image_encoder_of_another_width_is_refused(scenes, captioner, tmp_path):
    with pytest.raises(SettingsError, match="convolutions have other shapes"):
        train(translation(captioner, "model.image_encoder.convnet_width=8"), scenes, tmp_path / "run")


def test_a_run_without_an_image_encoder_is_refused(scenes, captioner, tmp_path):
    text_only = load_recipe(
        "scenes/demo-translate", ["features.tables=[]", "model.image=[]", "training.lr_factors={}", *NO_LEARNING]
    )
    run = train(text_only, scenes, tmp_path / "text")
    with pytest.raises(SettingsError, match="found none"):
        train(translation(run), scenes, tmp_path / "run")


def test_a_model_without_convolutions_does_not_take_them(captioner, scenes, tmp_path):
    text_only = ["features.tables=[]", "model.image=[]", "training.lr_factors={}"]
    with pytest.raises(SettingsError, match="this model trains no convolutions"):
        train(translation(captioner, *text_only), scenes, tmp_path / "run")
