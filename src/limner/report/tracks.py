"""Items of a tracking model: their position errors, and predicted and right positions on key frames."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw

from limner.errors import MediaError, MissingExtraError
from limner.media.image import open_image
from limner.media.modality import VIDEO
from limner.media.video import FrameSampling, read_frames
from limner.metrics.classification import METRICS_OF_LABELS, POSITION_ERROR, position_statistics
from limner.report.film_strip import KEY_FRAMES, film_strip, strip_grid
from limner.runs.records import EvaluatedItem, Evaluation
from limner.text.labels import HIDDEN, TRACK, Point, read_position, read_predictions

logger = logging.getLogger(__name__)

PREDICTED, RIGHT = "#ff7f0e", "#00b3b3"
"""Colours of the predicted and of the right positions."""


class FramePositions(NamedTuple):
    """Positions in one frame, in percent of the frame's width."""

    frame: int
    """Number of the frame, from 0."""
    predicted: Point
    right: Point
    hidden: bool
    """Whether an obstacle hides the object."""


def is_of_tracks(evaluation: Evaluation) -> bool:
    """Whether an evaluation is of positions."""
    return any(score.name in METRICS_OF_LABELS[TRACK] for score in evaluation.scores)


def by_position_error(items: Sequence[EvaluatedItem]) -> list[EvaluatedItem]:
    """Return the items with their negative position error as score, so that the best have the highest."""
    rows = position_statistics([item.hypothesis for item in items], [item.references for item in items])
    return [
        item.model_copy(update={"sentence_score": -POSITION_ERROR.value(row)})
        for item, row in zip(items, rows, strict=True)
    ]


def key_positions(item: EvaluatedItem) -> list[FramePositions]:
    """Return the positions in the key frames of an item, evenly spaced."""
    predicted, right = read_predictions(item.hypothesis), item.references[0].split()
    count = min(len(predicted), len(right))
    frames = sorted({(2 * k + 1) * count // (2 * KEY_FRAMES) for k in range(KEY_FRAMES)}) if count else []
    return [
        FramePositions(k, read_position(predicted[k].label), read_position(right[k]), right[k].endswith(HIDDEN))
        for k in frames
    ]


def draw_track(item: EvaluatedItem, sampling: FrameSampling | None, side: int) -> Image.Image | None:
    """Draw predicted and right positions as dots on the key frames of a clip.

    Args:
        item: item with its positions.
        sampling: frames of a clip that the model reads; None for images.
        side: longer side of the drawing in pixels.

    Returns:
        The frames in rows; None if the file cannot be read or has fewer frames than positions.
    """
    if item.image is None:
        return None
    path, positions = Path(item.image), key_positions(item)
    try:
        frames = read_frames(path, sampling or FrameSampling()) if VIDEO.matches(path) else [open_image(path)]
    except (MediaError, MissingExtraError) as error:
        logger.info("%s", error)
        return None
    if not positions or positions[-1].frame >= len(frames):
        return None
    columns = strip_grid(len(positions))[1]
    drawn = [_draw(frames[one.frame], one, side // columns) for one in positions]
    return film_strip(drawn, side // columns, columns)


def _draw(frame: Image.Image, positions: FramePositions, side: int) -> Image.Image:
    scale = side / max(frame.size)
    width, height = (max(1, round(length * scale)) for length in frame.size)
    drawing = frame.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
    pen = ImageDraw.Draw(drawing)
    for (x, y), colour, radius in ((positions.right, RIGHT, 5), (positions.predicted, PREDICTED, 3)):
        if not (isnan(x) or isnan(y)):  # an unknown position is NaN
            pen.circle((x * width / 100, y * width / 100), radius, fill=colour, outline="white")
    return drawing
