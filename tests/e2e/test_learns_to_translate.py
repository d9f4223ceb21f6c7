"""Command line: a translation model learns to disambiguate words by the image, and only by the image."""

import json

import pytest
from programs import limner


def diagnosed(run, collection):
    options = ["--metric", "bleu4", "--trials", "100", "--json"]
    return json.loads(limner("diagnose", "--model", run, "--collection", collection, *options))


def by_condition(part):
    return {one["name"]: {score["metric"]: score["value"] for score in one["scores"]} for one in part}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_image_alone_disambiguates_a_word(tmp_path):
    """What `limner demo` claims of captions, retrieval and ambiguous words, compared with a text-only translator."""
    demo = json.loads(limner("demo", "--out", tmp_path / "demo", "--json"))
    scores = {score["name"]: score["value"] for score in demo["scores"]}
    assert scores["bleu4"] > 60
    assert min(scores["image_to_text_r1"], scores["text_to_image_r1"]) > 50  # chance: 0.5
    ambiguity = by_condition(demo["diagnosis"]["ambiguity"]["conditions"])
    assert ambiguity["right"]["correct_sense"] >= 95
    assert ambiguity["swapped"]["correct_sense"] < 50
    text_only, scenes = tmp_path / "blind", tmp_path / "demo" / "scenes"
    limner("train", "scenes/translate", "--collection", scenes, "--out", text_only)
    (by_text,) = by_condition(diagnosed(text_only, scenes)["ambiguity"]["conditions"]).values()
    assert 40 <= by_text["correct_sense"] <= 60
