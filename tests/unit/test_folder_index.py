"""Indexes of folders: what an update reads, describes and keeps, and what a search finds."""

import os
import time

import pytest
from PIL import Image

import limner
from limner.errors import FolderError
from limner.folders.index import FolderIndex

COLOURS = {"red": (250, 20, 20), "green": (20, 250, 20), "blue": (20, 20, 250), "white": (250, 250, 250)}


@pytest.fixture(scope="module")
def captioner(trained):
    return limner.load(trained)


@pytest.fixture
def folder(tmp_path):
    """One photograph of each colour, an hour old, two of them in a folder inside."""
    for number, (name, colour) in enumerate(COLOURS.items()):
        save(tmp_path / ("inside" if number > 1 else "") / f"{name}.png", colour)
    return tmp_path


def save(path, colour, size=(90, 70)):
    path.parent.mkdir(exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))


def test_search_finds_the_image_that_the_sentence_describes(folder, captioner):
    index = FolderIndex(folder)
    assert index.update(captioner).described == 4
    for colour in COLOURS:
        best = FolderIndex.open(folder).search(f"a {colour} wall", 2)[0]
        assert (best.path.stem, best.caption) == (colour, captioner.describe([best.path])[0][0].text)
        assert best.thumbnail[:2] == b"\xff\xd8"


def test_scores_are_those_of_the_model(folder, captioner, trained):
    index = FolderIndex(folder)
    index.update(captioner)
    matches = index.search("a red wall", 4)
    scores = limner.Scorer.load(trained).score([match.path for match in matches], ["a red wall"] * 4)
    assert [match.score for match in matches] == pytest.approx([one.log_prob for one in scores], abs=1e-3)


def test_similar_images_are_found_by_an_image(folder, captioner, tmp_path):
    index = FolderIndex(folder, captioner=captioner)
    index.update(captioner)
    best = index.similar(Image.new("RGB", (50, 50), (230, 30, 30)), 1)[0]
    assert best.path.stem == "red"
    assert best.score > 0.95


def test_an_update_reads_only_what_has_changed(folder, captioner, monkeypatch):
    index = FolderIndex(folder)
    index.update(captioner)
    save(folder / "new.png", (20, 250, 250))
    save(folder / "red.png", (250, 20, 250), size=(91, 70))
    (folder / "inside" / "blue.png").rename(folder / "inside" / "renamed.png")
    (folder / "green.png").unlink()
    update = index.update(captioner)
    assert (update.added, update.changed, update.moved, update.removed) == (1, 1, 1, 1)
    assert (update.unchanged, update.described, update.files) == (1, 2, 4)
    again = index.update(captioner)
    assert (again.unchanged, again.described, again.removed) == (4, 0, 0)


def test_a_moved_file_keeps_its_caption(folder, captioner):
    index = FolderIndex(folder)
    index.update(captioner)
    (folder / "inside" / "blue.png").rename(folder / "b.png")
    assert index.update(captioner).described == 0
    assert index.search("a blue wall", 1)[0].path == folder / "b.png"


def test_an_index_of_another_model_is_refused(folder, captioner, trained_on_colours, backbone_of):
    index = FolderIndex(folder)
    index.update(captioner)
    other = limner.Captioner([limner.load_trained_model(trained_on_colours)], backbone_of())
    with pytest.raises(FolderError, match=r"expected an index .*--rebuild"):
        index.update(other)
    assert index.update(other, rebuild=True).described == 4


def test_a_folder_without_an_index_is_an_error(folder):
    with pytest.raises(FolderError, match=r"has no index; run 'limner index"):
        FolderIndex.open(folder)
