"""Scripts in pretrained/, which make the built-in captioner."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from limner.data.collection import write_items
from limner.data.examples import Item, Sentence


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "pretrained")
    yield __import__("mirror")
    del sys.modules["mirror"]


def test_mirror_images_have_the_sentences_that_name_no_side(tmp_path, mirror):
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 255
    (tmp_path / "collection").mkdir()
    Image.fromarray(pixels).save(tmp_path / "collection" / "a.png")
    texts = [("en", "a dog on the Left ."), ("en", "leftover food"), ("de", "sein linkes Bein"), ("zh", "左边的狗")]
    sentences = tuple(Sentence(lang, text, group) for group, (lang, text) in enumerate([*texts, ("zh", "狗")]))
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
