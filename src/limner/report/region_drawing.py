"""Drawings of images with boxes and descriptions, and their cards in the report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from limner.errors import MediaError
from limner.media.image import open_image
from limner.report.thumbnails import Thumbnails
from limner.runs.records import EvaluatedItem, ImageRegions

logger = logging.getLogger(__name__)

Box = tuple[float, float, float, float]

COLOURS = ("#e6194b", "#3cb44b", "#0082c8", "#f58231", "#911eb4", "#008080", "#aa6e28", "#800000", "#000080", "#808000")
"""Colours of the boxes, in turn."""
MIN_SIDE = 640
"""Longer side of a drawing in pixels, at least; smaller images are enlarged so that the text can be read."""
FONT_SIZE, PADDING, LINE = 14, 3, 3


def draw_regions(image: Image.Image, regions: Sequence[tuple[Box, str]]) -> Image.Image:
    """Draw the boxes of regions on an image, each with its description at its upper left corner.

    Args:
        image: RGB image.
        regions: boxes (left, top, width and height in pixels of the image) with their descriptions; the first is drawn
            last, on top of the others.
    """
    factor = max(1.0, MIN_SIDE / max(image.size))
    drawing = image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.LANCZOS)
    pen, font = ImageDraw.Draw(drawing), _font()
    for number, (box, text) in reversed(list(enumerate(regions))):
        colour = COLOURS[number % len(COLOURS)]
        left, top, width, height = (value * factor for value in box)
        pen.rectangle((left, top, left + max(1, width), top + max(1, height)), outline=colour, width=LINE)
        _label(pen, text, (left, top), drawing.size, font, colour)
    return drawing


def _label(
    pen: ImageDraw.ImageDraw,
    text: str,
    corner: tuple[float, float],
    size: tuple[int, int],
    font: ImageFont.FreeTypeFont,
    colour: str,
) -> None:
    """Write a text on a filled background, moved so that it lies inside the drawing."""
    if not text:
        return
    width, height = pen.textlength(text, font=font) + 2 * PADDING, FONT_SIZE + 2 * PADDING
    left, top = (max(0.0, min(corner[axis], size[axis] - (width, height)[axis])) for axis in (0, 1))
    pen.rectangle((left, top, left + width, top + height), fill=colour)
    pen.text((left + PADDING, top + PADDING), text, "white", font, anchor="lt")


@cache
def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", FONT_SIZE)


def draw_region(item: EvaluatedItem, side: int) -> Image.Image | None:
    """Draw the box of the region that an item describes; None without a box or a readable image.

    Args:
        item: item of an evaluation.
        side: longer side of the drawing in pixels, at most.
    """
    if item.image is None or item.box is None:
        return None
    try:
        drawing = draw_regions(open_image(Path(item.image)), [(item.box, "")])
    except MediaError as error:
        logger.info("%s", error)
        return None
    drawing.thumbnail((side, side), Image.Resampling.LANCZOS)
    return drawing


class RegionCard(NamedTuple):
    """An image of a dense captioner."""

    regions: ImageRegions
    thumbnail: str | None
    """Drawing of the detected regions; None if the image is missing, damaged or over the size limit of the page."""


def region_cards(images: Sequence[ImageRegions], thumbnails: Thumbnails) -> list[RegionCard]:
    """Draw the detected regions of images."""
    cards = []
    for one in images:
        url = None
        try:
            if one.image is not None:
                regions = [(region.box, region.text) for region in one.detected]
                url = thumbnails.of_image(draw_regions(open_image(Path(one.image)), regions))
        except MediaError as error:
            logger.info("%s", error)
        cards.append(RegionCard(one, url))
    return cards
