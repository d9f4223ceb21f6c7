"""YAML and JSON: depth, references and size are bounded, repeated keys are refused, and every fault is one line."""

import time

import pytest

from limner.errors import SettingsError
from limner.files.structured import MAX_DEPTH, StructureError, parse_json
from limner.files.yaml_text import parse_yaml
from limner.settings import override, read_yaml

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


def test_references_and_merged_keys_are_read():
    assert parse_yaml("a: &a {x: 1}\nb:\n  <<: *a\n  y: 2\n") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}
    assert parse_yaml("") is None


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
    assert parse_json('{"a": 1, "b": {"a": 2}}') == {"a": 1, "b": {"a": 2}}


def test_every_reader_refuses_repeated_keys(tmp_path):
    """Recipes, records and corpora: `tests/hostile`; here the line in a file of Windows, and an assignment."""
    (tmp_path / "own.yaml").write_bytes(b"\xef\xbb\xbftraining:\r\n  seed: 1\r\n  seed: 2\r\n")
    with pytest.raises(SettingsError, match=r"own\.yaml: .* line 3: the key 'seed' occurs twice"):
        read_yaml(tmp_path / "own.yaml")
    with pytest.raises(SettingsError, match="'name' occurs twice"):
        override({}, ["model={name: mrnn, name: rnn}"])
