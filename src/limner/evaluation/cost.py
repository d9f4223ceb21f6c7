"""Time, memory and parameters of captioners, from an image file to its caption."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice, pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from limner.data.collection import Collection
from limner.errors import RunError
from limner.inference.load import load
from limner.media.image import ImageInput
from limner.process import peak_memory
from limner.runs.pretrained import local_folder

IMAGES = 8
"""Images that are described one by one."""


class Cost(NamedTuple):
    """Cost of the captions of some images, described one by one by the default settings."""

    parameters: int
    """Number of parameters, without the backbone of a run; its time and memory are measured."""
    seconds: float
    """Median time of an image, without the first image."""
    memory: int | None
    """Largest memory of the process, in bytes; None on systems that do not report it."""


def measure_cost(run: Path, collection: Collection, split: str) -> Cost | None:
    """Measure a model in a new process; None for a model that describes no images, or a split without images.

    Raises:
        RunError: the process cannot run, for example because its main program has no `if __name__ == "__main__":`.
    """
    items = islice((item for item in collection.items(split) if item.image is not None), IMAGES)
    images = [collection.media_source(item) for item in items]
    if not images:
        return None
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(_measure, Path(local_folder(run)), images).result()
    except BrokenProcessPool:
        raise RunError(
            f"{run}: the process that measures it has ended; in a program of your own, call limner under "
            "'if __name__ == \"__main__\":'"
        ) from None


def _measure(run: Path, images: Sequence[ImageInput]) -> Cost | None:
    captioner: Any = load(run)
    if not hasattr(captioner, "describe"):
        return None
    captioner.describe(images[:1], log_cut_off=False)
    times = [time.perf_counter()]
    for image in images:
        captioner.describe([image], log_cut_off=False)
        times.append(time.perf_counter())
    return Cost(captioner.parameters, median(after - before for before, after in pairwise(times)), peak_memory())
