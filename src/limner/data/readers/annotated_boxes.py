"""Boxes of annotations, clipped to the image and scaled to the size of the stored file."""

from __future__ import annotations

import math
from typing import NamedTuple

from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.errors import CollectionError

Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels."""


class ImageScale(NamedTuple):
    """Sizes of an image when it was annotated and in the stored file."""

    annotated: tuple[int, int]
    """Width and height that the boxes refer to, in pixels."""
    stored: tuple[int, int]
    """Width and height of the stored file in pixels."""


def fit_box(box: Box, scale: ImageScale, name: str, location: SourceLocation, builder: ItemBuilder) -> Box | None:
    """Clip a box to the annotated image and scale it to the stored image.

    Args:
        box: box in pixels of the annotated image.
        scale: sizes of the image.
        name: name of the box in messages.
        location: location of the box.
        builder: counts clipped and empty boxes.

    Returns:
        The box in pixels of the stored image; None if it is empty or outside the image.

    Raises:
        CollectionError: a value is NaN or infinite.
    """
    left, top, width, height = box
    if not all(map(math.isfinite, box)):
        raise CollectionError(f"{location}: the box {box} of '{name}' is not finite; expected numbers of pixels")
    if width <= 0 or height <= 0:
        builder.skip("boxes without width or height", name, location)
        return None
    right, bottom = min(left + width, scale.annotated[0]), min(top + height, scale.annotated[1])
    left, top = max(left, 0), max(top, 0)
    if right <= left or bottom <= top:
        builder.skip("boxes outside their image", name, location)
        return None
    if (right - left, bottom - top) != (width, height):
        builder.skip("parts of boxes beyond the edge of the image (the boxes are clipped)", name, location)
    across, down = (stored / annotated for stored, annotated in zip(scale.stored, scale.annotated, strict=True))
    return left * across, top * down, (right - left) * across, (bottom - top) * down
