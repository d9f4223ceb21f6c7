"""Regions of images as items of their own, so that a description of a region is handled as a caption of an image."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from limner.data.examples import Item, Sentence


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


def region_items(items: Iterable[Item], lang: str) -> list[Item]:
    """Make an item of each described region; regions without a text or without an area are left out.

    Args:
        items: items of images with regions.
        lang: language of the descriptions.
    """
    return [
        RegionItem(
            id=f"{item.id}#{number}",
            split=item.split,
            image=item.image,
            sentences=(Sentence(lang, region.text),),
            regions=(region,),
            image_id=item.id,
        )
        for item in items
        for number, region in enumerate(item.regions)
        if item.image is not None and region.text.strip() and min(region.box[2:]) > 0
    ]
