"""A `limner index` that is killed and run again describes every image, and none twice."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

COUNT = 24
# The command with small chunks; it prints the images that each chunk describes, once they are written. After a
# number of images it waits to be killed.
COMMAND = """
import sys, time
from limner.apps import cli
from limner.apps.photos import update

update.CHUNK_SIZE = 4
update._READ_AHEAD = 8
describe, most = update.Updater._describe, int(sys.argv.pop())
def describe_and_print(self, images, batch_size):
    if self.result.described >= most:
        time.sleep(300)
    describe(self, images, batch_size)
    print("described", *(image.file.path for image in images), flush=True)
update.Updater._describe = describe_and_print
sys.argv[0] = "limner"
cli.main()
"""


@pytest.fixture
def photos(tmp_path):
    folder, random = tmp_path / "photos", np.random.default_rng(0)
    folder.mkdir()
    for number in range(COUNT):
        coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        file = folder / f"{number:02d}.png"
        coarse.resize((64, 64)).save(file)
        os.utime(file, (1e9, 1e9))  # a file that has just changed is read again
    return folder


def start(folder, most):
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "index", str(folder), "--json", str(most)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_index_is_continued_without_describing_an_image_twice(photos):
    first = start(photos, COUNT // 3)
    described = []
    for line in first.stdout:
        if line.startswith("described"):
            described += line.split()[1:]
            if len(described) >= COUNT // 3:
                break
    first.send_signal(signal.SIGKILL)
    rest, _ = first.communicate()
    described += [path for line in rest.splitlines() if line.startswith("described") for path in line.split()[1:]]
    assert first.returncode == -signal.SIGKILL and len(described) < COUNT

    second = start(photos, COUNT)
    output, errors = second.communicate()
    assert second.returncode == 0, errors
    lines = output.splitlines()
    again = [path for line in lines if line.startswith("described") for path in line.split()[1:]]
    assert sorted(described + again) == [f"{number:02d}.png" for number in range(COUNT)]
