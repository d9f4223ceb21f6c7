"""Ctrl-C ends a command as a shell expects it, and a training keeps the step under way."""

import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.synthetic.scenes import SceneSettings
from limner.synthetic.storage import generate_collection
from limner.training.state import find_state

# The command, which receives SIGINT once while graphs of the given file name compute.
COMMAND = """
import os, signal, sys, threading, time
from limner.apps import cli
from limner.runtime import graphs

compute, name, once = graphs.Graph.__call__, sys.argv.pop(), threading.Lock()
def interrupt():
    time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
def compute_and_interrupt(self, values):
    if self.name.endswith(name) and once.acquire(blocking=False):
        threading.Thread(target=interrupt).start()
    return compute(self, values)
graphs.Graph.__call__ = compute_and_interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
sys.argv[0] = "limner"
cli.main()
"""


@pytest.mark.parametrize("repetition", range(3))
def test_ctrl_c_while_a_folder_is_described_ends_with_status_130(repetition, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 300, 300, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    command = [sys.executable, "-c", COMMAND, "describe", str(tmp_path), "backbone.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr and "terminate" not in done.stderr


TRAINING = """
import sys, time
from limner.apps import cli
from limner.training.state import TrainState

add_step = TrainState.add_step
def add_step_slowly(*arguments):
    add_step(*arguments)
    print("step", flush=True)
    time.sleep(0.5)
TrainState.add_step = add_step_slowly
sys.argv[0] = "limner"
cli.main()
"""


def test_ctrl_c_in_an_epoch_is_one_line_and_keeps_the_step_under_way(tmp_path):
    scenes = generate_collection(tmp_path / "scenes", SceneSettings(train=60, val=1, test=0, size=32))
    extract(scenes, load_backbone("pixels:16"))
    arguments = ["train", "scenes/mrnn", "--collection", scenes.path, "--out", tmp_path / "run"]
    arguments += ["features.tables=[pixels16]", "training.batch_size=16"]  # 19 steps an epoch
    command = [sys.executable, "-c", TRAINING, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert "step\n" in iter(process.stdout.readline, "")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors
    assert "interrupted; files already written are complete" in errors
    assert find_state(tmp_path / "run") is not None and not (tmp_path / "run" / "model.safetensors").exists()
