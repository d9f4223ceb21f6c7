"""Settings: strict keys, error locations, changes from the command line, and recipes."""

import re
import time
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

import limner
from limner.apps.reproduce import find_table
from limner.apps.reproduce.tables import property_tables, published_tables
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.data.readers import read_source
from limner.errors import LimnerError, SettingsError, counted, did_you_mean
from limner.features.encoders.load import load_backbone
from limner.features.store import FeatureTable
from limner.files.structured import MAX_DEPTH, StructureError, parse_json
from limner.files.yaml_text import parse_yaml
from limner.metrics import require_metrics
from limner.runs.recipe import Recipe, load_recipe, recipe_folder, recipe_names
from limner.settings import override, read_yaml

MRNN = {"name": "mrnn"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model": {"name": "mrnn", "hiden_dim": 5}},
            "model.hiden_dim: unknown key; did you mean 'hidden_dim'? (got 5)",
        ),
        ({"model": {"hidden_dim": 5}}, "model: expected model.name, which selects"),
        ({"trainning": {}, "model": MRNN}, "trainning: unknown key; did you mean 'training'?"),
        ({"model": {"name": "mrrn"}}, "did you mean 'mrnn'?"),
        ({"model": MRNN, "training": {"precision": "fp31"}}, "did you mean 'fp32'? (got 'fp31')"),
        ({"model": MRNN, "training": {"metric": "blue4"}}, "did you mean 'bleu4'? (got 'blue4')"),
        ({"model": MRNN, "training": {"epohcs": 1}}, "training.epohcs: unknown key; did you mean 'epochs'?"),
        ({"model": MRNN, "training": {"optimizer": {"name": "sgd", "momentun": 0}}}, "did you mean 'momentum'?"),
        ({"model": MRNN, "data": {"xyz": 0}}, "data.xyz: unknown key; expected one of lang, source_lang"),
        ({}, "model: Field required"),
        ({"model": {**MRNN, "variant": "mRNN"}}, "model.variant: Input should be 'm-RNN', 'RNN-base'"),
        ({"model": {**MRNN, "dropout": 1.0}}, "model.dropout: expected a number from 0 and below 1 (got 1.0)"),
        ({"model": MRNN, "training": {"epochs": "many"}}, "training.epochs: expected a whole number from 1 to"),
        ({"model": MRNN, "training": {"optimizer": {"lr": 1}}}, "training.optimizer: expected"),
        ({"model": MRNN, "training": {"optimizer": {"name": "adm"}}}, "training.optimizer: expected a name out of"),
        ({"model": MRNN, "training": {"optimizer": {"name": "sgd", "betas": [0, 0]}}}, "training.optimizer.betas"),
        ({"model": {**MRNN, "variant": "visInRnn-both-shared"}}, "multimodal_dim (512) must equal hidden_dim (256)"),
        ({"model": MRNN, "text": {"lang": "de"}}, "text.lang is 'de' and data.lang is 'en'"),
        ({"model": MRNN, "training": {"optimizer": "adam"}}, "optimizer: expected a mapping of keys to values (got"),
        ({"model": MRNN, "data": {"lang": "klingon"}, "text": {"tokenise": "moses"}}, "klingon"),
        (
            {"model": MRNN, "training": {"train_on_val_epochs": 3, "schedule": {"name": "linear"}}},
            "training: train_on_val_epochs=3 needs the schedule 'constant' or 'exponential', found 'linear'",
        ),
        (
            {"model": MRNN, "training": {"train_on_val_epochs": 1, "schedule": {"name": "cosine"}}},
            "change the schedule, or set train_on_val_epochs=0",
        ),
        ({"model": MRNN, "decoding": {"n_best": 4}}, "n_best 4 is above beam_size 1"),
    ],
)
def test_invalid_keys_are_named(values, message):
    with pytest.raises(SettingsError) as caught:
        Recipe.parse(values, where="my.yaml")
    assert str(caught.value).startswith("my.yaml: ")
    assert message in str(caught.value)


