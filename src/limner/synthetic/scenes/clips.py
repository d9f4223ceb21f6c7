"""Clips of one moving object, written as video files (H.264 in MP4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import pi, sin
from pathlib import Path
from typing import Any

from PIL import Image

from limner.errors import MissingExtraError
from limner.synthetic.scenes.drawing import compose, draw_background, place_object
from limner.synthetic.scenes.objects import draw_object
from limner.synthetic.scenes.scene import Scene

GROUND_Y = 0.88


def av_module() -> Any:  # noqa: ANN401 (PyAV is optional)
    """Import PyAV; MissingExtraError if it is not installed."""
    try:
        import av
    except ImportError:
        raise MissingExtraError("writing clips", "video") from None
    return av


def frames(scene: Scene, side: int, count: int) -> Iterator[Image.Image]:
    """Draw the frames of a clip: the object moves, the background and the height of the shadow do not change."""
    (obj,) = scene.objects
    image = draw_object(obj, side)
    background = draw_background(scene.background, scene.background_seed, side)
    for number in range(count):
        x, y = position(scene.motion or "", number / max(1, count - 1), obj.x)
        placed = place_object(replace(obj, x=x, y=y), image, side)
        shadow_y = placed.shadow_y and round(GROUND_Y * side)
        yield compose(background, [placed._replace(shadow_y=shadow_y)])


def position(motion: str, time: float, x: float) -> tuple[float, float]:
    """Position (x, y) of the object at a time from 0 to 1; `x` is its position in vertical motions."""
    match motion:
        case "left":
            return 0.82 - 0.64 * time, GROUND_Y
        case "right":
            return 0.18 + 0.64 * time, GROUND_Y
        case "fall":
            return x, GROUND_Y - 0.46 * (1 - time**2)
        case "rise":
            return x, GROUND_Y - 0.46 * time
        case _:
            return x, GROUND_Y - 0.26 * abs(sin(2 * pi * time))


# Reproducible files: one thread, no time stamps (bitexact), and x264 without assembly, which reads uninitialised memory
# beyond small frames.
CONTAINER = {"fflags": "+bitexact", "movflags": "+faststart"}
ENCODER = {"crf": "20", "preset": "veryfast", "x264-params": "asm=0"}


def write_clip(scene: Scene, target: Path, *, side: int, count: int, rate: int) -> None:
    """Encode a clip.

    Args:
        scene: scene with one object and a motion.
        target: file to write.
        side: side of a frame in pixels, an even number.
        count: number of frames.
        rate: frames per second.

    Raises:
        MissingExtraError: PyAV is not installed.
    """
    av = av_module()
    with av.open(str(target), "w", format="mp4", options=CONTAINER) as file:
        stream = file.add_stream("libx264", rate=rate, options=ENCODER)
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.codec_context.flags |= av.codec.context.Flags.bitexact
        for frame in frames(scene, side, count):
            file.mux(stream.encode(av.VideoFrame.from_image(frame).reformat(format=stream.pix_fmt)))
        file.mux(stream.encode(None))
