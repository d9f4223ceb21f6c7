"""An extraction that is killed and run again gives the content of an uninterrupted one."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ResNetConfig, ResNetModel

from limner.data.collection import Collection, write_items
from limner.data.examples import Item
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.features.store import FeatureTable

COUNT = 60
SCRIPT = """
import sys, time
from limner.data.collection import Collection
from limner.features import table_format
from limner.features.extract import extract
from limner.features.encoders.load import load_backbone

table_format._CHUNK_ROWS = 8
collection, network = sys.argv[1:]
def slowly(done, total):
    print(done, flush=True)
    if done >= 28:
        time.sleep(300)  # until it is killed
backbone = load_backbone(network, kind="both", size=32)
extract(Collection.open(collection), backbone, name="killed", batch_size=4, on_progress=slowly)
"""


COMMAND = """
import os, sys, time
from limner.features import extract, table_format
from limner.apps import cli

read_batches, last = extract._read_batches, int(os.environ.get("LAST_BATCH", "-1"))
def slowly(*arguments):
    for number, batch in enumerate(read_batches(*arguments)):
        yield batch
        if number == last:
            time.sleep(300)  # until it is interrupted
extract._read_batches, table_format._CHUNK_ROWS = slowly, 8
sys.argv[0] = "limner"
cli.main()
"""


@pytest.fixture
def network(tmp_path):
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1])
    ResNetModel(config).save_pretrained(tmp_path / "net")
    return tmp_path / "net"


@pytest.fixture
def collection(tmp_path):
    folder = tmp_path / "collection"
    folder.mkdir()
    random = np.random.default_rng(0)
    items = []
    for n in range(COUNT):
        pixels = random.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{n}.jpg")
        items.append(Item(f"p{n}", "train", image=f"{n}.jpg"))
    (folder / "13.jpg").write_bytes(b"")  # a damaged image shifts the batches of the second run
    write_items(folder, items)
    return Collection.open(folder)


def test_killed_extraction_is_continued_to_the_same_content(collection, network):
    backbone = load_backbone(str(network), kind="both", size=32)
    whole = extract(collection, backbone, name="whole", batch_size=4).tables

    command = [sys.executable, "-c", SCRIPT, str(collection.path), str(network)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert any(int(line) >= 28 for line in process.stdout)
    process.kill()
    process.communicate()

    stored = len(FeatureTable.open(collection, "killed"))
    assert 0 < stored < COUNT - 1  # killed after some commits and before the end
    second = extract(collection, backbone, name="killed", batch_size=4)
    assert second.present == stored
    assert set(second.skipped) == {"p13"}
    for one, two in zip(whole, second.tables, strict=True):
        assert one.ids() == two.ids()
        np.testing.assert_array_equal(one.take(one.ids()).view(np.uint16), two.take(one.ids()).view(np.uint16))


def test_ctrl_c_is_one_line_and_the_same_command_resumes(collection):
    arguments = ["features", str(collection.path), "--backbone", "pixels:8", "--batch-size", "4"]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        env={**os.environ, "LAST_BATCH": "7"},
        stderr=subprocess.PIPE,
        text=True,
    )
    table = collection.path / "features" / "pixels8.lance"
    deadline = time.monotonic() + 120
    while len(list(table.glob("data/*"))) < 2 and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in output
    assert "interrupted; files already written are complete" in output
    stored = len(FeatureTable.open(collection, "pixels8"))
    assert 0 < stored < COUNT - 1
    subprocess.run([sys.executable, "-c", COMMAND, *arguments], check=True, capture_output=True)
    table = FeatureTable.open(collection, "pixels8")
    assert table.ids() == [item.id for item in collection.items() if item.id != "p13"]
    again = extract(collection, load_backbone("pixels:8"), name="whole").tables[0]
    np.testing.assert_array_equal(table.take(table.ids()), again.take(table.ids()))
