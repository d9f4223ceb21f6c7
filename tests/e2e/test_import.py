"""Imports that are killed, and imports of the real corpora."""

import os
import signal
import subprocess
import sys
from collections import Counter

import pytest
from PIL import Image

from limner.apps.report.images import contact_sheet
from limner.data.collection import Collection
from limner.data.items_table import Changes
from limner.data.readers import ReaderOptions, import_collection, read_source
from limner.data.summary import summarise
from limner.errors import CollectionError

# Runs one import and kills itself right before or right after the n-th call of a function.
KILLED = """
import os, signal, sys
import lance
from limner.data import readers

source, target, function, moment, count = sys.argv[1:]
module, name = (lance.LanceDataset, "commit") if function == "commit" else (os, function)
original, calls = getattr(module, name), 0

def deadly(*args, **kwargs):
    global calls
    calls += 1
    if calls == int(count) and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = original(*args, **kwargs)
    if calls == int(count):
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(module, name, deadly)
readers.import_collection("csv", source, target, copy=True)
"""


def write_source(path, ids, text="a dog"):
    lines = [f"{id},train,p/{id}.png,en,{text}" for id in ids]
    path.write_text("\n".join(["id,split,image,lang,text", *lines]) + "\n", encoding="utf-8")
    for id in ids:
        (path.parent / "p").mkdir(exist_ok=True)
        Image.new("RGB", (4, 4), (id % 256, 0, 0)).save(path.parent / "p" / f"{id}.png")
    return path


def hidden(folder):
    return [path for path in folder.rglob(".*") if path.name.startswith(".")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("exists", "function", "moment", "count", "arrived"),
    [
        (False, "replace", "after", 2, False),
        (False, "commit", "before", 1, False),
        (False, "rename", "before", 2, False),
        (False, "rename", "after", 2, True),
        (True, "replace", "before", 2, False),
        (True, "commit", "before", 1, False),
        (True, "commit", "after", 1, True),
    ],
)
def test_kill_at_any_step_leaves_the_old_or_the_new_collection(tmp_path, exists, function, moment, count, arrived):
    old, new = write_source(tmp_path / "old.csv", [1, 2]), write_source(tmp_path / "new.csv", [3, 4, 5])
    home = tmp_path / "home"
    home.mkdir()
    if exists:
        import_collection("csv", old, home / "c", copy=True)
    command = [sys.executable, "-c", KILLED, new, home / "c", function, moment, str(count)]
    assert subprocess.run(command).returncode == -signal.SIGKILL

    before, after = ({1, 2}, {1, 2, 3, 4, 5}) if exists else (None, {3, 4, 5})
    expected = after if arrived else before
    if expected is None:
        assert not (home / "c").exists()
        assert len(os.listdir(home)) == 2  # temporary folder and lock file
    else:
        collection = Collection.open(home / "c")
        assert {int(item.id) for item in collection.items()} == expected
        assert summarise(collection).missing == 0

    report = import_collection("csv", new, home / "c", copy=True)
    assert report.changes == (Changes(0, 0, 3) if arrived else Changes(3, 0, 0))
    collection = Collection.open(home / "c")
    assert {int(item.id) for item in collection.items()} == after
    assert summarise(collection).missing == 0
    assert hidden(home) == []


@pytest.mark.real
def test_flickr8k(real_data, tmp_path):
    report = import_collection("flickr", real_data / "flickr8k", tmp_path / "c")
    assert (report.items, report.sentences) == (7000, 35000)
    assert report.tally.skipped == {"sentences whose image is missing": 40460 - 35000}
    assert import_collection("flickr", real_data / "flickr8k", tmp_path / "c").changes == Changes(0, 0, 7000)
    collection = Collection.open(tmp_path / "c")
    assert collection.splits() == {"train": 5500, "val": 500, "test": 1000}
    assert summarise(collection).missing == 0
    assert contact_sheet(collection, "test").width > 700
    with pytest.raises(CollectionError, match=r"Flickr8k\.token\.txt:81: '1022454332"):
        import_collection("flickr", real_data / "flickr8k", tmp_path / "d", strict=True)
    assert not (tmp_path / "d").exists()


@pytest.mark.real
def test_multi30k(real_data, tmp_path):
    folder = real_data / "multi30k"
    translations = import_collection("multi30k", folder / "task1", tmp_path / "c")
    assert (translations.items, translations.sentences) == (31_014, 4 * 31_014)
    descriptions = import_collection("multi30k", folder / "task2", tmp_path / "c")
    assert (descriptions.sentences, descriptions.changes) == (10 * 31_014, Changes(0, 31_014, 0))
    counted = summarise(Collection.open(tmp_path / "c")).sentences
    assert counted["train"] == {"cs": 29_000, "de": 174_000, "en": 174_000, "fr": 29_000}


@pytest.mark.real
def test_multi30k_by_the_splits_of_flickr8k(real_data):
    flickr = real_data / "flickr8k"
    options = ReaderOptions(images=flickr / "images", splits=flickr / "splits")
    items = read_source("multi30k", real_data / "multi30k" / "task1", options).items
    lines = (real_data / "multi30k" / "flickr8k_overlap.tsv").read_text(encoding="utf-8").splitlines()[1:]
    expected = {tuple(line.split("\t")[2:]) for line in lines}
    assert {(item.image.rpartition("/")[2], item.split) for item in items} == expected
    assert Counter(item.split for item in items) == {"train": 5067, "val": 461, "test": 929}
