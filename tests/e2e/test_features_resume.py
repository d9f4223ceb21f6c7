"""An extraction that is killed and run again gives the content of an uninterrupted one."""

import os
import subprocess
import sys
import time

import numpy as np
from ray_cluster import DAMAGED, photographs

from interrupted import interrupt
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.features.store import FeatureTable

COUNT = 60


COMMAND = """
import os, sys, time
from limner.features import extract, tables
from limner.apps import cli

read_batches, last = extract._read_batches, int(os.environ.get("LAST_BATCH", "-1"))
def slowly(*arguments):
    for number, batch in enumerate(read_batches(*arguments)):
        yield batch
        if number == last:
            time.sleep(300)  # until it is interrupted
extract._read_batches, tables._CHUNK_ROWS = slowly, 8
sys.argv[0] = "limner"
cli.main()
"""


def test_ctrl_c_is_one_line_and_the_same_command_resumes(tmp_path):
    collection = photographs(tmp_path / "collection", COUNT)  # a damaged image shifts the batches of the second run
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
    interrupt(process)
    stored = len(FeatureTable.open(collection, "pixels8"))
    assert 0 < stored < COUNT - 1
    subprocess.run([sys.executable, "-c", COMMAND, *arguments], check=True, capture_output=True)
    table = FeatureTable.open(collection, "pixels8")
    assert table.ids() == [item.id for item in collection.items() if item.id != f"p{DAMAGED}"]
    again = extract(collection, load_backbone("pixels:8"), name="whole").tables[0]
    np.testing.assert_array_equal(table.take(table.ids()), again.take(table.ids()))
