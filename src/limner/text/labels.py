"""Labels as sentences of label tokens, so that a model of labels is trained, decoded and scored like any other.

A recipe names them as its target language: `label` (one token for an item), `frame_labels` (one token for each step of
its input) or `track` (one token for each frame: a cell of a grid over the frame, near the object's centre).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import nan
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LABEL, FRAME_LABELS, TRACK = "label", "frame_labels", "track"
LABEL_LANGUAGES = (LABEL, FRAME_LABELS, TRACK)
"""Names in place of a language code (`data.lang`) for targets that are labels."""
VISIBLE, HIDDEN = "visible", "hidden"
"""Frame labels of tracked objects: the object is visible, or hidden by an obstacle."""
CELLS = 12
"""Number of columns and of rows of the grid of positions."""
Point = tuple[float, float]
"""Position in a frame, as shares of its width and height from its left upper corner."""

_CELL = re.compile(r"c(\d+)r(\d+)")
_PREDICTION = re.compile(r"(\S+) \(([\d.]+)\)")


def label_token(label: str) -> str:
    """Return the token of a label: white space is replaced by underscores."""
    return "_".join(label.split())


def cell_token(point: Point, rng: Random) -> str:
    """Draw one of the four cells around a position with bilinear weights, so that the expected centre is the position.

    Positions beyond the centres of the outer cells belong to these cells.
    """
    names: list[int] = []
    for share in point:
        place = min(max(CELLS * share - 0.5, 0.0), CELLS - 1.0)  # in cells, from the centre of the first
        names.append(int(place) + (rng.random() < place - int(place)))
    return f"c{names[0]}r{names[1]}"


def cell_centres(tokens: Sequence[str]) -> NDArray[np.float64]:
    """Return the centres of cells (V, 2) as shares of width and height; NaN for a token that is no cell."""
    centres = np.full((len(tokens), 2), np.nan)
    for index, token in enumerate(tokens):
        if match := _CELL.fullmatch(token):
            centres[index] = [(int(number) + 0.5) / CELLS for number in match.groups()]
    return centres


def position_text(point: Sequence[float], *, hidden: bool = False) -> str:
    """Write a position (x, y), in shares of the width of the frame, in percent of it: `51.23,8.05[,hidden]`."""
    return ",".join([*(f"{100 * share:.2f}" for share in point), *([HIDDEN] if hidden else [])])


def read_position(text: str) -> Point:
    """Read a position of `position_text`, in percent of the frame's width; NaN for other texts."""
    try:
        x, y = (float(part) for part in text.split(",")[:2])
    except ValueError:
        return nan, nan
    return x, y


class PredictedLabel(NamedTuple):
    """A label, or a position as text, with its probability."""

    label: str
    probability: float


def write_predictions(predictions: Iterable[PredictedLabel]) -> str:
    """Write labels with their probabilities, as `positive (0.9312)`, joined by spaces."""
    return " ".join(f"{label} ({probability:.4f})" for label, probability in predictions)


def read_predictions(text: str) -> list[PredictedLabel]:
    """Read a text of `write_predictions`; empty for other texts."""
    return [PredictedLabel(label, float(probability)) for label, probability in _PREDICTION.findall(text)]
