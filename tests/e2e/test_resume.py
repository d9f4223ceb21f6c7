"""A training run that is killed repeatedly and resumed equals an uninterrupted one."""

import random
import signal
import subprocess
import sys
import time

import pytest
import yaml
from programs import limner

from interrupted import interrupt, without_times
from limner.synthetic.scenes import SceneSettings
from limner.synthetic.storage import generate_collection

ADAMW = {
    "features": {"tables": ["pixels16"]},
    "model": {
        "name": "mrnn",
        **{"embedding_dim": 16, "hidden_dim": 24, "multimodal_dim": 32, "dropout": 0.3},
        "image_encoder": {"convnet_dim": 16, "convnet_width": 4, "dropout": 0.2},
    },
    "training": {"epochs": 4, "batch_size": 16, "ema_decay": 0.99, "clip_norm": 1.0, "save_every": 7},
    "decoding": {"max_length": 15},
}
SLOWLY = """
import sys, time
from limner.apps.cli import main
from limner.training.state import TrainState

add_step = TrainState.add_step
def slowly(*arguments):
    add_step(*arguments)
    time.sleep(0.03)  # so that a signal can come between any two steps
TrainState.add_step = slowly
sys.argv[0] = "limner"
main()
"""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    collection = generate_collection(
        tmp_path_factory.mktemp("e2e") / "scenes", SceneSettings(train=60, val=12, test=1, size=32)
    )
    limner("features", collection.path, "--backbone", "pixels:16")
    return collection.path


def start(recipe, scenes, run, *more):
    command = [sys.executable, "-c", SLOWLY, "train", recipe, "--collection", scenes, "--out", run, *more]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_a_state(process, run, other_than=frozenset()):
    wait_until(process, lambda: {path.name for path in run.glob("state-*")} - other_than)


def wait_until(process, happened):
    deadline = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_killed_twice_is_resumed(scenes, tmp_path):
    recipe, whole, run = tmp_path / "recipe.yaml", tmp_path / "whole", tmp_path / "run"
    recipe.write_text(yaml.safe_dump(ADAMW))
    limner("train", recipe, "--collection", scenes, "--out", whole)
    chance = random.Random(1)
    resume, known = [], frozenset()
    for _ in range(2):
        process = start(recipe, scenes, run, *resume)
        wait_for_a_state(process, run, known)
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        resume, known = ["--resume"], frozenset(path.name for path in run.glob("state-*"))
    limner("train", recipe, "--collection", scenes, "--out", run, "--resume")
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert (run / "tokenizer.json").read_bytes() == (whole / "tokenizer.json").read_bytes()
    assert without_times(run) == without_times(whole)
    left = {path.name for path in run.iterdir()}
    assert left == {path.name for path in whole.iterdir()}


def test_ctrl_c_is_one_line_and_status_130(scenes, tmp_path):
    recipe, run = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(yaml.safe_dump(ADAMW))
    process = start(recipe, scenes, run)
    wait_for_a_state(process, run)
    interrupt(process)
    assert list(run.glob("state-*")), "the state of the step under way is kept"
