"""The list of recipes, and a recipe shown as YAML."""

import json
import shlex

import pytest

from limner.apps import cli
from limner.features.store import TABLE_OPTIONS
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
        assert len(summary.commands) == 1 + bool(tables), summary.name
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
