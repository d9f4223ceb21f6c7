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
from limner.data.examples import Item, Region
from limner.synthetic.scenes.clips import ClipSettings
from limner.synthetic.scenes.drawing import draw_scene
from limner.synthetic.scenes.grammar import describe_scene, english_phrase
from limner.synthetic.scenes.scene import SENSES, make_scene, sample_senses
from limner.synthetic.storage import GeneratedSettings

__all__ = ["SENSES", "ClipSettings", "SceneSettings", "describe_scene", "make_scene", "sample_senses"]


class SceneSettings(GeneratedSettings):
    """Size and contents of a generated collection of scenes."""

    kind = "scenes"

    train: CountOrNone = 2400
    val: CountOrNone = 200
    test: CountOrNone = 200
    size: Annotated[int, Bounds(32, 2_048)] = 192
    """Side of an image in pixels."""
    ambiguous: Probability = 0.4
    """Fraction of images with an ambiguous word."""
    max_objects: Objects = 3
    """Largest number of objects in an image."""

    @property
    def file_bytes(self) -> float:
        return self.size**2 / 8

    def make_item(self, split: str, index: int, folder: Path) -> Item:
        scene = make_scene(self.seed, split, index, self.ambiguous, self.max_objects)
        drawing, boxes = draw_scene(scene, self.size)
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
