"""Images per second of the built-in backbone, JPEG decoding included: fused and plain convolutions in alternation.

LIMNER_PHOTOS_COUNT is the number of photographs (default 640); Flickr8k's in LIMNER_DATA, otherwise drawn ones.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from limner.data.collection import Collection, write_items
from limner.data.examples import Item
from limner.features.encoders import network as encoders
from limner.features.encoders.load import load_backbone
from limner.features.encoders.network import NetworkBackbone
from limner.features.extract import extract
from measuring import real_data, report

SIZES = (260, 300)
"""Side of the input in pixels: as published, and of the built-in captioner."""
ROUNDS = 3


class Cost(NamedTuple):
    """Cost of one extraction."""

    seconds: float
    processor: float
    """Processor time of all threads in seconds."""
    page_faults: int


def built_in_backbone(draw: Callable[[Path, int], Sequence[Path]]) -> None:
    """Measure pooled and grid features of JPEG files at each size of `SIZES`.

    Args:
        draw: makes a number of images in a folder, for machines without photographs.
    """
    count = int(os.environ.get("LIMNER_PHOTOS_COUNT", "640"))
    with tempfile.TemporaryDirectory() as scratch:
        folder, data = Path(scratch), real_data()
        files = draw(folder, count) if data is None else sorted((data / "flickr8k" / "images").glob("*.jpg"))[:count]
        write_items(
            folder / "c", [Item(file.stem, "train", image=os.path.relpath(file, folder / "c")) for file in files]
        )
        for file in files:
            file.read_bytes()  # load all files into the file system cache
        for size in SIZES:
            _measure(folder / "c", files, size, "noise" if data is None else "Flickr8k")


def _measure(collection: Path, files: Sequence[Path], size: int, images: str) -> None:
    networks = {True: _load(size), False: _load(size, fused=False)}
    pixels = np.stack([networks[True].read(file) for file in files[:32]])
    costs: dict[bool, list[Cost]] = {True: [], False: []}
    for number in range(ROUNDS):
        for fused, network in networks.items():
            network(pixels)  # warm-up
            costs[fused].append(_extract(collection, network, f"{size}_{fused}_{number}"))
    rate, processor, faults = (
        {fused: float(np.median([cost[field] for cost in each])) / len(files) for fused, each in costs.items()}
        for field in range(len(Cost._fields))
    )
    report(
        f"backbone_{size}",
        1 / rate[True],
        "images/s",
        ">= 60",
        images=f"{len(files)} ({images})",
        plain_images_per_second=round(1 / rate[False], 1),
        processor_ms_an_image=round(1000 * processor[True], 1),
        plain_processor_ms_an_image=round(1000 * processor[False], 1),
        plain_over_fused_processor=round(processor[False] / processor[True], 2),
        page_faults_an_image=round(faults[True]),
    )


def _load(size: int, fused: bool = True) -> NetworkBackbone:
    can_fuse = encoders.can_fuse
    if not fused:
        encoders.can_fuse = lambda: False
    try:
        network = load_backbone("efficientnet-lite2", kind="both", resize="squash", size=size)
    finally:
        encoders.can_fuse = can_fuse
    assert isinstance(network, NetworkBackbone)
    return network


def _extract(collection: Path, network: NetworkBackbone, name: str) -> Cost:
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    start, used = time.perf_counter(), time.process_time()
    extract(Collection.open(collection), network, name=name)
    seconds, processor = time.perf_counter() - start, time.process_time() - used
    return Cost(seconds, processor, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
