"""Options that are made from types and docstrings: their names and bounds are those of the settings they change."""

from typing import get_type_hints

import pytest
import typer

from limner.apps import cli
from limner.apps.cli.options import DecodingOptions, SamplingOptions, option_texts
from limner.apps.cli.serve import ServerOptions
from limner.apps.server.settings import ServerSettings
from limner.bounds import Bounds
from limner.decoding.settings import DecodingSettings, SampleSettings

GROUPS = [(DecodingOptions, DecodingSettings), (SamplingOptions, SampleSettings), (ServerOptions, ServerSettings)]
COMMANDS = typer.main.get_command(cli.app).commands


def bounds(hint):
    """Bounds in a type, with those of the parts of a union."""
    parts = [hint, *getattr(hint, "__args__", ())]
    return {one for part in parts for one in getattr(part, "__metadata__", ()) if isinstance(one, Bounds)}


@pytest.mark.parametrize(("options", "settings"), GROUPS)
def test_options_have_the_names_and_bounds_of_the_settings(options, settings):
    of_options = get_type_hints(options, include_extras=True)
    of_settings = get_type_hints(settings, include_extras=True)
    assert of_options and set(option_texts(options.__doc__)[1]) == set(of_options)
    assert {name: bounds(hint) for name, hint in of_options.items()} == {
        name: bounds(of_settings[name]) for name in of_options
    }


def test_texts_are_read_with_names_values_and_groups():
    summary, texts = option_texts(
        """Count the legs of a beetle.

        Example: `limner count beetle`

        Options:
            legs: Number of legs; some are
                hidden: look below.
            out_file (--out FILE): Where the number goes.

        Light:
            lamp (WATT): Power of the lamp.
        """
    )
    assert summary == "Count the legs of a beetle.\n\nExample: `limner count beetle`"
    assert texts == {
        "legs": ("", "Number of legs; some are hidden: look below.", None),
        "out_file": ("--out FILE", "Where the number goes.", None),
        "lamp": ("WATT", "Power of the lamp.", "Light"),
    }


def test_every_argument_and_option_has_a_text_and_no_section_is_left_in_the_help():
    for name, command in COMMANDS.items():
        assert [one.name for one in command.params if not one.help] == [], name
        assert "Options:" not in command.help, name
