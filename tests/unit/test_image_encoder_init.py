"""Initialising a model's image encoder from a run of another model with another vocabulary."""

import pytest
import torch

from limner.errors import RunError, SettingsError
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.runs.recipe import load_recipe
from limner.runs.trained_model import load_trained_model
from limner.storage.tensors import load_tensors
from limner.synthetic.scenes import SceneSettings
from limner.synthetic.storage import generate_collection
from limner.training.loop import train

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
