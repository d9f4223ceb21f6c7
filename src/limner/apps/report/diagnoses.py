"""Sections of the report about diagnoses: image ablations, masked and ambiguous words, grounding of attention."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from limner.apps.report.images import Thumbnails
from limner.apps.report.scores import label
from limner.errors import MediaError, counted
from limner.evaluation.measurements import Diagnosis, Grounding, GroundingExample
from limner.media.image import open_image
from limner.metrics.base import format_value
from limner.plots.attention import panels

IMAGE_CONTROLS = (
    "Images: those of the items (right), of other items (shuffled), the mean over the training split (mean), features "
    "of zeros (zero), no image (none)."
)
SIDE = 320
"""Longer side of a heat map in pixels."""
BOX_COLOUR = "#ffc914"

logger = logging.getLogger(__name__)


def read_diagnoses(run_folder: Path) -> list[dict[str, Any]]:
    """Read RUN/diagnosis/*.json and build the tables of each diagnosis; RunError if a file is damaged."""
    return [_diagnosis(Diagnosis.load(path)) for path in sorted((run_folder / "diagnosis").glob("*.json"))]


def read_groundings(run_folder: Path, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """Read RUN/diagnosis/grounding/*.json and build the tables and heat maps of each; RunError if a file is damaged."""
    paths = sorted((run_folder / "diagnosis" / "grounding").glob("*.json"))
    return [_grounding(Grounding.load(path), thumbnails) for path in paths]


def heat_map_with_boxes(image: Image.Image, example: GroundingExample, grid: tuple[int, int]) -> Image.Image:
    """Draw the attention of a phrase over its image, and the outlines of the boxes of its entity."""
    heat_map = panels(image, [example.attention], grid, box=example.area, side=SIDE)[1]
    across, down = heat_map.width / image.width, heat_map.height / image.height
    draw = ImageDraw.Draw(heat_map)
    for left, top, width, height in example.boxes:
        corners = (left * across, top * down, (left + width) * across, (top + height) * down)
        draw.rectangle(corners, outline=BOX_COLOUR, width=2)
    return heat_map


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    """The tables of a diagnosis: title, note, conditions and the labels of their scores by metric."""
    note = f"{counted(diagnosis.sentences, 'sentence')}. {IMAGE_CONTROLS}"
    tables = [("Image ablations", note, diagnosis.image_controls)]
    for masking in diagnosis.masking:
        sentences = counted(masking.sentences, "source sentence")
        note = f"Mask '{masking.mask}': {counted(masking.masked_words, 'word')} in {sentences}."
        if masking.expected_words:
            note += f" Recovered: percentage of the {masking.expected_words:,} reference words that translate them."
        tables.append((f"Masked source words: {masking.mask}", note, masking.conditions))
    if (ambiguity := diagnosis.ambiguity) is not None:
        note = (
            f"{counted(ambiguity.sentences, 'sentence')} with a word that only the image disambiguates; a random "
            f"choice of the sense is correct in {ambiguity.chance:g} %."
        )
        if ambiguity.excluded:
            note += f" {ambiguity.excluded:,} further sentences are left out: no image shows the other sense."
        tables.append(("Ambiguous words", note, ambiguity.conditions))
    labelled = [
        (*table, {score.metric: label(score.metric) for condition in table[2] for score in condition.scores})
        for table in tables
    ]
    return {"diagnosis": diagnosis, "tables": labelled, "format": format_value}


def _grounding(grounding: Grounding, thumbnails: Thumbnails) -> dict[str, Any]:
    def card(example: GroundingExample) -> tuple[str | None, GroundingExample]:
        try:
            heat_map = heat_map_with_boxes(open_image(Path(example.image)), example, grounding.grid)
        except MediaError as error:
            logger.info("%s", error)
            return None, example
        return thumbnails.of_image(heat_map), example

    galleries = {"Best hits": grounding.hits, "Worst misses": grounding.misses}
    return {"grounding": grounding, "galleries": {name: list(map(card, group)) for name, group in galleries.items()}}
