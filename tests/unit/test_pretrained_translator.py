"""The built-in translator: its folders, the choice of a direction, and translation without torch."""

import subprocess
import sys

import pytest
from test_export import PROGRAM
from toy_translation import learn, text_collection
from typer.testing import CliRunner

from limner.apps.cli import app
from limner.apps.export.folder import add_graphs
from limner.errors import SettingsError
from limner.inference.load import load
from limner.inference.translator import Translator
from limner.runs import pretrained
from limner.runs.pretrained import pack, pretrained_languages, pretrained_pairs, pretrained_translator

SENTENCES = ["zwei eins", "drei", "", "eins drei"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A package with a small translator from German to English, its weights in float16."""
    place = tmp_path_factory.mktemp("package")
    run = learn(text_collection(place / "collection"), place / "run", level="bpe", steps=120, shared=True)
    pack(run, place / "pretrained" / "de-en", "Translator", {"beam_size": 3})
    add_graphs(place / "pretrained" / "de-en")
    return place / "pretrained"


@pytest.fixture
def package(packed, monkeypatch):
    monkeypatch.setattr(pretrained, "PRETRAINED", packed)
    return packed


def test_a_direction_is_chosen_by_its_languages(package):
    assert pretrained_pairs() == (("de", "en"),)
    assert pretrained_languages() == ()
    for languages in (("en", None), ("en", "de"), (None, "de")):
        assert pretrained_translator(*languages) == package / "de-en"
    for languages in (("de", None), ("en", "fr"), (None, "en")):
        with pytest.raises(SettingsError, match="the built-in translator has de to en"):
            pretrained_translator(*languages)


def test_graphs_without_weights_translate_as_the_run(package):
    translator, run = load(to="en"), Translator.load(package / "de-en")
    assert translator.decoding.beam_size == 3
    texts, expected = ([n_best[0].text for n_best in model.translate(SENTENCES)] for model in (translator, run))
    assert texts == expected and texts[:3] == ["two one", "three", ""]


def test_options_that_contradict_each_other_are_refused(package):
    with pytest.raises(SettingsError, match="selects the built-in translator"):
        load(package / "de-en", to="en")
    with pytest.raises(SettingsError, match="leave out lang"):
        load(lang="de", to="en")
    for options, error in (
        (["--to", "en", "--model", "run"], "has no effect on --model"),
        (["--from", "en"], "the built-in translator has de to en"),
        ([], "expected --to de or --to en"),
    ):
        assert error in str(CliRunner().invoke(app, ["translate", "drei", *options]).exception)


def test_the_command_translates_without_torch(package):
    place = (
        f"from pathlib import Path; from limner.runs import pretrained; pretrained.PRETRAINED = Path({str(package)!r})"
    )
    command = [sys.executable, "-c", place + PROGRAM, "translate", "zwei eins", "--to", "en"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "two one\n[]\n"
