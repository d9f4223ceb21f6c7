"""Scripts in pretrained/, which make the built-in captioner."""

import importlib
import json
import shutil
import sys
from pathlib import Path

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
    for name in {"card", "mirror", "non_photographs"} & (set(sys.modules) - before):
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


@pytest.mark.parametrize("has_concepts", [False, True])
def test_the_card_speaks_of_abstention_only_with_concepts(tmp_path, script, tiny, trained_on_colours, has_concepts):
    folder = shutil.copytree(trained_on_colours, tmp_path / "run")
    if has_concepts:
        (folder / "concepts.json").touch()
    card = script("card")
    card.write_card(folder, "en", tiny.path, {"val": dict.fromkeys(card.METRICS, 1.0)})
    text = (folder / "README.md").read_text()
    assert ("`not sure`" in text) == ("the concepts in" in text) == has_concepts


def test_generated_images_depend_on_their_seed_alone(script):
    drawn = script("non_photographs")
    for kind in drawn.KINDS:
        image, again, other = (drawn.draw_non_photograph(kind, seed) for seed in (1, 1, 2))
        assert image.tobytes() == again.tobytes() and (image.size, image.tobytes()) != (other.size, other.tobytes())
    assert set(drawn.HELD_OUT) < set(drawn.KINDS)
