"""The list of recipes, and a recipe shown as YAML."""

import json
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
from limner.features.store import TABLE_OPTIONS
from limner.media.video import FrameSampling
from limner.runs.recipe import Recipe, load_recipe, recipe_names
from limner.runs.recipe_summary import summarise_recipe, summarise_recipes


def test_the_list_names_every_recipe_of_a_folder_with_its_needs(command_line):
    status, printed, _ = command_line("recipes", "scenes")
    lines = printed.splitlines()
    names = [name for name in recipe_names() if name.startswith("scenes/")]
    assert status == 0
    assert [line.partition(":")[0] for line in lines[:-1:2]] == names
    assert lines[2 * names.index("scenes/mrnn") + 1] == "  needs: sentences in en; features pixels64"
    assert lines[-1].startswith(f"{len(names)} recipes; ")


def test_a_shown_recipe_is_a_recipe_file(command_line, tmp_path):
    status, printed, _ = command_line("recipes", "mao2015/flickr8k", "training.epochs=3")
    file = tmp_path / "mine.yaml"
    file.write_text(printed)
    assert status == 0
    assert load_recipe(str(file), []) == load_recipe("mao2015/flickr8k", ["training.epochs=3"])
    comments = [line.removeprefix("# ") for line in printed.splitlines() if line.startswith("#")]
    assert comments[2].startswith("limner features COLLECTION ")
    assert comments[3] == "limner train mao2015/flickr8k training.epochs=3 --collection COLLECTION --out RUN"


def test_as_json(command_line):
    _, printed, _ = command_line("recipes", "own/photos", "--json")
    shown = json.loads(printed)
    assert Recipe.parse(shown["settings"]) == load_recipe("own/photos", [])
    assert shown["needs"] == ["sentences in en", "features efficientnet-lite2"]
    _, printed, _ = command_line("recipes", "sounds", "--json")
    assert [one["name"] for one in json.loads(printed)] == ["sounds/mlbl-b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["own/photo"], "no recipe 'own/photo'"),
        (["own/photo"], "did you mean 'own/photos'?"),
        (["scenes", "training.epochs=3"], "'scenes' names several; name one"),
        (["own/photos", "training.epoch=3"], "did you mean 'epochs'?"),
    ],
)
def test_mistakes_are_explained(command_line, arguments, message):
    status, printed, errors = command_line("recipes", *arguments)
    assert (status, printed) == (1, "")
    assert message in errors and errors.count("\n") == 1


def test_every_recipe_has_a_description_and_commands_that_make_what_it_needs():
    commands = cli.build_commands()
    for summary in summarise_recipes(recipe_names()):
        assert summary.description, summary.name
        tables = load_recipe(summary.name, []).features.tables
        assert set(tables) <= set(TABLE_OPTIONS), summary.name
        assert len(summary.commands) == 1 + len({table.split(".")[0] for table in tables}), summary.name
        for command in summary.commands:
            _, name, *arguments = shlex.split(command)
            commands[name].make_context(name, arguments)  # raises a usage error for options that do not exist


def test_needs_name_labels_regions_translations_and_the_run_to_start_from():
    def needs(name: str) -> tuple[str, ...]:
        return summarise_recipe(name, load_recipe(name, [])).needs

    assert needs("lecture/sentiment") == ("labels of sentences in en",)
    assert needs("lecture/tracking")[0] == "positions of an object in each frame"
    assert needs("johnson2016/scenes")[0] == "regions with descriptions in en"
    assert needs("calixto2017/nmt-bt") == ("sentences in en with translations in de and back-translated ones",)
    assert needs("rennie2017/mrnn-flickr8k")[2] == "a run of a captioner to start from"


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
