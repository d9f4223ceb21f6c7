"""Marginal probabilities kept in a run directory: equal to those computed anew, and replaced when they do not apply."""

import logging
import re
import shutil
from dataclasses import replace

import pytest
from PIL import Image
from test_collection_index import reverse_features

import limner
from limner.data.collection import Collection, write_items
from limner.inference import retriever as module
from limner.retrieval.marginal import FOLDER
from limner.storage.tensors import load_tensors, save_tensors


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns(FOLDER))


@pytest.fixture
def photo(tmp_path):
    Image.new("RGB", (40, 40), (20, 20, 250)).save(tmp_path / "blue.jpg")
    return tmp_path / "blue.jpg"


@pytest.fixture
def computed(monkeypatch):
    """Numbers of sentences of the marginals that were computed."""
    calls, compute = [], module.log_marginal

    def counted(model, targets, *arguments, **options):
        calls.append(len(targets))
        return compute(model, targets, *arguments, **options)

    monkeypatch.setattr(module, "log_marginal", counted)
    return calls


def search(run, photo, collection, split="test", **options):
    retriever = limner.Retriever.load(run)
    return retriever.retrieve_sentences(photo, collection, split=split, count=100, **options)


def test_a_stored_marginal_gives_the_same_results_without_being_computed_again(run, photo, tiny, computed):
    loaded = limner.Retriever.load(run)
    uncached = limner.Retriever(loaded.model, loaded.backbone).retrieve_sentences(photo, tiny, split="test", count=100)
    progress = []
    first = search(run, photo, tiny, on_progress=lambda done, total: progress.append((done, total)))
    assert len(computed) == 2
    assert progress[-1][0] == progress[-1][1] == 32 * computed[-1]  # every distinct sentence with every training image
    again = search(run, photo, tiny, on_progress=lambda done, total: pytest.fail("computed again"))
    assert uncached == first == again
    assert len(computed) == 2
    assert not [path for path in (run / FOLDER).iterdir() if path.suffix != ".safetensors"]


def test_splits_and_collections_have_marginals_of_their_own(run, photo, tiny, own_tiny, computed):
    for split in ("test", "val", None, "test", "val", None):
        search(run, photo, tiny, split)
    search(run, photo, own_tiny)
    assert len(computed) == len(list((run / FOLDER).iterdir())) == 4


def change_weights(run, collection):
    weights = load_tensors(run / "model.safetensors")
    save_tensors(run / "model.safetensors", {name: value * 1.01 for name, value in weights.items()})


def change_sentences(run, collection):
    items = Collection.open(collection.path).items()
    changed = [replace(item, sentences=item.sentences[:1]) if item.split == "test" else item for item in items]
    shutil.rmtree(collection.path / "items.lance")
    write_items(collection.path, changed)


def change_images(run, collection):
    items = Collection.open(collection.path).items()
    shutil.rmtree(collection.path / "items.lance")
    write_items(collection.path, [replace(item, image="train0.png") if item.id == "train1" else item for item in items])


def change_features(run, collection):
    reverse_features(collection, "pixels16")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_weights, "made for other weights"),
        (change_sentences, "made for other sentences"),
        (change_images, "made for other images"),
        (change_features, "made for other features"),
    ],
)
def test_a_stale_marginal_is_computed_again_and_the_reason_is_said(
    run, photo, own_tiny, computed, caplog, change, reason
):
    search(run, photo, own_tiny)
    change(run, own_tiny)
    with caplog.at_level(logging.WARNING):
        result = search(run, photo, Collection.open(own_tiny.path))
    assert f"{reason}; P(w) is computed again" in caplog.text
    assert len(computed) == 2
    shutil.rmtree(run / FOLDER)
    assert search(run, photo, Collection.open(own_tiny.path)) == result


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "text"])
def test_a_damaged_marginal_is_computed_again(run, photo, tiny, computed, caplog, damage):
    result = search(run, photo, tiny)
    (path,) = (run / FOLDER).iterdir()
    data = path.read_bytes()
    flipped = data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]
    changed = {"flipped": flipped, "cut": data[:-4], "empty": b"", "text": b"{}" * 99}
    path.write_bytes(changed[damage])
    with caplog.at_level(logging.WARNING):
        assert search(run, photo, tiny) == result
    assert re.search(rf"{re.escape(str(path))}: .*damaged.*; P\(w\) is computed again", caplog.text)
    assert path.read_bytes() == data


def test_a_run_that_cannot_be_written_is_searched_with_a_warning(run, photo, tiny, caplog):
    result = search(run, photo, tiny)
    shutil.rmtree(run / FOLDER)
    (run / FOLDER).write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert search(run, photo, tiny) == result
    assert "the next search computes P(w) again" in caplog.text
