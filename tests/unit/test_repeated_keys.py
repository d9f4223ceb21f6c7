"""A key that occurs twice in a JSON object or a YAML mapping is refused, whatever reads the file."""

import pytest

from limner.errors import LimnerError, RunError, SettingsError
from limner.files.structured import StructureError, parse_json
from limner.files.yaml_text import parse_yaml
from limner.runs.recipe import load_recipe
from limner.runs.records import RunConfig
from limner.settings import override, read_yaml


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
    assert parse_json('{"a": 1, "b": {"a": 2}}') == {"a": 1, "b": {"a": 2}}


def recipe(folder):
    path = folder / "own.yaml"
    path.write_text("base: mao2015/flickr8k\ntraining:\n  epochs: 3\n  epochs: 300\n")
    return lambda: load_recipe(str(path), [])


def settings_file(folder):
    path = folder / "own.yaml"
    path.write_bytes(b"\xef\xbb\xbftraining:\r\n  seed: 1\r\n  seed: 2\r\n")
    return lambda: read_yaml(path)


def run_config(folder):
    path = folder / "config.json"
    path.write_text('{"recipe": {}, "recipe": {"a": 1}}')
    return lambda: RunConfig.load(path)


def assignment(folder):
    return lambda: override({}, ["model={name: mrnn, name: rnn}"])


@pytest.mark.parametrize(
    ("make", "error", "key"),
    [
        (recipe, SettingsError, "own.yaml: .* line 4: the key 'epochs'"),
        (settings_file, SettingsError, "own.yaml: .* line 3: the key 'seed'"),
        (assignment, SettingsError, "'name'"),
        (run_config, RunError, "'recipe'"),
    ],
)
def test_every_reader_refuses_repeated_keys(tmp_path, make, error, key):
    with pytest.raises(error, match=f"{key} occurs twice"):
        make(tmp_path)()
    assert issubclass(error, LimnerError)
