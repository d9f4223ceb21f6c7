"""Command line: recurrent networks learn labels that depend on the order of the input."""

import json

import pytest
from programs import limner

from limner.data.collection import Collection


def accuracy(run_folder, collection):
    scores = json.loads(limner("evaluate", "--model", run_folder, "--collection", collection, "--json"))["scores"]
    return {score["name"]: score["value"] for score in scores}["accuracy"]


BRIEF = ["training.epochs=6", "training.schedule={name: constant}"]
"""About 700 steps of lecture/reviews: the network needs 500 to leave chance."""


@pytest.mark.slow
def test_reviews_that_a_bag_of_words_cannot_classify(tmp_path):
    reviews = tmp_path / "reviews"
    limner("generate", "reviews", reviews, "--train", 4000, "--val", 100, "--test", 200)
    limner("train", "lecture/reviews", *BRIEF, "--collection", reviews, "--out", tmp_path / "run")
    assert accuracy(tmp_path / "run", reviews) >= 95
    texts = {"the plot is not dull , but gripping .": "positive", "the plot is not gripping , but dull .": "negative"}
    lines = limner("classify", *texts, "--model", tmp_path / "run").splitlines()
    assert [line.split("\t")[1] for line in lines] == list(texts.values())
    limner("report", "--model", tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Expected calibration error" in page


@pytest.mark.slow
def test_a_bag_of_words_is_at_chance_on_reviews(tmp_path):
    pytest.importorskip("sklearn")
    reviews = tmp_path / "reviews"
    limner("generate", "reviews", reviews, "--train", 8000, "--val", 0, "--test", 0)
    options = ["--folds", 2, "--baseline", "--json"]
    arguments = ["lecture/reviews", *BRIEF, "training.epochs=8", "--collection", reviews, "--out", tmp_path / "folds"]
    result = json.loads(limner("crossvalidate", *arguments, *options))
    baselines = {one["name"]: one["accuracy"]["mean"] for one in result["baselines"]}
    assert baselines["logistic regression, words"] < 60 and baselines["linear SVM, words"] < 60
    assert {score["name"]: score["mean"] for score in result["scores"]}["accuracy"] >= 90


@pytest.mark.slow
def test_classes_of_the_frames_of_sounds(tmp_path):
    sounds = tmp_path / "sounds"
    limner("generate", "sound-sequences", sounds, "--train", 200, "--val", 20, "--test", 40)
    limner("features", sounds, "--backbone", "logmel:62")
    limner("train", "lecture/sounds", "training.epochs=8", "--collection", sounds, "--out", tmp_path / "run")
    assert accuracy(tmp_path / "run", sounds) >= 90
    item = Collection.open(sounds).items("test")[0]
    lines = limner("classify", sounds / item.audio, "--model", tmp_path / "run").splitlines()
    assert [int(line.split("\t")[1]) for line in lines] == list(range(62))
