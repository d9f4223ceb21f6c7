"""Regions of images as items of their own, so that a description of a region is handled as a caption of an image."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from limner.data.examples import Item, Region, Sentence, StoredFeatures

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegionItem(Item):
    """One described region of an image: an item with one region, whose text is its only sentence.

    Its id is that of the image, '#' and the number of the region.
    """

    image_id: str = ""
    """Id of the item of the whole image, which features are stored under."""

    @property
    def whole(self) -> Item:
        """Item of the whole image, without annotations."""
        return Item(self.image_id, self.split, self.image)


@runtime_checkable
class RegionSource(Protocol):
    """Provider of the features of regions, which knows where they lie in the encoded images."""

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Return the features of each item, None for items without an image."""
        ...

    def relative_box(self, item: RegionItem) -> NDArray[np.float32]:
        """Return the box of a region: centre, width and height in fractions of the encoded image, (4,)."""
        ...


def region_items(
    items: Iterable[Item], lang: str, features: RegionSource | None = None, *, where: str = ""
) -> list[RegionItem]:
    """Make an item of each region that can be found and described; training and evaluation read no others.

    Regions without a text, without an area, or outside the part of the image that the features are computed of (a
    centre crop may remove them) are left out.

    Args:
        items: items of images with regions.
        lang: language of the descriptions.
        features: features of the images; None to accept regions outside the encoded part.
        where: collection and split, for a warning with the number of regions left out; empty for no warning.
    """
    found = [
        RegionItem(
            id=f"{item.id}#{number}",
            split=item.split,
            image=item.image,
            sentences=(Sentence(lang, region.text),),
            regions=(region,),
            image_id=item.id,
        )
        for item in items
        if item.image is not None
        for number, region in enumerate(item.regions)
    ]
    usable = [item for item in found if _is_usable(item, features)]
    if where and len(usable) < len(found):
        logger.warning(
            "%s: %d of %d regions are left out, which have no text or no area in the part of the image that the "
            "features are computed of",
            where,
            len(found) - len(usable),
            len(found),
        )
    return usable


def with_usable_regions(items: Sequence[Item], regions: Iterable[RegionItem]) -> list[Item]:
    """Copy of the items of images with the regions that `region_items` made items of, and no others."""
    by_image: dict[str, list[Region]] = {item.id: [] for item in items}
    for one in regions:
        by_image[one.image_id] += one.regions
    return [replace(item, regions=tuple(by_image[item.id])) for item in items]


def _is_usable(item: RegionItem, features: RegionSource | None) -> bool:
    (region,) = item.regions
    if not region.text.strip() or min(region.box[2:]) <= 0:
        return False
    return features is None or float(features.relative_box(item)[2:].min()) > 0
