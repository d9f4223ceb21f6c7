"""Through the command line: a translation model learns to see what an ambiguous word means, and only by its picture."""

import json
import subprocess
import sys

import pytest

from limner.synthetic.scenes import SceneSettings, generate


def limner(*arguments):
    command = [sys.executable, "-c", "from limner.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def diagnosed(run, collection):
    return json.loads(limner("diagnose", run, "--data", collection, "--metric", "bleu4", "--trials", "100", "--json"))


def by_condition(part):
    return {one["name"]: {figure["metric"]: figure["value"] for figure in one["figures"]} for one in part}


def test_the_picture_is_used(tmp_path):
    """What is dropped from the source has to be seen. Kinds of things take longer to learn: that is the slow test."""
    scenes = generate(tmp_path / "scenes", SceneSettings(seed=3, train=1200, val=20, test=60, size=64, ambiguous=1.0))
    limner("features", scenes.path, "--backbone", "pixels:32")
    run = tmp_path / "run"
    changes = ["features.tables=[pixels32]", "training.epochs=8", "training.validate_every=8"]
    limner("train", "scenes/translate-src-img", "--data", scenes.path, "--out", run, *changes)
    figures = by_condition(diagnosed(run, scenes.path)["pictures"])
    assert figures["right"]["bleu4"] > figures["shuffled"]["bleu4"] + 5


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_picture_alone_tells_what_an_ambiguous_word_means(tmp_path):
    """What `limner demo` ends with, and the text alone beside it."""
    told = json.loads(limner("demo", "--out", tmp_path / "demo", "--json"))
    senses = by_condition(told["diagnosis"]["senses"]["conditions"])
    assert senses["right"]["right_meaning"] >= 95
    assert senses["swapped"]["right_meaning"] < 50
    blind, scenes = tmp_path / "blind", tmp_path / "demo" / "ambiguous"
    limner("train", "scenes/translate", "--data", scenes, "--out", blind)
    (by_text,) = by_condition(diagnosed(blind, scenes)["senses"]["conditions"]).values()
    assert 40 <= by_text["right_meaning"] <= 60
