"""Generated collections of drawn scenes and of clips with sentences in English, German and French.

It needs neither data nor network. All files are determined by the settings: the same seed gives the same bytes.

Some English words have two meanings (`SENSES`), which only the image disambiguates. Items with such a word have the
word and its sense as `label`, such as 'bat:animal'. In French, 'grue' and 'lettre' have both meanings of 'crane' and
'letter'; in German, the meanings of all six words have different translations.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from limner.bounds import CountOrNone, DrawnSide, Objects, Probability, Seed
from limner.data.collection import Collection
from limner.data.examples import Item, Region
from limner.errors import CollectionError
from limner.progress import Progress
from limner.settings import Settings
from limner.storage.json_text import to_json
from limner.synthetic.scenes.clips import ClipSettings, generate_clips
from limner.synthetic.scenes.drawing import draw_scene
from limner.synthetic.scenes.grammar import describe_scene, english_phrase
from limner.synthetic.scenes.scene import SENSES, make_scene, sample_senses
from limner.synthetic.storage import draw_collection, matches_record, require_room

__all__ = [
    "SENSES",
    "ClipSettings",
    "SceneSettings",
    "describe_scene",
    "generate_clips",
    "generate_scenes",
    "make_scene",
    "sample_senses",
]

logger = logging.getLogger(__name__)

RECORD = "scenes.json"
EDITION = 1
"""Version of the generated files, increased when the same settings give other images or sentences."""


class SceneSettings(Settings):
    """Size and contents of the generated collection."""

    seed: Seed = 0
    """Random seed."""
    train: CountOrNone = 2400
    """Number of images in the split 'train'."""
    val: CountOrNone = 200
    """Number of images in the split 'val'."""
    test: CountOrNone = 200
    """Number of images in the split 'test'."""
    size: DrawnSide = 192
    """Side of an image in pixels."""
    ambiguous: Probability = 0.4
    """Fraction of images with an ambiguous word."""
    max_objects: Objects = 3
    """Largest number of objects in an image."""


def generate_scenes(path: Path | str, settings: SceneSettings, on_progress: Progress | None = None) -> Collection:
    """Generate a collection of scenes; an existing collection of the same settings is opened unchanged.

    Args:
        path: folder of the collection.
        settings: size and contents of the collection.
        on_progress: called with the number of images drawn and their total number.

    Raises:
        CollectionError: the folder has other contents, or the settings specify no images.
    """
    path = Path(path)
    record = to_json({"edition": EDITION, **settings.model_dump()}, indent=1)
    if matches_record(path, RECORD, record):
        logger.info("%s: exists with the same settings", path)
        return Collection.open(path)
    require_room(path, settings.train + settings.val + settings.test, settings.size**2 / 8)
    jobs = [
        partial(_draw_image, settings, split, index)
        for split in ("train", "val", "test")
        for index in range(getattr(settings, split))
    ]
    if not jobs:
        raise CollectionError(f"{path}: the settings specify no images; set train, val or test")
    return draw_collection(path, jobs, RECORD, record, on_progress)


def _draw_image(settings: SceneSettings, split: str, index: int, folder: Path) -> Item:
    scene = make_scene(settings.seed, split, index, settings.ambiguous, settings.max_objects)
    drawing, boxes = draw_scene(scene, settings.size)
    name = f"{split}-{index:05d}"
    image = f"images/{name}.jpg"
    drawing.save(folder / image, quality=92, subsampling=0)
    return Item(
        id=name,
        split=split,
        image=image,
        sentences=describe_scene(scene),
        regions=tuple(Region(box, english_phrase(obj, "a")) for box, obj in zip(boxes, scene.objects, strict=True)),
        label=scene.label,
    )
