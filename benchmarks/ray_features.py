"""Features of photographs on a Ray cluster and in one process, on the same cores: equality and overhead.

LIMNER_PHOTOS_COUNT is the number of photographs (default 7,000); Flickr8k's in LIMNER_DATA, otherwise drawn ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from limner.data.collection import Collection, write_items
from limner.data.examples import Item
from limner.features.store import FeatureTable
from measuring import real_data, report

OPTIONS = ("--backbone", "efficientnet-lite2", "--kind", "both", "--size", "300", "--resize", "squash")
COMMAND = "from limner.apps.cli import main; main()"


def ray_features(draw: Callable[[Path, int], Sequence[Path]]) -> None:
    """Measure `limner features` as a command, with Ray on this machine and without, LIMNER_ROUNDS times (default 1).

    Args:
        draw: makes a number of images in a folder, for machines without photographs.
    """
    count, rounds = int(os.environ.get("LIMNER_PHOTOS_COUNT", "7000")), int(os.environ.get("LIMNER_ROUNDS", "1"))
    with tempfile.TemporaryDirectory() as scratch:
        folder, data = Path(scratch), real_data()
        files = draw(folder, count) if data is None else sorted((data / "flickr8k" / "images").glob("*.jpg"))[:count]
        write_items(
            folder / "c", [Item(file.stem, "train", image=os.path.relpath(file, folder / "c")) for file in files]
        )
        for file in files:
            file.read_bytes()  # load all files into the file system cache
        seconds: dict[str, list[float]] = {"alone": [], "ray": []}
        for number in range(rounds):
            for how, options in (("alone", ()), ("ray", ("--ray", "local"))):
                seconds[how].append(_run(folder / "c", f"{how}{number}", options))
        alone, with_ray = (float(np.median(each)) for each in seconds.values())
        _require_equal(folder / "c")
        report(
            "ray_features",
            100 * (with_ray / alone - 1),
            "% more time than one process on the same cores",
            "<= 15",
            images=f"{len(files)} ({'noise' if data is None else 'Flickr8k'})",
            seconds=round(with_ray, 1),
            seconds_alone=round(alone, 1),
            images_per_second=round(len(files) / with_ray, 1),
            images_per_second_alone=round(len(files) / alone, 1),
            equal=True,
        )


def _run(collection: Path, name: str, options: Sequence[str]) -> float:
    """Run the command with the threads that it chooses itself; return its seconds, with the start of Ray."""
    start = time.perf_counter()
    command = [sys.executable, "-c", COMMAND, "features", str(collection), *OPTIONS, "--name", name, *options]
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - start


def _require_equal(folder: Path) -> None:
    """Check that the tables of all runs have the same rows."""
    collection = Collection.open(folder)
    for suffix in ("", ".grid"):
        first, *others = (FeatureTable.open(collection, name) for name in _tables(collection, suffix))
        ids = first.ids()
        for other in others:
            assert other.ids() == ids, "the rows must have one order"
            for begin in range(0, len(ids), 512):
                chunk = ids[begin : begin + 512]
                same = np.array_equal(first.take(chunk).view(np.uint16), other.take(chunk).view(np.uint16))
                assert same, "features must be equal bit for bit"


def _tables(collection: Collection, suffix: str) -> list[str]:
    return [name for name in collection.features() if name.endswith(".grid") == bool(suffix)]
