"""Options that are made from types and docstrings."""

from limner.apps import cli
from limner.apps.cli.options import option_texts

COMMANDS = cli.build_commands()


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
