"""Every number that a user can set has bounds: each option of each command, and each field of all settings."""

import importlib
import inspect
import math
import pkgutil
import typing
from types import NoneType
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

import limner
from limner import bounds
from limner.apps import cli
from limner.bounds import BeamSize, Bounds, LearningRate, Probability, Rate, bounds_of
from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError
from limner.settings import Settings

QUICK = settings(max_examples=10, deadline=None, derandomize=True)
NUMBERS = st.one_of(
    st.integers(),
    st.integers(-3, 12_000),
    st.integers(20, 3000).map(lambda digits: 10**digits),
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1e20, 1e308, 5e-324, 10**23, True]),
)
VALUES = st.one_of(NUMBERS, st.text(max_size=8), st.none(), st.lists(NUMBERS, max_size=4))
TYPES = {name: kind for name, kind in vars(bounds).items() if typing.get_origin(kind) is typing.Annotated}


def options():
    """Every option and argument of every command that has a number: command, parameter, and what typer knows of it."""
    for command_name, command in cli.find_commands().items():
        for name, parameter in inspect.signature(command.callback, eval_str=True).parameters.items():
            kind, *metadata = typing.get_args(parameter.annotation) or (parameter.annotation,)
            if {int, float} & {kind, *typing.get_args(kind)}:
                yield command_name, name, metadata[0]


def all_settings():
    """Every class of settings."""
    for module in pkgutil.walk_packages(limner.__path__, "limner."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, left = set(), [Settings]
    while left:
        found.add(one := left.pop())
        left += one.__subclasses__()
    return sorted((one for one in found if one.__module__.startswith("limner")), key=lambda one: one.__name__)


def numbers_without_bounds(kind, bounded=False):
    """The types int and float within a type, where no bounds apply to them."""
    if typing.get_origin(kind) is typing.Annotated:
        kind, *metadata = typing.get_args(kind)
        return numbers_without_bounds(kind, bounded or any(isinstance(one, Bounds) for one in metadata))
    if kind in (int, float):
        return [] if bounded else [kind]
    if typing.get_origin(kind) is typing.Literal:
        return []
    parts = [one for one in typing.get_args(kind) if one not in (NoneType, Ellipsis)]
    return [found for part in parts for found in numbers_without_bounds(part)]


def bounds_of_parser(option):
    """The bounds by which a command parses an option."""
    return option.parser and option.parser.__self__


OPTIONS, SETTINGS = list(options()), all_settings()


def test_every_numeric_option_has_bounds():
    assert len(OPTIONS) > 60
    assert [(command, name) for command, name, option in OPTIONS if bounds_of_parser(option) is None] == []


def test_every_numeric_field_of_all_settings_has_bounds():
    assert len(SETTINGS) > 40
    unbounded = [
        f"{one.__name__}.{name}"
        for one in SETTINGS
        for name, hint in typing.get_type_hints(one, include_extras=True).items()
        if name in one.model_fields and numbers_without_bounds(hint)
    ]
    assert unbounded == []


@pytest.mark.parametrize("option", [pytest.param(one, id=f"{command} {name}") for command, name, one in OPTIONS])
@QUICK
@given(value=st.one_of(st.text(max_size=12), NUMBERS))
def test_an_option_accepts_numbers_in_its_bounds_and_explains_others(option, value):
    try:
        number = option.parser(value if isinstance(value, str) else str(value))
    except ValueError as error:
        assert str(error).startswith("expected ")
        assert "\n" not in repr(str(error))
    else:
        bounds = bounds_of_parser(option)
        assert bounds.low <= number <= bounds.high


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__name__)
@settings(QUICK, max_examples=20)
@given(data=st.data())
def test_any_values_of_settings_are_accepted_or_explained_in_one_line(kind, data):
    fields = st.dictionaries(st.sampled_from([*kind.model_fields, "unknown"]), VALUES, min_size=1, max_size=3)
    try:
        parsed = kind.parse(data.draw(fields), "here")
    except SettingsError as error:
        assert str(error).startswith("here: ")
        assert "\n" not in str(error)
    else:
        assert all(math.isfinite(one) for one in vars(parsed).values() if isinstance(one, int | float))


@pytest.mark.parametrize("name", TYPES)
@QUICK
@given(data=st.data())
def test_settings_and_options_accept_the_same_numbers(name, data):
    bound, field = bounds_of(TYPES[name]), TypeAdapter(TYPES[name])
    number = data.draw(st.integers(-10, 2**40) if bound.whole else st.floats())
    try:
        expected = bound.parse(str(number))
    except ValueError:
        with pytest.raises(ValidationError, match="expected"):
            field.validate_python(number)
    else:
        assert field.validate_python(number) == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (BeamSize, "a whole number from 1 to 10,000"),
        (Probability, "a number from 0 to 1"),
        (Rate, "a number from 0 and below 1"),
        (LearningRate, "a number above 0 to 10,000"),
        (Annotated[int, Bounds(4, 4096, step=4)], "a multiple of 4 from 4 to 4,096"),
        (bounds.AnchorSize, "a number from 0.001 to 1,000"),
    ],
)
def test_bounds_in_words(kind, text):
    assert str(bounds_of(kind)) == text


def test_huge_values_are_shortened():
    with pytest.raises(SettingsError) as caught:
        DecodingSettings.parse({"beam_size": 10**5000, "precision": "x" * 10_000})
    assert len(str(caught.value)) < 400
