"""Sections of the report about diagnoses: image ablations, masked and ambiguous words, grounding of attention."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw

from limner.errors import MediaError, counted
from limner.media.image import open_image
from limner.metrics.base import format_value
from limner.report.attention_plots import panels
from limner.report.images import Thumbnails
from limner.report.scores import label

if TYPE_CHECKING:
    from limner.diagnosis.records import ConditionResult, Diagnosis, Grounding, GroundingExample, GroundingScore

IMAGE_CONTROLS = (
    "Images: those of the items (right), of other items (shuffled), the mean over the training split (mean), features "
    "of zeros (zero), no image (none)."
)
SIDE = 320
"""Longer side of a heat map in pixels."""
BOX_COLOUR = "#ffc914"

logger = logging.getLogger(__name__)


def read_diagnoses(run_folder: Path) -> list[dict[str, Any]]:
    """Read RUN/diagnosis/*.json and build the tables of each diagnosis.

    Raises:
        RunError: a file is damaged.
    """
    paths = sorted((run_folder / "diagnosis").glob("*.json"))
    if not paths:
        return []
    from limner.diagnosis.records import Diagnosis  # imported late: the package imports torch

    return [_diagnosis(Diagnosis.load(path)) for path in paths]


def read_groundings(run_folder: Path, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """Read RUN/diagnosis/grounding/*.json and build the tables and heat maps of each.

    Raises:
        RunError: a file is damaged.
    """
    paths = sorted((run_folder / "diagnosis" / "grounding").glob("*.json"))
    if not paths:
        return []
    from limner.diagnosis.records import Grounding  # imported late: the package imports torch

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
    note = f"{counted(diagnosis.sentences, 'sentence')}. {IMAGE_CONTROLS}"
    tables = [_table("Image ablations", note, diagnosis.image_controls)]
    for masking in diagnosis.masking:
        sentences = counted(masking.sentences, "source sentence")
        note = f"Mask '{masking.mask}': {counted(masking.masked_words, 'word')} in {sentences}."
        if masking.expected_words:
            note += f" Recovered: percentage of the {masking.expected_words:,} reference words that translate them."
        tables.append(_table(f"Masked source words: {masking.mask}", note, masking.conditions))
    if (ambiguity := diagnosis.ambiguity) is not None:
        note = (
            f"{counted(ambiguity.sentences, 'sentence')} with a word that only the image disambiguates; a random "
            f"choice of the sense is correct in {ambiguity.chance:g} %."
        )
        if ambiguity.excluded:
            note += f" {ambiguity.excluded:,} further sentences are left out: no image shows the other sense."
        tables.append(_table("Ambiguous words", note, ambiguity.conditions))
    contrastive = None
    if (result := diagnosis.contrastive) is not None:
        contrastive = (
            f"The correct one of two {result.compared} has the higher log-probability in {result.accuracy:.1f} % of "
            f"{counted(len(result.pairs), 'pair')} ({result.accuracy_per_token:.1f} % by mean log-probability of a "
            "token); a random choice is correct in 50 %."
        )
    return {"diagnosis": diagnosis, "tables": tables, "contrastive": contrastive}


def _table(title: str, note: str, conditions: Sequence[ConditionResult]) -> dict[str, Any]:
    """One row for each condition; each cell has the difference from the first row and its p-value."""
    names = list(dict.fromkeys(score.metric for condition in conditions for score in condition.scores))
    rows = []
    for condition in conditions:
        scores = {score.metric: score for score in condition.scores}
        cells = []
        for name in names:
            score, test = scores.get(name), ""
            if score is not None and score.p is not None:
                p = "p < 0.0001" if score.p < 0.0001 else f"p = {score.p:.4f}"
                test = f"{format_value(score.difference, sign='+')}, {p}"
            cells.append(("–" if score is None else format_value(score.value), test))
        changed = "" if condition is conditions[0] else f"{condition.changed:.1f} %"
        rows.append((condition.name, cells, changed))
    return {"title": title, "note": note, "columns": [label(name) for name in names], "rows": rows}


def _grounding(grounding: Grounding, thumbnails: Thumbnails) -> dict[str, Any]:
    galleries = {"Best hits": grounding.hits, "Worst misses": grounding.misses}
    return {
        "grounding": grounding,
        "attentions": [score.attention for score in grounding.groups[0].scores],
        "rows": [(group, [_cells(score) for score in group.scores]) for group in grounding.groups],
        "galleries": {
            name: [(_heat_map_url(example, grounding, thumbnails), example) for example in examples]
            for name, examples in galleries.items()
        },
    }


def _cells(score: GroundingScore) -> tuple[str, str]:
    """Mass and pointing, and their p-values for a baseline."""
    values = f"{score.mass:.1f} / {score.pointing:.1f}"
    if score.mass_p is None or score.pointing_p is None:
        return values, ""
    return values, f"p {score.mass_p:.4f} / {score.pointing_p:.4f}"


def _heat_map_url(example: GroundingExample, grounding: Grounding, thumbnails: Thumbnails) -> str | None:
    """Data URL of a heat map; None if the image is missing, damaged or over the size limit of the page."""
    try:
        return thumbnails.of_image(heat_map_with_boxes(open_image(Path(example.image)), example, grounding.grid))
    except MediaError as error:
        logger.info("%s", error)
        return None
