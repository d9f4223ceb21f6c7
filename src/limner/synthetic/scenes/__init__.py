"""Generated collections of drawn scenes and of clips with sentences in English, German and French.

It needs neither data nor network. All files are determined by the settings: the same seed gives the same bytes.

Some English words have two meanings (`SENSES`), which only the image disambiguates. Items with such a word have the
word and its sense as `label`, such as 'bat:animal'. In French, 'grue' and 'lettre' have both meanings of 'crane' and
'letter'; in German, the meanings of all six words have different translations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from limner.bounds import Bounds, CountOrNone, Objects, Probability
from limner.data.collection import Collection
from limner.data.examples import Item, Region
from limner.progress import Progress
from limner.synthetic.scenes.clips import ClipSettings, generate_clips
from limner.synthetic.scenes.drawing import draw_scene
from limner.synthetic.scenes.grammar import describe_scene, english_phrase
from limner.synthetic.scenes.scene import SENSES, make_scene, sample_senses
from limner.synthetic.storage import GeneratedSettings, generate_collection

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

EDITION = 1
"""Version of the generated files, increased when the same settings give other images or sentences."""


class SceneSettings(GeneratedSettings):
    """Size and contents of the generated collection."""

    train: CountOrNone = 2400
    """Number of images in the split 'train'."""
    val: CountOrNone = 200
    """Number of images in the split 'val'."""
    test: CountOrNone = 200
    """Number of images in the split 'test'."""
    size: Annotated[int, Bounds(32, 2_048)] = 192
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

    def draw(split: str, index: int, folder: Path) -> Item:
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

    return generate_collection(
        path, settings, draw, kind="scenes", edition=EDITION, file_bytes=settings.size**2 / 8, on_progress=on_progress
    )
