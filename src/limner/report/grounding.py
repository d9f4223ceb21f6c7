"""Section of the report about the agreement of attention with the boxes of phrases."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image, ImageDraw

from limner.errors import MediaError
from limner.media.image import open_image
from limner.report.attention_plots import panels
from limner.report.thumbnails import Thumbnails

if TYPE_CHECKING:
    from limner.diagnosis.records import Grounding, GroundingExample, GroundingScore

SIDE = 320
"""Longer side of a heat map in pixels."""
BOX_COLOUR = "#ffc914"

logger = logging.getLogger(__name__)


class HeatMapCard(NamedTuple):
    """Heat map of the attention of one phrase with its boxes."""

    url: str | None
    """Data URL; None if the image is missing, damaged or over the size limit of the page."""
    example: GroundingExample


def read_groundings(run_folder: Path, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """Read RUN/diagnosis/grounding/*.json and build the tables and heat maps of each.

    Raises:
        RunError: a file is damaged.
    """
    paths = sorted((run_folder / "diagnosis" / "grounding").glob("*.json"))
    if not paths:
        return []
    from limner.diagnosis.records import Grounding  # imported late: the package imports torch

    return [_section(Grounding.load(path), thumbnails) for path in paths]


def _section(grounding: Grounding, thumbnails: Thumbnails) -> dict[str, Any]:
    galleries = {"Best hits": grounding.hits, "Worst misses": grounding.misses}
    return {
        "grounding": grounding,
        "attentions": [score.attention for score in grounding.groups[0].scores],
        "rows": [(group, [_cells(score) for score in group.scores]) for group in grounding.groups],
        "galleries": {name: _cards(examples, grounding, thumbnails) for name, examples in galleries.items()},
    }


def _cells(score: GroundingScore) -> tuple[str, str]:
    """Mass and pointing, and their p-values for a baseline."""
    values = f"{score.mass:.1f} / {score.pointing:.1f}"
    if score.mass_p is None or score.pointing_p is None:
        return values, ""
    return values, f"p {score.mass_p:.4f} / {score.pointing_p:.4f}"


def _cards(examples: Sequence[GroundingExample], grounding: Grounding, thumbnails: Thumbnails) -> list[HeatMapCard]:
    cards = []
    for example in examples:
        try:
            heat_map = heat_map_with_boxes(open_image(Path(example.image)), example, grounding.grid)
        except MediaError as error:
            logger.info("%s", error)
            cards.append(HeatMapCard(None, example))
        else:
            cards.append(HeatMapCard(thumbnails.of_image(heat_map), example))
    return cards


def heat_map_with_boxes(image: Image.Image, example: GroundingExample, grid: tuple[int, int]) -> Image.Image:
    """Draw the attention of a phrase over its image, and the outlines of the boxes of its entity."""
    heat_map = panels(image, [example.attention], grid, box=example.area, side=SIDE)[1]
    across, down = heat_map.width / image.width, heat_map.height / image.height
    draw = ImageDraw.Draw(heat_map)
    for left, top, width, height in example.boxes:
        corners = (left * across, top * down, (left + width) * across, (top + height) * down)
        draw.rectangle(corners, outline=BOX_COLOUR, width=2)
    return heat_map
