"""Scripts in pretrained/, which make the built-in captioner."""

import importlib
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from limner.data.collection import write_items
from limner.data.examples import Item, ItemSentence


@pytest.fixture
def script(monkeypatch):
    """Imports a script: script(name)."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "pretrained")
    before = set(sys.modules)
    yield importlib.import_module
    for name in {"card", "elsewhere", "logistic", "mirror", "non_photographs"} & (set(sys.modules) - before):
        del sys.modules[name]


@pytest.fixture
def mirror(script):
    return script("mirror")


def test_mirror_images_have_the_sentences_that_name_no_side(tmp_path, mirror):
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 255
    (tmp_path / "collection").mkdir()
    Image.fromarray(pixels).save(tmp_path / "collection" / "a.png")
    texts = [("en", "a dog on the Left ."), ("en", "leftover food"), ("de", "sein linkes Bein"), ("zh", "左边的狗")]
    sentences = tuple(ItemSentence(lang, text, group) for group, (lang, text) in enumerate([*texts, ("zh", "狗")]))
    items = [Item(id=split, split=split, image="a.png", sentences=sentences) for split in ("train", "val")]
    write_items(tmp_path / "collection", items)

    out, images = tmp_path / "mirrored.jsonl", tmp_path / "mirrored"
    mirror.write_mirrored(tmp_path / "collection", images, out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {(row["id"], row["split"], row["image"]) for row in rows} == {
        ("train-mirrored", "train", "train-mirrored.jpg")
    }
    assert [(row["lang"], row["text"]) for row in rows] == [("en", "leftover food"), ("zh", "狗")]
    written = np.asarray(Image.open(images / "train-mirrored.jpg").convert("L"))
    assert written[:, :7].max() < 20 and written[:, 9:].min() > 235


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_card_speaks_of_tags_and_abstention_only_with_a_calibration(
    tmp_path, script, tiny, trained_on_colours, calibrated
):
    folder = shutil.copytree(trained_on_colours, tmp_path / "run")
    if calibrated:
        (folder / "calibration.json").touch()
    card = script("card")
    card.write_card(folder, "en", tiny.path, {"val": dict.fromkeys(card.METRICS, 1.0)})
    text = (folder / "README.md").read_text()
    assert ("`not sure`" in text) == ("come from the tags" in text) == calibrated


def test_words_that_are_accepted_for_a_thing(script):
    accepted = script("elsewhere").accepted
    assert {"woman", "bride"} <= accepted(["woman"], "en") and not {"man", "boy", "crowd"} & accepted(["woman"], "en")
    assert "mädchen" in accepted(["girl"], "de") and "Junge" not in accepted(["girl"], "de")
    assert "街道" in accepted(["street"], "zh") and "street" not in accepted(["street"], "zh")
    assert accepted(["street", "girl"], "en") == accepted(["street"], "en") | accepted(["girl"], "en")
    assert accepted(["no such thing"], "en") == frozenset()


class SpelledNouns:
    """Nouns of captions that are given as lists of words."""

    def __init__(self, nouns):
        self.known = nouns

    def of_caption(self, tokens):
        return [SimpleNamespace(word=word) for word in tokens if word in self.known]

    def main(self, tokens):
        return next((one.word for one in self.of_caption(tokens)), None)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("a dog runs", True),
        ("a cat runs", False),
        ("a dog and a cat", False),
        ("a dog and a puppy", True),
        ("a dog with a cat", True),
        ("a street with a cat", True),
        ("a cat on a street", False),
        ("something", False),
    ],
)
def test_the_main_thing_of_a_caption_is_right(script, text, right):
    nouns, words = SpelledNouns({"dog", "puppy", "cat"}), frozenset({"dog", "puppy", "street"})
    assert script("elsewhere").is_right(nouns, text.split(), text, words) is right


def test_measured_evidence_is_read_as_it_was_written(script, tmp_path, capsys):
    elsewhere, path = script("elsewhere"), tmp_path / "measured-xx.tsv"
    rows = [elsewhere.Photograph(f"{name}.jpg", "here", ("dog",)) for name in "ab"]
    images, captions = [{"outside": 0.5}, {"outside": 0.25}], [{"log_prob": -1.5}, {"log_prob": -12.0}]
    elsewhere.write(path, rows, elsewhere.Measured(images, captions, [True, False]))
    found = elsewhere.read_or_none(path, ["outside"])
    assert found.of_images == images and found.right == [True, False]
    assert found.of_captions == [image | caption for image, caption in zip(images, captions, strict=True)]
    path.unlink()
    assert capsys.readouterr().err == "" and elsewhere.read_or_none(path, ["outside"]) == ([], [], [])
    assert capsys.readouterr().err.startswith("measured-xx.tsv: not found")


def test_generated_images_depend_on_their_seed_alone(script):
    drawn = script("non_photographs")
    for kind in drawn.KINDS:
        image, again, other = (drawn.draw_non_photograph(kind, seed) for seed in (1, 1, 2))
        assert image.tobytes() == again.tobytes() and (image.size, image.tobytes()) != (other.size, other.tobytes())
    assert set(drawn.HELD_OUT) < set(drawn.KINDS)


def test_a_logistic_regression_recovers_its_coefficients(script):
    regression = script("logistic")
    rng = np.random.default_rng(0)
    values = rng.normal(3, 2, 4000)
    evidence = [{"x": float(value)} for value in values]
    events = [bool(one) for one in rng.random(4000) < 1 / (1 + np.exp(-(0.8 * values - 2)))]
    fitted = regression.fit_logistic(evidence, events)
    assert fitted == pytest.approx({"x": 0.8, "constant": -2}, abs=0.15)
    found = regression.cross_validated(evidence, events, list(range(4000)))
    assert regression.expected_calibration_error(found, events) < 0.03
    assert regression.expected_calibration_error(found**3, events) > 0.1
