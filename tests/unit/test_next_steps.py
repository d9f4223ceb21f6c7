"""The last line of a command names the command that usually follows."""

import shlex
from pathlib import Path

import pytest

from limner.apps import cli
from limner.apps.cli.collections import after_import
from limner.apps.cli.features import SMALL_COLLECTION, after_features
from limner.apps.cli.train import after_train
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.features.spec import FeatureSpec
from limner.media.video import FrameSampling

COMMANDS = cli.build_commands()


def collection_of(path: Path, count: int = 2, split: str = "train", **media: str) -> Collection:
    write_items(path, [Item(f"{n}", split, sentences=(ItemSentence("en", "A wall."),), **media) for n in range(count)])
    return Collection.open(path)


def table(name: str, backbone: str, **values: object) -> FeatureSpec:
    return FeatureSpec.parse(
        {"name": name, "kind": "pooled", "shape": (3,), "backbone": backbone, "preprocessing": {}, "weights_sha256": ""}
        | values
    )


def is_accepted(line: str) -> bool:
    _, name, *arguments = shlex.split(line)
    return bool(COMMANDS[name].make_context(name, arguments))  # raises a usage error for options that do not exist


@pytest.mark.parametrize(
    ("media", "command"),
    [
        ({"image": "one.png"}, "limner features {} --backbone efficientnet-lite2"),
        ({"video": "one.mp4"}, "limner features {} --backbone pixels:32 --frames 16"),
        ({"audio": "one.wav"}, "limner features {} --backbone logmel"),
        ({}, "limner recipes"),
    ],
)
def test_after_an_import(media, command, tmp_path):
    folder = tmp_path / "my photos"
    line = after_import(collection_of(folder, **media))
    assert line == command.format(f"'{folder}'")
    assert is_accepted(line)


@pytest.mark.parametrize(
    ("few", "name", "backbone", "recipe"),
    [
        (SMALL_COLLECTION, "efficientnet-lite2", "efficientnet-lite2", "own/photos"),
        (SMALL_COLLECTION, "pixels64", "pixels", "own/photos 'features.tables=[pixels64]'"),
        (2, "pixels64", "pixels", "scenes/mrnn"),
        (2, "mobilenet_v2", "mobilenet_v2", "mao2015/flickr8k"),
        (2, "lite2", "efficientnet-lite2", "mao2015/flickr8k 'features.tables=[lite2]'"),
    ],
)
def test_after_features_of_few_and_many_images(few, name, backbone, recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("limner.apps.cli.features.SMALL_COLLECTION", few)
    line = after_features(collection_of(tmp_path, image="one.png"), [table(name, backbone)])
    assert line.startswith(f"limner train {recipe} --collection {tmp_path} --out runs/")
    assert is_accepted(line)


def test_after_features_that_no_captioner_of_images_reads(tmp_path):
    images = collection_of(tmp_path / "images", split="test", image="one.png")
    assert after_features(images, [table("lite2", "efficientnet-lite2")]) == "limner recipes"  # nothing to train on
    clips = collection_of(tmp_path / "clips", video="one.mp4")
    of_frames = table("x.frames", "pixels", modality="image", frames=FrameSampling().model_dump())
    assert after_features(clips, [of_frames]) == "limner recipes"


def test_after_a_training(tmp_path):
    collection = collection_of(tmp_path, split="val")
    line = after_train(Path("runs/one"), collection, "test", "held-out")
    assert line == f"limner evaluate --model runs/one --collection {tmp_path} --split held-out"
    assert after_train(Path("runs/one"), collection, "val", "held-out").endswith(str(tmp_path))
    assert is_accepted(line)