def test_the_language_of_the_data_is_that_of_the_text():
    recipe = load_recipe("scenes/mrnn", ["data.lang=de"])
    assert recipe.text.lang == recipe.data.lang == "de"
    assert Recipe.parse({"model": MRNN, "data": {"lang": "ja"}, "text": {"tokenise": "space"}}).text.lang == "ja"


def test_all_invalid_keys_are_reported():
    with pytest.raises(SettingsError, match=r"model\.a: .*; model\.b: "):
        Recipe.parse({"model": {**MRNN, "a": 1, "b": 2}})


def test_settings_survive_json():
    recipe = load_recipe("scenes/mrnn", [])
    assert Recipe.parse(recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("a.b=5", {"a": {"b": 5, "c": [1]}}),
        ("a.c=[2, 3]", {"a": {"b": 1, "c": [2, 3]}}),
        ("d.e.f=1e-3", {"a": {"b": 1, "c": [1]}, "d": {"e": {"f": "1e-3"}}}),  # YAML's text; settings read a number
        ("a=null", {"a": None}),
        ("a.b=x=y", {"a": {"b": "x=y", "c": [1]}}),
        ("a.b=", {"a": {"b": None, "c": [1]}}),
    ],
)
def test_assignments(assignment, expected):
    values = {"a": {"b": 1, "c": [1]}}
    assert override(values, [assignment]) == expected
    assert values == {"a": {"b": 1, "c": [1]}}


def test_later_changes_win():
    assert override({}, ["a=1", "a=2"]) == {"a": 2}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.epochs", "'training.epochs': expected key=value, for example training.epochs=5"),
        ("=5", "'=5': expected key=value"),
        ("a.b.c=5", "'a.b.c=5': 'b' is a single value without keys"),
        ("a={", "'a={': the value cannot be read as YAML"),
    ],
)
def test_invalid_assignments(assignment, message):
    with pytest.raises(SettingsError, match="^" + message.replace("{", r"\{")):
        override({"a": {"b": 1}}, [assignment])


def test_a_change_of_a_recipe():
    recipe = load_recipe(
        "scenes/mrnn",
        ["training.optimizer.lr=1e-3", "model.variant=visInRnn", "training.patience=3", "training.precision=fp32"],
    )
    assert recipe.training.optimizer.lr == 0.001
    assert (recipe.model.variant, recipe.training.patience) == ("visInRnn", 3)
    with pytest.raises(SettingsError, match=r"^scenes/mrnn: model\.hiden_dim: unknown key"):
        load_recipe("scenes/mrnn", ["model.hiden_dim=5"])


def test_recipes_named_after_a_paper_have_its_method():
    greedy = load_recipe("rennie2017/mrnn-flickr8k-greedy", []).training.scst
    assert greedy is not None and (greedy.baseline, greedy.samples) == ("greedy", 1)
    photos, videos = (load_recipe(f"venugopalan2015/{name}", []) for name in ("photos", "videos"))
    assert photos.model == videos.model and photos.text == videos.text
    assert (videos.model.frames, videos.model.frame_encoder_dim) == ("mean", 0)
    assert not [name for name in recipe_names() if name.startswith("venugopalan2015/") and "clips" in name]


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_parses(name):
    recipe = load_recipe(name, [])
    assert recipe.description
    again = recipe_folder() / f"{name}.yaml"
    assert load_recipe(str(again), []) == recipe


def test_an_unknown_recipe_is_an_error_that_names_the_most_similar_one():
    assert {"mao2015/flickr8k", "scenes/mrnn"} <= set(recipe_names())
    with pytest.raises(
        SettingsError, match=r"no recipe 'mao2015/flikr8k': expected a \.yaml file .*did you mean 'mao2015/flickr8k'\?"
    ):
        load_recipe("mao2015/flikr8k", [])


