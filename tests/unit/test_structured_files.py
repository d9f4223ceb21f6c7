"""YAML and JSON: depth, references and size are bounded, and every fault is one line."""

import time

import pytest

from limner.files.structured import MAX_DEPTH, StructureError, parse_json
from limner.files.yaml_text import parse_yaml

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
