"""Overlap of the locations of a grid with boxes, and the maps that attention is compared with.

Shapes: P phrases, L locations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.diagnosis.annotated_phrases import Box

Weights = NDArray[np.float64]

_TIE = 1e-6  # relative difference below which two weights are both the maximum


class LocationCoverage(NamedTuple):
    """Relation of the locations of a grid to some boxes."""

    inside: Weights
    """Fraction of each cell inside the union of the boxes, (L,)."""
    centre_inside: NDArray[np.bool_]
    """Whether the centre of each cell is inside a box, (L,)."""


def cover(cells: Weights, boxes: Sequence[Box]) -> LocationCoverage:
    """Compute which part of each cell is inside the union of some boxes.

    Args:
        cells: left, top, right and bottom of each cell, (L, 4).
        boxes: left, top, width and height of each box, in the same coordinates.
    """
    left, top, right, bottom = (
        np.array(side) for side in zip(*((x, y, x + w, y + h) for x, y, w, h in boxes), strict=True)
    )
    across, down = np.unique([left, right]), np.unique([top, bottom])  # edges of the boxes divide the plane into tiles
    middle_x, middle_y = (across[:-1] + across[1:]) / 2, (down[:-1] + down[1:]) / 2
    in_columns = (left[:, None] <= middle_x) & (middle_x < right[:, None])  # (boxes, X)
    in_rows = (top[:, None] <= middle_y) & (middle_y < bottom[:, None])  # (boxes, Y)
    covered = (in_rows[:, :, None] & in_columns[:, None, :]).any(0)  # (Y, X): whether a tile is inside a box
    widths = _overlap(cells[:, 0], cells[:, 2], across)  # (L, X)
    heights = _overlap(cells[:, 1], cells[:, 3], down)  # (L, Y)
    area = (cells[:, 2] - cells[:, 0]) * (cells[:, 3] - cells[:, 1])
    inside = np.einsum("ly,yx,lx->l", heights, covered.astype(np.float64), widths) / area
    x, y = (cells[:, 0] + cells[:, 2]) / 2, (cells[:, 1] + cells[:, 3]) / 2
    within = (left <= x[:, None]) & (x[:, None] <= right) & (top <= y[:, None]) & (y[:, None] <= bottom)
    return LocationCoverage(inside, np.asarray(within.any(1)))


def _overlap(low: Weights, high: Weights, edges: Weights) -> Weights:
    """Length of the overlap of each interval (L,) with each interval between edges (X + 1,): (L, X)."""
    overlap: Weights = (np.minimum(high[:, None], edges[1:]) - np.maximum(low[:, None], edges[:-1])).clip(0)
    return overlap


def pointing_hits(weights: Weights, centre_inside: NDArray[np.bool_]) -> Weights:
    """Compute whether the location of the maximum weight is inside a box, (P,).

    Args:
        weights: attention weights, (P, L).
        centre_inside: whether the centre of each location is inside a box, (P, L).

    Returns:
        1 or 0; where several locations have the maximum weight, the fraction of them that is inside.
    """
    maximum = weights >= weights.max(1, keepdims=True) * (1 - _TIE)
    hits: Weights = (maximum & centre_inside).sum(1) / maximum.sum(1)
    return hits


def centre_prior(grid: tuple[int, int], sigma: float) -> Weights:
    """Compute a Gaussian over the locations of a grid around its centre, (L,), with a sum of 1.

    Args:
        grid: rows and columns.
        sigma: standard deviation as a fraction of each side.
    """
    rows, columns = grid
    y, x = (np.arange(rows) + 0.5) / rows - 0.5, (np.arange(columns) + 0.5) / columns - 0.5
    weights = np.exp(-(y[:, None] ** 2 + x**2) / (2 * sigma**2)).ravel()
    normalised: Weights = weights / weights.sum()
    return normalised
