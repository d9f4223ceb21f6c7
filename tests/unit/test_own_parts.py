"""What a program brings itself: a model class, features, a data set in memory, and a loop over tensors."""

from typing import Literal, get_overloads

import numpy as np
import pytest
import torch
from PIL import Image

import limner
from limner.data.readers import ReaderOptions
from limner.errors import BackboneError, CollectionError, FeatureError, RunError, SettingsError
from limner.generation.captioning import BaseCaptioner
from limner.models import MODELS
from limner.runtime.generators import BaseTranslator


@pytest.fixture
def registry():
    """The registry, which is restored afterwards."""
    known, field = dict(MODELS), limner.Recipe.model_fields["model"]
    annotation = field.annotation
    yield
    MODELS.clear()
    MODELS.update(known)
    field.annotation = annotation
    limner.Recipe.model_rebuild(force=True)


def own_model(model_name="own", **members):
    class Settings(limner.ConditionalLMSettings):
        name: Literal[model_name] = model_name
        width: int = 3

    methods = dict.fromkeys(("encode", "start", "step", "forward"), len)
    return type("OwnModel", (torch.nn.Module,), methods | {"Settings": Settings} | members)


def test_a_registered_model_is_named_in_recipes_and_defined_again(registry):
    for _ in range(2):
        model = limner.register(own_model())
        recipe = limner.Recipe.parse({"model": {"name": "own", "width": 4}})
        assert MODELS[type(recipe.model)] is model and recipe.model.width == 4
    with pytest.raises(SettingsError, match=r"model\.wdith_: unknown key; did you mean 'width'\?"):
        limner.Recipe.parse({"model": {"name": "own", "wdith_": 4}})


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (own_model("mrnn"), "the name 'mrnn' belongs to MRNN"),
        (own_model(Settings=None), "expected a subclass of ConditionalLMSettings, got None"),
        (
            type("NoSteps", (torch.nn.Module,), {"Settings": own_model().Settings}),
            "found no encode, start, step, forward",
        ),
        (type("NoModule", (), {"Settings": own_model().Settings}), "expected a subclass of torch.nn.Module"),
        (own_model(Settings=limner.ConditionalLMSettings), r"Settings\.name: expected a name .*Literal\['mine'\]"),
    ],
)
def test_a_class_that_is_no_model_is_not_registered(model, reason):
    before = dict(MODELS)
    with pytest.raises(SettingsError, match=reason):
        limner.register(model)
    assert before == MODELS


def test_a_run_of_a_model_that_is_not_registered_says_so(trained, tmp_path):
    text = (trained / "config.json").read_text().replace('"name": "mrnn"', '"name": "own"')
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(RunError, match=r"'own' .*limner\.register its model"):
        limner.Captioner.load(tmp_path)


def mean_colour(image):
    return torch.from_numpy(np.array(limner.open_image(image))).float().mean((0, 1)) / 255


def test_a_function_takes_the_place_of_a_backbone(own_tiny, recipe_of, tmp_path):
    backbone = limner.FunctionBackbone("mean", mean_colour, (3,))
    assert limner.extract(own_tiny, backbone).added == len(own_tiny)
    run = limner.train(recipe_of("mean", epochs=1), own_tiny, str(tmp_path / "run"))
    changed = [limner.FunctionBackbone("mean", lambda image: np.zeros(3), (3,), version=text) for text in ("", "2")]
    assert limner.extract(own_tiny, changed[0]).added == 0  # stored features are kept, see docs/python.md
    with pytest.raises(FeatureError, match="mean"):
        limner.extract(own_tiny, changed[1])
    image = own_tiny.image_path(own_tiny.items("val")[0])
    batch = limner.Captioner.load(run, backbone=backbone).batch(images=image)
    torch.testing.assert_close(batch.image.pooled[0], mean_colour(image), atol=1e-3, rtol=0)
    with pytest.raises(FeatureError, match="expected mean pooled 3"):
        limner.load(run, backbone=limner.FunctionBackbone("mean", mean_colour, (3,), version="2"))
    with pytest.raises(BackboneError, match=r"'mean' of a limner\.FunctionBackbone"):
        limner.load(run)
    with pytest.raises(BackboneError, match=r"expected mean pooled 4 .*got the shape \(3,\)"):
        limner.extract(own_tiny, limner.FunctionBackbone("mean", mean_colour, (4,)), name="other")


