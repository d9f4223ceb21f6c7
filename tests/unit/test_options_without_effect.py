"""Options that would have no effect are refused, in every command, before a model is loaded."""

import json
from pathlib import Path

import pytest
from PIL import Image

from limner.apps.cli.inputs import find_input_files
from limner.data.collection import write_items
from limner.data.examples import Item, ItemSentence
from limner.inference.scorer import Scorer
from limner.media.modality import IMAGE


@pytest.fixture
def place(tmp_path, trained_on_colours, monkeypatch) -> Path:
    """A run, another without features, a collection, a photo and a table of texts in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").symlink_to(trained_on_colours)
    text_run = tmp_path / "text-run"
    text_run.mkdir()
    for file in Path(trained_on_colours).iterdir():
        if file.name != "config.json" and file.is_file():
            (text_run / file.name).symlink_to(file)
    config = json.loads((Path(trained_on_colours) / "config.json").read_text())
    (text_run / "config.json").write_text(json.dumps({**config, "features": []}))
    Image.new("RGB", (8, 8)).save("a.png")
    write_items(tmp_path / "c", [Item("a", "test", image="../a.png", sentences=(ItemSentence("en", "a wall"),))])
    (tmp_path / "texts.csv").write_text("text,label\ngood,pos\n")
    (tmp_path / "lists").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("describe a.png --model run --top-k 3", "--top-k: has an effect only with --sample"),
        ("describe a.png --model run --temperature 2 --seed 0", "--temperature, --seed: has an effect only with"),
        ("describe a.png --model run --length-penalty 1", "--length-penalty: has no effect on one hypothesis"),
        ("describe a.png --model run --length-penalty 0", "--length-penalty: has no effect on one hypothesis"),
        ("describe a.png --model run --length-penalty 1 --sample", "--length-penalty: has no effect on one hypothesis"),
        ("describe a.png --model run --recursive", "--recursive: has no effect on files"),
        ("describe a.png --model run --replace", "--replace: needs --write or --embed"),
        ("describe a.png --model run --recursive --explain-beam -", "--recursive: has no effect on --explain-beam"),
        ("describe a.png --model run --tags --explain-beam -", "--tags: has no effect on --explain-beam"),
        (
            "describe a.png --model run --min-confidence 0 --explain-beam -",
            "--min-confidence: has no effect on --explain-beam",
        ),
        ("describe a.png --model run --compare run", "--compare: adds models to the plots of --attention"),
        ("describe a.png --model run --model run", "--model run: given twice"),
        ("describe a.png --model text-run --backbone b", "--backbone: text-run was trained without features"),
        ("score a.png one --model text-run --backbone b", "--backbone: text-run was trained without features"),
        (
            "search wall --model run --collection c --backbone b",
            "--backbone: has an effect only with --collection by an image",
        ),
        (
            "search wall --model run --collection c --min-confidence 0.5",
            "--min-confidence: has an effect only with --collection",
        ),
        (
            "search wall --model run --collection c --regions --backbone b",
            "got a search with --collection and --regions",
        ),
        ("evaluate --model run --collection c --no-retrieval --marginal 0", "--marginal: have an effect only on retr"),
        ("evaluate --model run --collection c --no-retrieval --memory 9", "--memory: have an effect only on retrieval"),
        ("evaluate --model run --collection c --region-captioner run", "--region-captioner: has an effect only with"),
        ("evaluate --model run --collection c --length-penalty 1", "--length-penalty: has no effect on one hypothesis"),
        ("show c --split test", "--split: has an effect only on the contact sheet; add --sheet FILE"),
        ("show c --boxes", "--boxes: has an effect only on the contact sheet; add --sheet FILE"),
        ("reproduce --list --row LBL --out x", "--out, --row: --list only lists; leave one of them out"),
        ("reproduce kiros2014/table1 a.b=1 --seeds 1 --budget 1 --list", "KEY=VALUE, --seeds, --budget: --list only"),
        ("reproduce mao2015/table6 --row xyz", "--row: mao2015/table6 has properties of recipes, and nothing is train"),
        ("reproduce mao2015/table6 a.b=1 --collection c --out new", "KEY=VALUE, --collection, --out: mao2015/table6"),
        ("reproduce mao2015/table6 --init run --back-translator run", "--init, --back-translator: mao2015/table6 has"),
        ("translate one --model run --scores --json", "--scores: JSON has both"),
        ("translate one --model run --write", "--write: possible only with --collection"),
        ("translate one --model run --backbone b", "--backbone: has an effect only with images"),
        ("translate one --model run --collection c", "SENTENCE: not possible with --collection"),
        ("features c --backbone pixels:8 --regions 3", "--regions 3: needs --boxes"),
        ("import csv texts.csv new --copy", "has no files to copy; leave out --copy"),
        ("import visual-genome . new --split val --splits lists", "split 'val': has no effect with lists of splits"),
        ("import csv texts.csv new --splits lists", "'csv' does not support the option 'splits'"),
        ("generate sounds new --occluded 0", "--occluded is an option of clips, not of sounds"),
        ("generate clips new --ambiguous 0.5", "--ambiguous is an option of scenes, not of clips"),
    ],
)
def test_an_option_without_effect_is_refused(place, command, message, command_line):
    status, printed, errors = command_line(*command.split())
    assert (status, printed) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("error: ") and message in line
    assert not (place / "new").exists()


def test_ignored_options_of_frames_are_reported(place, command_line, caplog):
    status, *_ = command_line("features", "c", "--backbone", "pixels:8", "--frames", 4)
    assert status == 0 and "an image is a video of one frame" in caplog.text


def test_hidden_files_of_a_folder_are_counted_and_not_read(place, caplog):
    (place / "photos" / ".cache").mkdir(parents=True)
    for name in ("b.png", "._b.png", ".cache/c.png"):
        Image.new("RGB", (8, 8)).save(place / "photos" / name)
    assert find_input_files([place / "photos"], IMAGE, (IMAGE,), recursive=True) == [place / "photos" / "b.png"]
    assert "2 hidden files are not read" in caplog.text


def test_a_score_counts_the_unknown_tokens(trained, place):
    (score,) = Scorer.load(trained).score([place / "a.png"], ["zyzzyva xylem"])
    assert (score.tokens, score.unknown) == (3, 2)
