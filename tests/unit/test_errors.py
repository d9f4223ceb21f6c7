"""Suggestions of similar names, the same for everything that is named on the command line."""

import pytest
from huggingface_hub import constants

import limner
from limner.apps.reproduce import find_table
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.data.readers import read_source
from limner.errors import LimnerError, counted, did_you_mean
from limner.features.encoders.load import load_backbone
from limner.features.store import FeatureTable
from limner.metrics import require_metrics


def test_one_thing_is_in_the_singular():
    assert [counted(number, "item") for number in (0, 1, 2000)] == ["0 items", "1 item", "2,000 items"]
    assert [counted(number, "file is", "files are") for number in (1, 2)] == ["1 file is", "2 files are"]


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("tset", ["train", "val", "test"], "; did you mean 'test'?"),
        ("BLEU4", ["bleu4", "bleu3"], "; did you mean 'bleu4'?"),
        ("photograph", ["train", "val"], ""),
        ("", [], ""),
    ],
)
def test_the_most_similar_name_is_suggested(name, known, expected):
    assert did_you_mean(name, known) == expected


@pytest.fixture
def collection(tmp_path) -> Collection:
    write_items(tmp_path, [Item("1", "train", image="1.jpg", sentences=(ItemSentence("en", "A dog ."),))])
    (tmp_path / "features" / "lite2.lance").mkdir(parents=True)
    return Collection.open(tmp_path)


@pytest.mark.parametrize(
    ("call", "similar"),
    [
        (lambda collection: collection.items("trian"), "train"),
        (lambda collection: FeatureTable.open(collection, "lite3"), "lite2"),
        (lambda collection: read_source("flikr", collection.path), "flickr"),
        (lambda _: load_backbone("eficientnet-lite2"), "efficientnet-lite2"),
        (lambda _: load_backbone("efficientnet-lite-2"), "efficientnet-lite2"),
        (lambda _: load_backbone("pixel:64"), "pixels:64"),
        (lambda _: require_metrics(["blue4"]), "bleu4"),
        (lambda _: find_table("mao2015/tabel5"), "mao2015/table5"),
        (lambda _: limner.load_recipe("mao2015/flikr8k", []), "mao2015/flickr8k"),
    ],
)
def test_every_unknown_name_is_answered_by_the_most_similar_one(call, similar, collection, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # the variable is read once, at the import
    with pytest.raises(LimnerError, match=rf"did you mean '{similar}'\?"):
        call(collection)


def test_the_package_names_its_version():
    assert limner.__version__.count(".") == 2
