"""Generated collection of drawn scenes and clips with sentences in English, German and French.

It needs neither data nor network. All files are determined by the settings: the same seed gives the same bytes.

Some English words have two meanings (`SENSES`), which only the image disambiguates. Items with such a word have the
word and its sense as `label`, such as 'bat:animal'. In French, 'grue' and 'lettre' have both meanings of 'crane' and
'letter'; in German, the meanings of all six words have different translations.
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
from limner.synthetic.scenes.clips import av_module, write_clip
from limner.synthetic.scenes.drawing import draw_scene
from limner.synthetic.scenes.grammar import describe_scene, english_phrase
from limner.synthetic.scenes.scene import SENSES, make_clip, make_scene, sample_senses
from limner.synthetic.storage import matches_record, write_collection

__all__ = [
    "SENSES",
    "ClipSettings",
    "SceneSettings",
    "describe_scene",
    "generate_scenes",
    "make_scene",
    "sample_senses",
]

logger = logging.getLogger(__name__)

RECORD = "scenes.json"
EDITION = 1
"""Version of the generated files, increased when the same settings give other images or sentences."""


class ClipSettings(Settings):
    """Number and format of the clips; by default there are none, because clips need the extra 'video'."""

    train: int = Field(default=0, ge=0)
    """Number of clips in the split 'train'."""
    val: int = Field(default=0, ge=0)
    """Number of clips in the split 'val'."""
    test: int = Field(default=0, ge=0)
    """Number of clips in the split 'test'."""
    size: int = Field(default=96, ge=32, le=1024, multiple_of=2)
    """Side of a frame in pixels, an even number."""
    frames: int = Field(default=24, ge=2)
    """Number of frames."""
    rate: int = Field(default=12, ge=1, le=120)
    """Frames per second."""


class SceneSettings(Settings):
    """Size and contents of the generated collection."""

    seed: int = 0
    """Random seed."""
    train: int = Field(default=2400, ge=0)
    """Number of images in the split 'train'."""
    val: int = Field(default=200, ge=0)
    """Number of images in the split 'val'."""
    test: int = Field(default=200, ge=0)
    """Number of images in the split 'test'."""
    size: int = Field(default=192, ge=32, le=2048)
    """Side of an image in pixels."""
    ambiguous: float = Field(default=0.4, ge=0, le=1)
    """Fraction of images with an ambiguous word."""
    max_objects: int = Field(default=3, ge=1, le=3)
    """Largest number of objects in an image."""
    clips: ClipSettings = ClipSettings()
    """Number and format of the clips."""


def generate_scenes(path: Path | str, settings: SceneSettings, on_progress: Progress | None = None) -> Collection:
    """Generate a collection of scenes; an existing collection of the same settings is opened unchanged.

    Args:
        path: folder of the collection.
        settings: size and contents of the collection.
        on_progress: called with the number of images and clips drawn and their total number.

    Raises:
        CollectionError: the folder has other contents, or the settings specify no images and no clips.
        MissingExtraError: the settings specify clips and PyAV is not installed.
    """
    path = Path(path)
    record = json.dumps({"edition": EDITION, **settings.model_dump()}, indent=1)
    if matches_record(path, RECORD, record):
        logger.info("%s: exists with the same settings", path)
        return Collection.open(path)
    clips = settings.clips
    if clips.train or clips.val or clips.test:
        av_module()
    with TemporaryDirectory(prefix="limner-scenes-") as temporary:
        try:
            items, files = _draw_all(settings, Path(temporary), on_progress)
        except OSError as error:
            raise CollectionError(
                f"{temporary}: cannot store the drawings: {error}; free disk space, or set TMPDIR to another folder"
            ) from error
        if not items:
            raise CollectionError(f"{path}: the settings specify no images and no clips; set train, val or test")
        return write_collection(path, items, files, Path(temporary, RECORD), record)


def _draw_all(
    settings: SceneSettings, temporary: Path, on_progress: Progress | None
) -> tuple[list[Item], dict[str, Path]]:
    """Draw all images and clips to the folder `temporary`, in threads because Pillow releases the GIL."""
    jobs: list[Callable[[], Item]] = []
    for split in ("train", "val", "test"):
        jobs += [partial(_draw_image, settings, temporary, split, i) for i in range(getattr(settings, split))]
        jobs += [partial(_draw_clip, settings, temporary, split, i) for i in range(getattr(settings.clips, split))]
    for folder in ("images", "videos"):
        (temporary / folder).mkdir()
    items: list[Item] = []
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for item in threads.map(lambda job: job(), jobs):
            items.append(item)
            if on_progress:
                on_progress(len(items), len(jobs))
    return items, {name: temporary / name for item in items if (name := item.image or item.video)}


def _draw_image(settings: SceneSettings, temporary: Path, split: str, index: int) -> Item:
    scene = make_scene(settings.seed, split, index, settings.ambiguous, settings.max_objects)
    drawing, boxes = draw_scene(scene, settings.size)
    name = f"{split}-{index:05d}"
    image = f"images/{name}.jpg"
    drawing.save(temporary / image, quality=92, subsampling=0)
    return Item(
        id=name,
        split=split,
        image=image,
        sentences=describe_scene(scene),
        regions=tuple(Region(box, english_phrase(obj, "a")) for box, obj in zip(boxes, scene.objects, strict=True)),
        label=scene.label,
    )


def _draw_clip(settings: SceneSettings, temporary: Path, split: str, index: int) -> Item:
    scene = make_clip(settings.seed, split, index)
    name = f"{split}-clip-{index:05d}"
    video = f"videos/{name}.mp4"
    clips = settings.clips
    write_clip(scene, temporary / video, side=clips.size, count=clips.frames, rate=clips.rate)
    return Item(id=name, split=split, video=video, sentences=describe_scene(scene))
