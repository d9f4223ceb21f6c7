"""Counts of what an import leaves out or finds odd."""

import json

import pytest
from PIL import Image

from limner.data.readers import import_collection, read_source
from limner.data.tally import Tally
from limner.errors import CollectionError

PIXEL = Image.new("RGB", (4, 4))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def draw(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        PIXEL.save(folder / name, "png")


def test_lines_name_counts_reasons_and_a_few_names():
    tally = Tally()
    for name in "abcda":
        tally.skip("sentences of too many words", name)
    tally.note("hidden files", count=1200)
    assert tally.lines() == ["skipped 5 sentences of too many words, for example a; b; c", "note: 1,200 hidden files"]


def test_lines_of_a_split_name_it_once_and_are_no_notes():
    tally = Tally()
    tally.skip("sentences of too many words", count=2)
    tally.note("tokens are not in the vocabulary", count=30)
    tally.note_few("val", 7, "sentences")
    assert tally.lines("val") == [
        "split 'val': skipped 2 sentences of too many words",
        "split 'val': 30 tokens are not in the vocabulary",
        "7 sentences in split 'val': too few to choose a model by, or to measure it",
    ]


def test_a_folder_counts_every_file_that_is_no_item_or_has_no_sentence(tmp_path):
    source = tmp_path / "photos"
    draw(source, "A.JPG", "b.png", ".hidden.png", ".cache/c.png", "__MACOSX/d.png")
    write(source / "a.TXT", "not the sentences of A.JPG\n")
    write(source / "A.TXT", "a dog\na dog\n\na cat\n")
    write(source / "notes.md", "about")
    (source / "album").symlink_to(tmp_path)
    report = import_collection("folder", source, tmp_path / "collection")
    assert report.sentences == 3
    assert report.tally.skipped == {"empty sentences": 1, "text files without an image or video of the same name": 1}
    assert report.tally.noted == {
        "items without sentences": 1,
        "hidden files and folders, which are not read": 3,
        "links to folders, which are not followed": 1,
        "files of other kinds, which are not read": 1,
        "items in split 'train': too few to choose a model by, or to measure it": 2,
    }
    assert f"for example {source / 'a.TXT'}" in "\n".join(report.lines())
    with pytest.raises(CollectionError, match=r"A\.TXT:3: 'A': empty sentences"):
        read_source("folder", source, strict=True)


def test_two_text_files_for_one_image_are_refused(tmp_path):
    draw(tmp_path, "a.png")
    write(tmp_path / "a.txt", "one\n")
    write(tmp_path / "a.TXT", "two\n")
    with pytest.raises(CollectionError, match=r"a\.txt: has the same name as .*a\.TXT; join"):
        read_source("folder", tmp_path)


def test_images_of_a_corpus_that_no_split_names_are_noted(tmp_path):
    draw(tmp_path / "images", "a.png", "b.png", "c.png")
    write(tmp_path / "f.token.txt", "a.png#0\tone\na.png#0\tone\n")
    write(tmp_path / "splits" / "train.txt", "a.png\nb.png\n")
    tally = read_source("flickr", tmp_path).tally
    assert tally.noted == {
        "items without sentences": 1,
        "files that no item of the source uses": 1,
        "sentences that repeat another one of their item and group": 1,
    }
    assert tally.examples["files that no item of the source uses"] == (str(tmp_path / "images" / "c.png"),)


def coco(tmp_path, images, captions):
    draw(tmp_path / "images", "a.jpg", "b.jpg")
    contents = {
        "images": [{"id": id, "file_name": name} for id, name in images],
        "annotations": [{"id": id, "image_id": image, "caption": text} for id, image, text in captions],
    }
    write(tmp_path / "captions_train.json", json.dumps(contents))
    return tmp_path


def test_two_coco_images_with_one_id_are_refused(tmp_path):
    source = coco(tmp_path, [(1, "a.jpg"), (1, "b.jpg")], [(1, 1, "a dog")])
    with pytest.raises(CollectionError, match=r"images\[1\]: the id 1 of 'b\.jpg' is that of 'a' as well"):
        read_source("coco", source)
