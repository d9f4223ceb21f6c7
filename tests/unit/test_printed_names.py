"""Names and captions on a terminal and in tables: control characters and bytes that are not UTF-8 are escaped."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path

import pytest
from rich.table import Table

from limner.apps.cli import terminal
from limner.apps.cli.caption_output import caption_output
from limner.apps.cli.terminal import echo, print_error, print_json, printable, tab_separated
from limner.decoding.sentence import Sentence
from limner.files.structured import to_json

HOSTILE = "a\x1b[2J\tb\nc\r\x07\x9b31m\u202ed\u2028e\udcff"
ESCAPED = r"a\x1b[2J\tb\nc\r\x07\x9b31m\u202ed\u2028e\xff"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]")


def test_what_controls_a_terminal_is_escaped():
    assert printable(HOSTILE) == ESCAPED
    assert printable("a\tb\nc\x1b", keep="\n") == "a\\tb\nc\\x1b"
    assert printable(Path(os.fsdecode(b"caf\xe9.jpg"))) == r"caf\xe9.jpg"
    for text in ("Ein Hündchen läuft .", "一只狗", "كلب\u200f", "🐕", "C:\\photos\\x.jpg"):
        assert printable(text) == text


def test_a_field_stays_in_its_column_and_its_line():
    line = tab_separated(Path(HOSTILE), 1, HOSTILE)
    assert line.split("\t") == [ESCAPED, "1", ESCAPED] and len(line.splitlines()) == 1


@pytest.mark.parametrize("print_it", [print_error, echo, terminal.out.print, terminal.err.print])
def test_every_function_that_prints_escapes(print_it, capsys):
    print_it(HOSTILE)
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert "x1b[2J" in printed and not CONTROL.search(printed)
    assert print_it is not print_error or printed.count("\n") == 1


def test_cells_of_tables_are_escaped(capsys):
    table = Table("column")
    table.add_row(HOSTILE.replace("\n", ""))
    terminal.out.print(table)
    printed = capsys.readouterr().out
    assert r"\x1b[2J" in printed and not CONTROL.search(printed)


def test_json_is_valid_and_has_no_control_characters(capsys):
    print_json({"name": HOSTILE})
    printed = capsys.readouterr().out
    assert not CONTROL.search(printed) and json.loads(printed) == {"name": HOSTILE}
    assert to_json("é一") == '"é一"'
    printed.encode("utf-8")


@pytest.mark.parametrize("kind", ["text", "tsv", "csv", "json", "jsonl"])
def test_captions_of_hostile_names_are_one_record_each(kind, tmp_path):
    out = tmp_path / "captions"
    caption = Sentence((), -1.0, -1.0, text=HOSTILE)
    with caption_output(out, kind) as write:
        write(Path(HOSTILE), [caption])
    text = out.read_text(encoding="utf-8")
    assert not CONTROL.search(text)
    if kind == "json":
        assert json.loads(text)[0]["captions"][0]["text"] == HOSTILE
    elif kind == "jsonl":
        assert json.loads(text)["image"] == HOSTILE
    elif kind == "csv":
        assert next(csv.DictReader(io.StringIO(text)))["caption"] == ESCAPED
    else:
        assert text.splitlines()[-1].split("\t")[0] == ESCAPED


def test_a_command_prints_a_name_that_is_not_utf_8(tmp_path, command_line):
    place = os.path.join(os.fsencode(tmp_path), b"caf\xe9\x1b[31m")
    (line,) = command_line("show", os.fsdecode(place))[2].splitlines()
    assert r"caf\xe9\x1b[31m: " in line and "Traceback" not in line
