"""Key frames of videos as one image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from limner.media.image import open_image
from limner.media.modality import VIDEO
from limner.media.video import FrameSampling, read_frames

KEY_FRAMES = 4
"""Number of key frames of a thumbnail."""
GAP = 2
"""Distance of frames in pixels."""


def open_stills(path: Path, count: int = KEY_FRAMES, *, min_side: int | None = None) -> list[Image.Image]:
    """Open an image, or key frames of a video, evenly spaced in time.

    Args:
        path: image or video file.
        count: maximum number of key frames.
        min_side: shorter side of an image that is needed, see `open_image`.

    Raises:
        MediaError: the file cannot be read.
        MissingExtraError: the file is a video and PyAV is not installed.
    """
    if VIDEO.matches(path):
        return read_frames(path, FrameSampling(count=count))
    return [open_image(path, min_side=min_side)]


def film_strip(frames: Sequence[Image.Image], side: int, columns: int | None = None) -> Image.Image:
    """Lay out frames in rows, from left to right and from top to bottom.

    Args:
        frames: one frame or more.
        side: longer side of the first frame in the strip, in pixels; the other frames have the same size.
        columns: number of frames in a row; default: all.
    """
    columns = columns or len(frames)
    rows = math.ceil(len(frames) / columns)
    scale = side / max(frames[0].size)
    width, height = (max(1, round(length * scale)) for length in frames[0].size)
    strip = Image.new("RGB", (columns * (width + GAP) - GAP, rows * (height + GAP) - GAP), "white")
    for number, frame in enumerate(frames):
        place = number % columns * (width + GAP), number // columns * (height + GAP)
        strip.paste(frame.resize((width, height), Image.Resampling.LANCZOS), place)
    return strip


def strip_grid(count: int) -> tuple[int, int]:
    """Rows and columns of a strip of `count` frames that is about as high as wide."""
    columns = math.ceil(math.sqrt(count))
    return math.ceil(count / columns), columns


def pad_weights(weights: ArrayLike, count: int) -> NDArray[np.float64]:
    """Add columns of zeros to attention weights (T, L) for the empty places of a strip, up to `count`."""
    values = np.asarray(weights, dtype=np.float64)
    return np.pad(values, ((0, 0), (0, count - values.shape[1])))
