"""Images with the attention of the word that is pointed at, by the script that the page of the service shares."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from limner.errors import MediaError, MissingExtraError
from limner.features.spec import FeatureSpec
from limner.inference.explain import Explanation, Weights
from limner.media.image import open_image
from limner.media.modality import VIDEO
from limner.report.attention_page import box_of, grid_of
from limner.report.thumbnails import Thumbnails

SIDE = 480
"""Longer side of the image in pixels."""
MAX_WORDS = 40
"""Maximum number of words of a figure."""


class AttendedWord(NamedTuple):
    """A generated word with its attention."""

    text: str
    weights: str
    """Weights of the locations, row by row, as bytes in base64; 255 is the largest weight of the word."""
    gate: float | None


class AttendedFigure(NamedTuple):
    """An image with the attention of each word of a sentence."""

    url: str
    grid: tuple[int, int]
    """Rows and columns of the locations."""
    box: tuple[float, float, float, float]
    """Left, top, right and bottom of the part of the image that the grid covers, as fractions of its sides."""
    words: tuple[AttendedWord, ...]


def attended_figure(
    explanation: Explanation, image: str | None, features: Sequence[FeatureSpec], thumbnails: Thumbnails
) -> AttendedFigure | None:
    """Build the figure of a sentence; None without attention over the locations of an image that can be read."""
    weights = explanation.image_weights
    if weights is None or image is None or VIDEO.matches(Path(image)):
        return None
    grids = [(spec, grid) for spec in features if (grid := grid_of(spec, weights.shape[1])) is not None]
    if not grids:
        return None
    try:
        width, height = open_image(Path(image)).size
    except (MediaError, MissingExtraError):
        return None
    if (url := thumbnails(image, SIDE)) is None:
        return None
    spec, grid = grids[0]
    left, top, right, bottom = box_of(spec, (width, height))
    box = (left / width, top / height, right / width, bottom / height)
    words = explanation.words[:MAX_WORDS]
    gates = (
        [None] * len(words) if explanation.gate is None else [float(gate) for gate in explanation.gate[: len(words)]]
    )
    shown = zip(words, weights, gates, strict=False)
    return AttendedFigure(url, grid, box, tuple(AttendedWord(word, _encode(row), gate) for word, row, gate in shown))


def _encode(weights: Weights) -> str:
    scaled = np.round(255 * weights / max(float(weights.max()), 1e-12)).astype(np.uint8)
    return base64.b64encode(scaled.tobytes()).decode()
