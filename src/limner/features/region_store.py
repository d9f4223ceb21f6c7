"""Stored features of images together with the boxes of their regions, for models that describe regions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from limner.data.examples import Item, StoredFeatures
from limner.data.languages import RegionItem
from limner.features.preprocessing import Preprocessing, encoded_box
from limner.features.store import FeatureStore, FeatureTable
from limner.media.image import image_size

if TYPE_CHECKING:
    from limner.data.collection import Collection


class RegionStore(FeatureStore):
    """Feature tables whose features of a `RegionItem` include its `box` in fractions of the encoded image."""

    def __init__(self, tables: Sequence[FeatureTable], folder: Path) -> None:
        """Combine tables of the collection in `folder`, whose images the boxes refer to."""
        super().__init__(tables)
        self.folder = folder
        self._encoded_parts: dict[str, tuple[float, float, float, float]] = {}

    @classmethod
    def open(cls, collection: Collection, names: Sequence[str], cache_mib: int) -> Self:
        """Open feature tables of a collection; arguments and errors are those of `FeatureStore.open`."""
        return cls(FeatureStore.open(collection, names, cache_mib).tables, collection.path)

    def covers(self, item: Item) -> bool:
        """Whether every table has features of the item, or of the image of a region."""
        return super().covers(item.whole if isinstance(item, RegionItem) else item)

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Read the features of items; those of a region are the features of its image and its box."""
        features = super().take([item.whole if isinstance(item, RegionItem) else item for item in items])
        return [
            {**values, "box": self.relative_box(item)}
            if isinstance(item, RegionItem) and values is not None
            else values
            for item, values in zip(items, features, strict=True)
        ]

    def relative_box(self, item: RegionItem) -> NDArray[np.float32]:
        """Compute the box of a region: centre, width and height in fractions of the encoded image, (4,).

        Raises:
            MediaError: the image cannot be read.
        """
        return relative_box(item.regions[0].box, self.encoded_part(item))

    def encoded_part(self, item: Item) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the part of an image that its features are computed of, in pixels."""
        assert item.image is not None, f"item '{item.id}' has no image"
        if item.image not in self._encoded_parts:
            preprocessing = Preprocessing.parse(self.tables[0].spec.preprocessing, self.table_names[0])
            self._encoded_parts[item.image] = encoded_box(image_size(self.folder / item.image), preprocessing)
        return self._encoded_parts[item.image]


def feature_store(of_regions: bool) -> type[FeatureStore]:
    """Return the class of the features of images, or of their regions."""
    return RegionStore if of_regions else FeatureStore


def relative_box(box: Sequence[float], encoded: tuple[float, float, float, float]) -> NDArray[np.float32]:
    """Convert a box to centre, width and height in fractions of the encoded part of its image, clipped to it.

    Args:
        box: left, top, width and height in pixels.
        encoded: left, top, right and bottom of the encoded part in pixels.
    """
    origin, size = np.array(encoded[:2]), np.array(encoded[2:]) - encoded[:2]
    first = ((np.array(box[:2]) - origin) / size).clip(0, 1)
    last = ((np.array(box[:2]) + box[2:] - origin) / size).clip(0, 1)
    relative: NDArray[np.float32] = np.concatenate([(first + last) / 2, last - first]).astype(np.float32)
    return relative


def pixel_box(box: Sequence[float], encoded: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """Convert a box in fractions of the encoded part of an image to left, top, width and height in pixels."""
    width, height = encoded[2] - encoded[0], encoded[3] - encoded[1]
    x, y, w, h = box
    return (encoded[0] + (x - w / 2) * width, encoded[1] + (y - h / 2) * height, w * width, h * height)
