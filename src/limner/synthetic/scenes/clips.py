"""Generated clips of one moving object, written as video files (H.264 in MP4).

In the middle of a clip the object has a position and a size that do not depend on its motion, so that the middle frame
alone tells neither the verb nor the direction of the sentences. Played backwards, every clip of a motion with a
direction is one of the opposite motion, so that a frame at a random time does not tell the direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import pi, sin
from pathlib import Path
from random import Random
from typing import Annotated, NamedTuple

from PIL import Image, ImageDraw

from limner.bounds import Bounds, CountOrNone, Probability
from limner.data.examples import Item, Track
from limner.errors import extra_module
from limner.synthetic.scenes.drawing import Box, PlacedObject, compose, draw_background, place_object
from limner.synthetic.scenes.grammar import describe_scene
from limner.synthetic.scenes.objects import draw_object
from limner.synthetic.scenes.scene import BACKGROUNDS, COLOURS, MOTIONS, ONE_DIRECTION, UNAMBIGUOUS, Scene, SceneObject
from limner.synthetic.storage import GeneratedSettings
from limner.text.labels import HIDDEN, VISIBLE

SHADOW_Y = 0.93
OBSTACLE_MARGIN = 0.07
"""Distance by which an obstacle is larger than the object on each side, as a fraction of the side of a frame."""
OBSTACLE_COLOUR, OBSTACLE_EDGE = (120, 116, 124), (84, 80, 90)


class ClipSettings(GeneratedSettings):
    """Size and contents of a generated collection of clips.

    The `label` of an item is its motion, one of `MOTIONS`, and its `track` is the box of the object in each frame. The
    `frame_labels` of an item with an obstacle say for each frame whether the object is `visible` or `hidden`.
    """

    kind, edition = "clips", 3

    train: CountOrNone = 1600
    val: CountOrNone = 200
    test: CountOrNone = 200
    size: Annotated[int, Bounds(32, 1_024, step=2)] = 96
    """Side of a frame in pixels, an even number."""
    frames: Annotated[int, Bounds(2, 1_000)] = 16
    """Number of frames."""
    rate: Annotated[int, Bounds(1, 120)] = 8
    """Frames per second."""
    occluded: Probability = 0.0
    """Fraction of clips of motions in one direction ('left', 'right', 'fall', 'rise') with an obstacle that hides the
    object for some frames."""

    @property
    def file_bytes(self) -> float:
        return self.frames * self.size**2 / 50

    def make_item(self, split: str, index: int, folder: Path) -> Item:
        clip = make_clip(self.seed, split, index, self.occluded)
        name = f"{split}-{index:05d}"
        video, side = f"videos/{name}.mp4", self.size
        track, frame_labels = write_clip(clip, folder / video, side=side, count=self.frames, rate=self.rate)
        return Item(
            id=name,
            split=split,
            video=video,
            sentences=describe_scene(clip.scene),
            label=clip.motion,
            track=track,
            frame_labels=frame_labels,
            frame_size=(side, side),
        )


@dataclass(frozen=True, slots=True)
class Clip:
    """A moving object on a background."""

    scene: Scene  # with the position and the size of the object in the middle of the clip
    extent: float  # length of the motion, as a fraction of the side of a frame
    phase: float  # of a periodic motion, from 0 to 1
    hidden_at: float | None = None  # time at which the object is in the centre of an obstacle, from 0 to 1

    @property
    def motion(self) -> str:
        """Motion of the object, one of `MOTIONS`."""
        assert self.scene.motion is not None
        return self.scene.motion


def make_clip(seed: int, split: str, index: int, occluded: float = 0.0) -> Clip:
    """Sample a clip.

    The split and the number of the clip in it are part of the seed; `occluded` is the probability of an obstacle if the
    object moves in one direction; the rest of the clip does not depend on it.
    """
    rng = Random(f"{seed}/{split}/clip/{index}")
    span = rng.uniform(0.24, 0.32)
    obj = SceneObject(
        rng.choice(UNAMBIGUOUS),
        rng.choice(COLOURS),
        x=rng.uniform(0.38, 0.62),
        y=rng.uniform(0.38, 0.62) + span / 2,
        span=span,
        flip=rng.random() < 0.5,
        variant=rng.randrange(60),
    )
    scene = Scene(rng.choice(BACKGROUNDS), (obj,), "middle", background_seed=rng.randrange(2**32))
    motion, extent, phase = rng.choice(MOTIONS), rng.uniform(0.36, 0.42), rng.random()
    hidden = rng.random() < occluded and motion in ONE_DIRECTION
    return Clip(replace(scene, motion=motion), extent, phase, rng.uniform(0.3, 0.7) if hidden else None)


def object_at(clip: Clip, time: float) -> SceneObject:
    """Compute the position and size of the object at a time from 0 to 1."""
    (obj,) = clip.scene.objects
    x, y, scale = (at - middle for at, middle in zip(_course(clip, time), _course(clip, 0.5), strict=True))
    factor = 2**scale
    # A growing object keeps its centre.
    return replace(obj, x=obj.x + x, y=obj.y + y + obj.span / 2 * (factor - 1), span=obj.span * factor)


def _course(clip: Clip, time: float) -> tuple[float, float, float]:
    """Horizontal position, vertical position (down) and binary logarithm of the size, up to constants."""
    length, angle = clip.extent * time, 2 * pi * (time + clip.phase)
    courses: dict[str, tuple[float, float, float]] = {
        "left": (-length, 0, 0),
        "right": (length, 0, 0),
        "fall": (0, length, 0),
        "rise": (0, -length, 0),
        "jump": (0, -0.5 * clip.extent * abs(sin(angle)), 0),
        "swing": (0.3 * clip.extent * sin(2 * angle), 0, 0),
        "grow": (0, 0, 4 * length),
        "shrink": (0, 0, -4 * length),
    }
    return courses[clip.motion]


class Frame(NamedTuple):
    """A frame of a clip."""

    image: Image.Image
    box: Box  # box of the object, hidden parts included
    hidden: bool  # whether the obstacle hides the whole box


def frames(clip: Clip, side: int, count: int) -> Iterator[Frame]:
    """Draw the frames of a clip; the background, the height of the shadow and the obstacle do not move."""
    background = draw_background(clip.scene.background, clip.scene.background_seed, side)
    obstacle = None if clip.hidden_at is None else _obstacle(clip, clip.hidden_at, side)
    for number in range(count):
        placed = _place(object_at(clip, number / max(1, count - 1)), side)
        shadow_y = placed.shadow_y and round(SHADOW_Y * side)
        image = compose(background, [placed._replace(shadow_y=shadow_y)])
        if obstacle is not None:
            fill, edge = OBSTACLE_COLOUR, OBSTACLE_EDGE
            ImageDraw.Draw(image).rectangle(obstacle, fill=fill, outline=edge, width=max(1, side // 48))
        yield Frame(image, placed.box, obstacle is not None and _is_inside(placed.box, obstacle))


def _is_inside(box: Box, outer: Box) -> bool:
    """Whether a box (left, top, width, height) is inside another box (left, top, right, bottom)."""
    left, top, width, height = box
    return outer[0] <= left and outer[1] <= top and left + width <= outer[2] and top + height <= outer[3]


def _place(obj: SceneObject, side: int) -> PlacedObject:
    return place_object(obj, draw_object(obj, side), side)


def _obstacle(clip: Clip, time: float, side: int) -> Box:
    """Left, top, right and bottom of a panel around the object at a time.

    For sideways motions it reaches to the lower edge of the frame, so that the shadow is hidden as well.
    """
    left, top, width, height = _place(object_at(clip, time), side).box
    margin = OBSTACLE_MARGIN * side
    bottom = side if clip.motion in ("left", "right") else top + height + margin
    return left - margin, top - margin, left + width + margin, bottom


# Reproducible files: one thread, no time stamps (bitexact), and x264 without assembly, which reads uninitialised memory
# beyond small frames.
CONTAINER = {"fflags": "+bitexact", "movflags": "+faststart"}
ENCODER = {"crf": "20", "preset": "veryfast", "x264-params": "asm=0"}


def write_clip(clip: Clip, target: Path, *, side: int, count: int, rate: int) -> tuple[Track, tuple[str, ...]]:
    """Encode a clip.

    Return the box of the object in each frame, hidden parts included; and `visible` or `hidden` for each frame of a
    clip with an obstacle, nothing for other clips.
    """
    av = extra_module("av", "writing clips", "video")
    track: list[Box] = []
    labels: list[str] = []
    with av.open(str(target), "w", format="mp4", options=CONTAINER) as file:
        stream = file.add_stream("libx264", rate=rate, options=ENCODER)
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.codec_context.flags |= av.codec.context.Flags.bitexact
        for frame in frames(clip, side, count):
            track.append(frame.box)
            labels.append(HIDDEN if frame.hidden else VISIBLE)
            file.mux(stream.encode(av.VideoFrame.from_image(frame.image).reformat(format=stream.pix_fmt)))
        file.mux(stream.encode(None))
    return tuple(track), () if clip.hidden_at is None else tuple(labels)