def test_a_data_set_in_memory(tmp_path):
    red = Image.new("RGB", (9, 7), "red")
    red.save(tmp_path / "red.png")
    rows = {
        "train": [{"image": tmp_path / "red.png", "text": ["a red wall", "a wall"]}, {"image": red, "text": "a wall"}],
        "validation": [{"id": "text", "text": "a blue wall"}],
    }
    assert limner.import_collection("datasets", rows, tmp_path / "collection").sentences == 4
    collection = limner.Collection.open(tmp_path / "collection")
    assert collection.splits() == {"train": 2, "val": 1}
    for item in collection.items("train"):
        assert limner.open_image(collection.image_path(item)).getpixel((0, 0)) == (255, 0, 0)
    for kind, source in (("jsonl", [{"text": "a wall"}]), ("datasets", [])):
        with pytest.raises(CollectionError, match=r"a list of dicts is of the kind 'datasets'|no items to import"):
            limner.import_collection(kind, source, tmp_path / "other", ReaderOptions(split="train"))


def test_a_misspelt_column_is_an_error_and_another_one_is_ignored(tmp_path, caplog):
    for wrong, known in (("splt", "split"), ("language", "lang"), ("texts", "text")):
        rows = [{"id": "a", "text": "a wall", "split": "train", "lang": "en"}]
        rows[0][wrong] = rows[0].pop(known)
        with pytest.raises(CollectionError, match=f"row 0: unknown column '{wrong}'; did you mean '{known}'"):
            limner.import_collection("datasets", rows, tmp_path / "wrong")
    limner.import_collection("datasets", [{"text": "a", "split": "val", "taken": "2020"}], tmp_path / "collection")
    assert "ignored columns: taken" in caplog.messages


def test_the_tensors_of_a_batch_give_the_scores(captioner, trained, tiny):
    sentences, image = ["a red wall", "a wall of a green house"], tiny.image_path(tiny.items("val")[0])
    batch = captioner.batch(sentences, images=image)
    with torch.inference_mode():
        log_probs = captioner.models[0].model(batch).logits.log_softmax(-1)
    totals = (log_probs.gather(-1, batch.target_out[..., None])[..., 0] * batch.target_mask).sum(1)
    scores = limner.Scorer.load(trained).score(image, sentences)
    assert totals.tolist() == pytest.approx([score.log_prob for score in scores], abs=1e-4)
    for empty in (captioner.batch([]), captioner.batch(images=[])):
        assert empty.target_in.shape == (0, 1) and empty.ids == ()
    with pytest.raises(SettingsError, match="got 1 image and 2 sentences"):
        captioner.batch(sentences, images=[image])


def test_a_batch_of_a_translator_has_source_sentences(translator):
    batch = translator.batch(sources=["eins zwei", "eins"])
    assert batch.source_mask.sum(1).tolist() == [2, 1]
    assert batch.target_out.tolist() == [[limner.SPECIAL_TOKENS.eos]] * 2
    batch = translator.batch(["one", "two"], sources=["eins", "zwei"])
    assert translator.models[0].model(batch).logits.shape[:2] == (2, 2)
    with pytest.raises(SettingsError, match="expected 2 source sentences, got 1"):
        translator.batch(["one", "two"], sources=["eins"])


@pytest.mark.parametrize(
    "image",
    ["red.png", b"bytes", Image.new("RGB", (9, 7)), np.zeros((7, 9, 3), np.uint8)],
    ids=["path", "bytes", "pillow", "array"],
)
def test_one_image_in_place_of_a_list_is_an_error(captioner, image):
    for method in (captioner.describe, captioner.tags):
        with pytest.raises(SettingsError, match="expected a list of images, got one image"):
            method(image)


def test_type_checkers_know_the_built_in_models():
    for typed, options in zip(get_overloads(limner.load), ({"lang": "de"}, {"to": "de"}), strict=False):
        base = {"BaseCaptioner": BaseCaptioner, "BaseTranslator": BaseTranslator}[typed.__annotations__["return"]]
        assert isinstance(limner.load(**options), base)
    assert len(get_overloads(limner.load)) == 3
