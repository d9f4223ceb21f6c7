"""Fixtures: a tiny collection that is learned in a second and models trained on it (shared, read-only)."""

import resource
import shutil
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from known_backbone import KnownBackbone
from PIL import Image
from toy_translation import image_collection, learn, text_collection

import limner
from limner.apps import cli
from limner.data.collection import Collection, write_items
from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.generation.rules import CaptionRules
from limner.inference.features import open_features
from limner.runs.concepts import Concept, Concepts, ConceptsFile
from limner.runs.recipe import Recipe
from limner.runs.trained_model import load_trained_model
from limner.training import stages
from limner.training.loop import train

COLOURS = {"red": (250, 20, 20), "green": (20, 250, 20), "blue": (20, 20, 250), "white": (250, 250, 250)}
SIZES = {"train": 32, "val": 8, "test": 8}


class ColourBackbone(KnownBackbone):
    """The mean colour, from 0 to 1."""

    def __init__(self, name="colour", version="1"):
        super().__init__({"name": name, "kind": "pooled", "shape": (3,)}, version=version)

    def __call__(self, pixels):
        colours = pixels[:, 0].reshape(len(pixels), 16, 3).mean(1) / 255
        return {"pooled": colours.astype(np.float16)}


def tiny_items(folder):
    """Images of one colour on the left and one on the right; each split has a word of its own."""
    random = np.random.default_rng(5)
    for split, size in SIZES.items():
        for number in range(size):
            names = [list(COLOURS)[k] for k in (number % 4, random.integers(4))]
            image_ = Image.new("RGB", (16, 16), COLOURS[names[0]])
            image_.paste(COLOURS[names[1]], (12, 0, 16, 16))
            id_ = f"{split}{number}"
            image_.save(folder / f"{id_}.png")
            texts = (f"a {names[0]} wall", f"look , a {names[0]} wall")
            if number == 0:
                texts += (f"only {split} says {split}word",)
            german = ItemSentence("de", "eine wand", 1)
            sentences = (*(ItemSentence("en", text, k) for k, text in enumerate(texts)), german)
            yield Item(id_, split, image=f"{id_}.png", sentences=sentences)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Three splits in two languages, with features 'colour' (a vector) and 'pixels16' (maps)."""
    folder = tmp_path_factory.mktemp("tiny")
    write_items(folder, tiny_items(folder))
    collection = Collection.open(folder)
    extract(collection, ColourBackbone())
    extract(collection, load_backbone("pixels:16"))
    return collection


@pytest.fixture
def own_tiny(tiny, tmp_path):
    """A copy of the tiny collection that a test may change."""
    return Collection.open(shutil.copytree(tiny.path, tmp_path / "collection"))


def tiny_recipe(features="colour", model=None, **training):
    """Recipe of a small m-RNN for the tiny collection."""
    sizes = {"embedding_dim": 8, "hidden_dim": 12, "multimodal_dim": 16}
    sizes["image_encoder"] = {"convnet_width": 4, "convnet_dim": 12}
    chosen = {"epochs": 4, "batch_size": 16, "optimizer": {"name": "adamw", "lr": 0.02}, "precision": "fp32"}
    return Recipe.parse(
        {
            "features": {"tables": [features] if features else []},
            "model": {"name": "mrnn", **sizes, **(model or {})},
            "training": {**chosen, **training},
            "decoding": {"max_length": 12},
        }
    )


@pytest.fixture(scope="session")
def recipe_of():
    """Factory of small recipes: recipe_of(features, model, **training)."""
    return tiny_recipe


@pytest.fixture(scope="session")
def backbone_of():
    """Factory of backbones that compute the mean colour: backbone_of(name, version)."""
    return ColourBackbone


@pytest.fixture(scope="session")
def trained(tiny, tmp_path_factory):
    """A run trained on the pixels of the tiny collection."""
    recipe = tiny_recipe("pixels16", epochs=30, validate_every=5)
    return train(recipe, tiny, tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="session")
def captioner(trained):
    """The captioner of that run."""
    return limner.load(trained)


@pytest.fixture(scope="session")
def models(trained):
    """The captioner of that run, served as the model 'tiny'."""
    from running_service import captioners

    return captioners(trained)


@pytest.fixture(scope="session")
def trained_on_colours(tiny, tmp_path_factory):
    """A run trained on the pooled features of the tiny collection."""
    recipe = tiny_recipe("colour", epochs=20, validate_every=5)
    return train(recipe, tiny, tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="session")
def model(trained_on_colours):
    """The model trained on the pooled features of the tiny collection."""
    return load_trained_model(trained_on_colours)


@pytest.fixture(scope="session")
def examples(model, tiny):
    """Examples of the test split for that model."""
    return Examples.of_split(tiny, "test", model.target, open_features(model, tiny), max_tokens=80)


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory):
    """A run that has learned the toy translation task; its collection is beside it."""
    folder = tmp_path_factory.mktemp("toy")
    return learn(text_collection(folder / "collection"), folder / "run")


@pytest.fixture(scope="session")
def translator(toy_run):
    """The translator of that run."""
    return limner.load(toy_run)


@pytest.fixture(scope="session")
def toy_image_run(tmp_path_factory):
    """A run that needs the image for one ambiguous word; the images are in its collection, beside it."""
    folder = tmp_path_factory.mktemp("pictures")
    return learn(image_collection(folder / "collection"), folder / "run", image=("attention",))


@pytest.fixture
def scripted(monkeypatch):
    """Replace the validation scores by given values."""

    def play(*values, metric="perplexity"):
        script = iter(values)
        monkeypatch.setattr(stages, "validate", lambda *_: {metric: next(script)})

    return play


@pytest.fixture
def file_size_limit():
    """Context in which files can only grow to a number of bytes, which fails like a full disk: file_size_limit(200)."""

    @contextmanager
    def limited(size):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture
def command_line(capsys, monkeypatch):
    """Calls `limner` in this process: its exit status, output and messages."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["limner", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return call


@pytest.fixture(scope="session")
def colour_concepts():
    """Factory of rules whose concepts are colours: colour_concepts(red=20, blue=0) sees no red, and blue everywhere."""
    names = ("red", "green", "blue", "white", "wood", "photograph")
    concepts = tuple(
        Concept(name=name, kind="colour", sentence=f"a photo of {name}" if name != "photograph" else "")
        for name in names
    )
    forms = {name: (column,) for column, name in enumerate(names[:-1])}
    file = ConceptsFile(lang="en", backbone_sha256="1", photograph=5, concepts=concepts, rates=(0.2,) * 6, names=forms)
    weight = np.array([[20, -20, -20], [-20, 20, -20], [-20, -20, 20], [8, 8, 8], [0, 0, 0], [0, 0, 0]], np.float32)

    def rules(**logits):
        bias = np.array([-5, -5, -5, -18, -20, 20], np.float32)
        changed = weight.copy()
        for name, value in logits.items():
            changed[names.index(name)], bias[names.index(name)] = 0, 10 if value == 0 else -value
        concepts = Concepts(file, changed, bias)
        return CaptionRules(concepts, concepts)

    return rules
