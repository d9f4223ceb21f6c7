"""Seconds of `limner index`: a new index of photographs, and its update without changes, start of the process included.

LIMNER_PHOTOS names the folder of photographs (default: Flickr8k in LIMNER_DATA, otherwise drawn ones), and
LIMNER_PHOTOS_COUNT their number (default 1,000).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from limner.media.modality import IMAGE
from measuring import real_data, report

DEFAULT_COUNT = 1000
TARGET_RATE = 7000 / 180
"""Images per second of the target, 7,000 images in 3 minutes."""


def folders(draw: Callable[[Path, int], Sequence[Path]]) -> None:
    """Measure the first index of a folder and its update.

    Args:
        draw: makes a number of images in a folder, for machines without photographs.
    """
    count = int(os.environ.get("LIMNER_PHOTOS_COUNT", DEFAULT_COUNT))
    with tempfile.TemporaryDirectory() as scratch:
        photos = Path(scratch) / "photos"
        photos.mkdir()
        data = real_data()
        source = os.environ.get("LIMNER_PHOTOS") or (None if data is None else data / "flickr8k" / "images")
        files = draw(photos, count) if source is None else _link(Path(source), photos, count)
        for file in files:
            file.read_bytes()  # load all files into the file system cache
        details = {"photographs": len(files), "folder": str(source or "drawn")}
        seconds, processor = _index(photos)
        report(
            "index",
            len(files) / seconds,
            "images/s",
            f">= {TARGET_RATE:.0f}",
            **details,
            seconds=round(seconds, 1),
            processor_ms_an_image=round(1000 * processor / len(files), 1),
        )
        seconds, processor = _index(photos)
        report("index_again", seconds, "s without changes", "<= 5", **details, processor_seconds=round(processor, 2))


def _link(source: Path, folder: Path, count: int) -> list[Path]:
    """Link to the first images of a folder by their names."""
    links = []
    for file in sorted(one for one in source.iterdir() if IMAGE.matches(one.name))[:count]:
        links.append(folder / file.name)
        links[-1].symlink_to(file.resolve())
    return links


def _index(folder: Path) -> tuple[float, float]:
    """Run `limner index`; return its seconds by the clock and of processor time."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "limner", "index", str(folder)], check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