def test_a_missing_recipe_file(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.yaml: no such file$"):
        load_recipe(str(tmp_path / "none.yaml"), [])


def test_a_recipe_overrides_its_base(tmp_path):
    (tmp_path / "base.yaml").write_text(
        yaml.safe_dump(
            {
                "description": "base",
                "model": {"name": "lbl", "word_dim": 7, "context": 3},
                "training": {"epochs": 3, "optimizer": {"name": "sgd", "momentum": 0.5}, "weight_decay": {"*": 0.1}},
            }
        )
    )
    path = tmp_path / "own.yaml"
    own = {"word_dim": 9}, {"optimizer": {"name": "adamw", "lr": 0.1}, "weight_decay": {"words": 0.2}}
    path.write_text(yaml.safe_dump({"base": str(tmp_path / "base.yaml"), "model": own[0], "training": own[1]}))
    recipe = load_recipe(str(path), [])
    assert (recipe.model.word_dim, recipe.model.context, recipe.training.epochs) == (9, 3, 3)
    assert recipe.training.optimizer.name == "adamw"
    assert recipe.training.weight_decay == {"words": 0.2}
    path.write_text(yaml.safe_dump({"base": "nobody/knows"}))
    with pytest.raises(SettingsError, match="no recipe 'nobody/knows'"):
        load_recipe(str(path), [])


def test_a_base_file_is_relative_to_the_recipe(tmp_path, monkeypatch):
    (tmp_path / "deeper").mkdir()
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({"model": {**MRNN, "hidden_dim": 7}}))
    (tmp_path / "deeper" / "middle.yaml").write_text(yaml.safe_dump({"base": "../base.yaml"}))
    (tmp_path / "own.yml").write_text(yaml.safe_dump({"base": "deeper/middle.yaml"}))
    monkeypatch.chdir("/")  # for every working directory
    assert load_recipe(str(tmp_path / "own.yml"), []).model.hidden_dim == 7


@pytest.mark.parametrize("schedule", ["constant", "exponential"])
def test_schedules_with_a_final_rate_above_zero(schedule):
    recipe = Recipe.parse({"model": MRNN, "training": {"train_on_val_epochs": 3, "schedule": {"name": schedule}}})
    assert (recipe.training.train_on_val_epochs, recipe.training.schedule.name) == (3, schedule)


def test_every_documented_recipe_exists():
    root = Path(__file__).parents[2]
    known = {*recipe_names(), *published_tables(), *property_tables()}
    known |= {name.rsplit("/", depth)[0] for name in known for depth in (1, 2)}  # and the folders
    folders = "|".join(sorted({name.split("/")[0] for name in recipe_names()}))
    named = re.compile(rf"(?<![\w/.-])((?:{folders})/[a-z][\w/-]*\w)(?![\w./-]*\.(?:yaml|jpg|png|md|csv|tsv|py))")
    missing = {
        (page.name, name)
        for page in (root / "README.md", *root.glob("docs/**/*.md"))
        for name in named.findall(page.read_text(encoding="utf-8"))
        if name not in known
    }
    assert not missing


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGED_LAUGHS = "a0: &a0 {x: 1, y: 2}\n" + "".join(
    f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 10_000, "within each other"),
        ("a: " + "[" * 65 + "]" * 65, "within each other"),
        ("? " * 2_000, "within each other"),
        ("a: &a [*a]", "within each other"),
        ("a: &a {b: *a}", "within each other"),
        (LAUGHS, "expected at most 50,000 values"),
        (MERGED_LAUGHS, "expected at most 50,000 values"),
        ("a: " + "x" * 300_000, "expected at most 262,144 bytes"),
        ("a: 2024-99-99", "month must be in 1..12"),
        ("a: " + "9" * 5_000, "digits"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("? [a]\n: 1", "line 1: found unhashable key"),
        ("a: \x00", "not allowed"),
    ],
)
def test_hostile_yaml_is_refused_at_once(text, message):
    begun = time.perf_counter()
    with pytest.raises(StructureError, match=message) as caught:
        parse_yaml(text)
    assert time.perf_counter() - begun < 5
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "within each other"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "within each other"),
        ('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), "within each other"),
        ("9" * 5_000, "digits"),
        (b"\xff\xfe{}"[:3], "not valid JSON"),
        ("{", "not valid JSON: Expecting property name"),
    ],
)
def test_hostile_json_is_refused_at_once(text, message):
    with pytest.raises(StructureError, match=message) as caught:
        parse_json(text)
    assert "\n" not in str(caught.value)


