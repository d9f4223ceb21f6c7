"""Short clips of one moving thing, written as real video files (H.264 in MP4) that any browser plays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import pi, sin
from pathlib import Path
from typing import Any

from PIL import Image

from limner.errors import MissingExtraError
from limner.synthetic.scenes.drawing import compose, draw_ground, stand
from limner.synthetic.scenes.things import draw_thing
from limner.synthetic.scenes.world import Scene

GROUND_LINE = 0.88


def pyav() -> Any:  # noqa: ANN401 (PyAV is optional)
    """The PyAV module, or MissingExtraError."""
    try:
        import av
    except ImportError:
        raise MissingExtraError("writing clips", "video") from None
    return av


def frames(scene: Scene, side: int, count: int) -> Iterator[Image.Image]:
    """The clip's pictures: the ground and the shadow's line stay, the thing moves."""
    (thing,) = scene.things
    image = draw_thing(thing, side)
    ground = draw_ground(scene.ground, scene.backdrop, side)
    for number in range(count):
        x, y = path(scene.motion or "", number / max(1, count - 1), thing.x)
        placed = stand(replace(thing, x=x, y=y), image, side)
        floor = placed.floor and round(GROUND_LINE * side)
        yield compose(ground, [placed._replace(floor=floor)])


def path(motion: str, time: float, x: float) -> tuple[float, float]:
    """Where a thing stands at a time between 0 and 1; `x` is its place in motions that go up or down."""
    match motion:
        case "left":
            return 0.82 - 0.64 * time, GROUND_LINE
        case "right":
            return 0.18 + 0.64 * time, GROUND_LINE
        case "fall":
            return x, GROUND_LINE - 0.46 * (1 - time**2)
        case "rise":
            return x, GROUND_LINE - 0.46 * time
        case _:
            return x, GROUND_LINE - 0.26 * abs(sin(2 * pi * time))


# Same scene, same bytes: one thread, no stamps (bitexact), and x264 without its assembly, which reads past
# small frames and then decides by what happens to lie there.
CONTAINER = {"fflags": "+bitexact", "movflags": "+faststart"}
ENCODER = {"crf": "20", "preset": "veryfast", "x264-params": "asm=0"}


def write_clip(scene: Scene, target: Path, *, side: int, count: int, rate: int) -> None:
    """Encode a clip.

    Args:
        scene: with one thing and a motion.
        target: the file to write.
        side: of the square picture in pixels, an even number.
        count: number of frames.
        rate: frames a second.

    Raises:
        MissingExtraError: PyAV is not installed.
    """
    av = pyav()
    with av.open(str(target), "w", format="mp4", options=CONTAINER) as file:
        stream = file.add_stream("libx264", rate=rate, options=ENCODER)
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.codec_context.flags |= av.codec.context.Flags.bitexact
        for picture in frames(scene, side, count):
            file.mux(stream.encode(av.VideoFrame.from_image(picture).reformat(format=stream.pix_fmt)))
        file.mux(stream.encode(None))
