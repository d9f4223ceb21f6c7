"""The generated collection: drawn scenes and clips with sentences in English, German and French.

What a fresh machine with no data and no network uses, and what tests learn from. The drawings are original;
everything follows from the settings: the same seed gives the same bytes.

Some English words of the scenes have two meanings (`SENSES`), and nothing but the picture tells which one is
meant. An item with such a word carries it with its sense as `label`, 'bat:animal'. In French, 'grue' and
'lettre' keep both meanings of 'crane' and 'letter'; in German all six words are told apart.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import Field

from limner.data.collection import Collection
from limner.data.examples import Item, Region
from limner.errors import CollectionError
from limner.progress import Progress
from limner.settings import Settings
from limner.synthetic.scenes.clips import pyav, write_clip
from limner.synthetic.scenes.drawing import draw_scene
from limner.synthetic.scenes.grammar import english, tell
from limner.synthetic.scenes.world import SENSES, make_clip, make_scene, with_senses
from limner.synthetic.storage import is_there, store

__all__ = ["SENSES", "ClipSettings", "SceneSettings", "generate", "make_scene", "tell", "with_senses"]

logger = logging.getLogger(__name__)

RECORD = "scenes.json"
EDITION = 1
"""Counted up whenever the same settings begin to give other pictures or sentences."""


class ClipSettings(Settings):
    """How many clips, and how they look; none unless asked for, as they need the extra 'video'."""

    train: int = Field(default=0, ge=0)
    val: int = Field(default=0, ge=0)
    test: int = Field(default=0, ge=0)
    size: int = Field(default=96, ge=32, le=1024, multiple_of=2)
    """Side in pixels; the video format wants it even."""
    frames: int = Field(default=24, ge=2)
    rate: int = Field(default=12, ge=1, le=120)
    """Frames a second."""


class SceneSettings(Settings):
    """What the generated collection holds."""

    seed: int = 0
    train: int = Field(default=2400, ge=0)
    """Pictures in the split 'train'; `val` and `test` likewise."""
    val: int = Field(default=200, ge=0)
    test: int = Field(default=200, ge=0)
    size: int = Field(default=192, ge=32, le=2048)
    """Side of a picture in pixels."""
    ambiguous: float = Field(default=0.4, ge=0, le=1)
    """Share of pictures that show a word with two meanings."""
    clips: ClipSettings = ClipSettings()


def generate(path: Path | str, settings: SceneSettings, progress: Progress | None = None) -> Collection:
    """Draw and describe scenes as a new collection; one made by the same settings is returned as it is.

    Args:
        path: folder of the collection.
        settings: what to draw.
        progress: called with (drawn, total) pictures and clips.

    Raises:
        CollectionError: the folder holds something else, or the settings ask for nothing at all.
        MissingExtraError: clips are asked for and PyAV is not installed.
    """
    path = Path(path)
    record = json.dumps({"edition": EDITION, **settings.model_dump()}, indent=1)
    if is_there(path, RECORD, record):
        logger.info("%s: already there, made by the same settings", path)
        return Collection.open(path)
    clips = settings.clips
    if clips.train or clips.val or clips.test:
        pyav()
    with TemporaryDirectory(prefix="limner-scenes-") as scratch:
        try:
            items, files = _draw_all(settings, Path(scratch), progress)
        except OSError as error:
            raise CollectionError(
                f"{scratch}: cannot hold the drawings: {error}; make room, or set TMPDIR to another folder"
            ) from error
        if not items:
            raise CollectionError(f"{path}: the settings ask for no picture and no clip; set train, val or test")
        return store(path, items, files, Path(scratch, RECORD), record)


def _draw_all(settings: SceneSettings, scratch: Path, progress: Progress | None) -> tuple[list[Item], dict[str, Path]]:
    """Draw everything into `scratch`, in threads: much of Pillow's work is done outside Python's lock."""
    jobs: list[Callable[[], Item]] = []
    for split in ("train", "val", "test"):
        jobs += [partial(_picture, settings, scratch, split, i) for i in range(getattr(settings, split))]
        jobs += [partial(_clip, settings, scratch, split, i) for i in range(getattr(settings.clips, split))]
    for folder in ("images", "videos"):
        (scratch / folder).mkdir()
    items: list[Item] = []
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for item in threads.map(lambda job: job(), jobs):
            items.append(item)
            if progress:
                progress(len(items), len(jobs))
    return items, {name: scratch / name for item in items if (name := item.image or item.video)}


def _picture(settings: SceneSettings, scratch: Path, split: str, index: int) -> Item:
    scene = make_scene(settings.seed, split, index, settings.ambiguous)
    picture, boxes = draw_scene(scene, settings.size)
    name = f"{split}-{index:05d}"
    image = f"images/{name}.jpg"
    picture.save(scratch / image, quality=92, subsampling=0)
    return Item(
        id=name,
        split=split,
        image=image,
        sentences=tell(scene),
        regions=tuple(Region(box, english(thing, "a")) for box, thing in zip(boxes, scene.things, strict=True)),
        label=scene.label,
    )


def _clip(settings: SceneSettings, scratch: Path, split: str, index: int) -> Item:
    scene = make_clip(settings.seed, split, index)
    name = f"{split}-clip-{index:05d}"
    video = f"videos/{name}.mp4"
    clips = settings.clips
    write_clip(scene, scratch / video, side=clips.size, count=clips.frames, rate=clips.rate)
    return Item(id=name, split=split, video=video, sentences=tell(scene))