def test_json_of_the_greatest_depth_is_read():
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)


@pytest.mark.parametrize("text", ['{"a": 1, "b": {"c": 1, "c": 2}}', '[{"c": 1, "c": 1}]'])
def test_json_with_a_repeated_key_is_refused(text):
    with pytest.raises(StructureError, match="the key 'c' occurs twice in one mapping; remove one of the two"):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "line"), [("c: 1\nb: 2\nc: 3", 3), ("model:\n  c: mrnn\n  c: rnn", 3), ("- {c: 1, c: 2}", 1)]
)
def test_yaml_with_a_repeated_key_is_refused(text, line):
    with pytest.raises(StructureError, match=f"line {line}: the key 'c' occurs twice") as caught:
        parse_yaml(text)
    assert caught.value.line == line


def test_merged_keys_may_be_overridden():
    text = "base: &base {a: 1, b: 2}\nown: {<<: *base, b: 3}\nagain: {<<: *base, a: 0}"
    assert parse_yaml(text)["own"] == {"a": 1, "b": 3}
    assert parse_yaml("") is None
    assert parse_json('{"a": 1, "b": {"a": 2}}') == {"a": 1, "b": {"a": 2}}


def test_every_reader_refuses_repeated_keys(tmp_path):
    """Recipes, records and corpora: `tests/hostile`; here the line in a file of Windows, and an assignment."""
    (tmp_path / "own.yaml").write_bytes(b"\xef\xbb\xbftraining:\r\n  seed: 1\r\n  seed: 2\r\n")
    with pytest.raises(SettingsError, match=r"own\.yaml: .* line 3: the key 'seed' occurs twice"):
        read_yaml(tmp_path / "own.yaml")
    with pytest.raises(SettingsError, match="'name' occurs twice"):
        override({}, ["model={name: mrnn, name: rnn}"])


def test_one_thing_is_in_the_singular():
    assert [counted(number, "item") for number in (0, 1, 2000)] == ["0 items", "1 item", "2,000 items"]
    assert [counted(number, "file is", "files are") for number in (1, 2)] == ["1 file is", "2 files are"]


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("tset", ["train", "val", "test"], "; did you mean 'test'?"),
        ("BLEU4", ["bleu4", "bleu3"], "; did you mean 'bleu4'?"),
        ("dgo", ["go", "dog", "ego"], "; did you mean 'dog'?"),
        ("photograph", ["train", "val"], ""),
        ("", [], ""),
    ],
)
def test_the_most_similar_name_is_suggested(name, known, expected):
    assert did_you_mean(name, known) == expected


@pytest.fixture
def collection(tmp_path) -> Collection:
    write_items(tmp_path, [Item("1", "train", image="1.jpg", sentences=(ItemSentence("en", "A dog ."),))])
    (tmp_path / "features" / "lite2.lance").mkdir(parents=True)
    return Collection.open(tmp_path)


@pytest.mark.parametrize(
    ("call", "similar"),
    [
        (lambda collection: collection.items("trian"), "train"),
        (lambda collection: FeatureTable.open(collection, "lite3"), "lite2"),
        (lambda collection: read_source("flikr", collection.path), "flickr"),
        (lambda _: load_backbone("eficientnet-lite2"), "efficientnet-lite2"),
        (lambda _: load_backbone("efficientnet-lite-2"), "efficientnet-lite2"),
        (lambda _: load_backbone("pixel:64"), "pixels:64"),
        (lambda _: require_metrics(["blue4"]), "bleu4"),
        (lambda _: find_table("mao2015/tabel5"), "mao2015/table5"),
        (lambda _: limner.load_recipe("mao2015/flikr8k", []), "mao2015/flickr8k"),
    ],
)
def test_every_unknown_name_is_answered_by_the_most_similar_one(call, similar, collection, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # the variable is read once, at the import
    with pytest.raises(LimnerError, match=rf"did you mean '{similar}'\?"):
        call(collection)


def test_the_package_names_its_version():
    assert limner.__version__.count(".") == 2
