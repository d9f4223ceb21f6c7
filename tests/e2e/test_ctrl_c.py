"""Ctrl-C while images are described ends the command as a shell expects it."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

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
