"""Plot of words at their positions in the plane, with labels that do not overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from limner.report.plots import COLOURS, INK

MAP_SIZE = (9.2, 6.0)
"""Width and height of a map of words in inches."""
DOT_SIZE = 2.4
"""Diameter of a dot in points."""

# Directions from a dot to its label: right, left, above, below.
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1))
_LABEL_GAP = 2.0  # points from the centre of a dot to its label


def plot_words(title: str, words: Sequence[str], positions: NDArray[np.float64], clusters: Sequence[int]) -> Figure:
    """Plot words at their positions in the plane; a word whose label would overlap an earlier one is a dot only.

    Args:
        title: title of the plot.
        words: words (N), by decreasing priority.
        positions: coordinates (N, 2).
        clusters: cluster of each word (N), from 0, which sets its colour.
    """
    figure = Figure(figsize=MAP_SIZE, layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold")
    axes.set_axis_off()
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.04)
    colours = [COLOURS[cluster % len(COLOURS)] for cluster in clusters]
    for colour in dict.fromkeys(colours):
        members = positions[[one == colour for one in colours]]
        axes.plot(*members.T, color=colour, linestyle="none", marker="o", markersize=DOT_SIZE, markeredgewidth=0)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # keep the positions that the labels are fitted to
    paper = figure.get_size_inches() * 72
    points = axes.transData.transform(positions) * 72 / figure.dpi
    dots = np.hstack((points - DOT_SIZE / 2, points + DOT_SIZE / 2))
    taken = np.empty((0, 4))
    for word, colour, position, point in zip(words, colours, positions, points, strict=True):
        label = axes.annotate(word, position, (0, 0), textcoords="offset points", va="bottom", color=colour, fontsize=8)
        extent = label.get_window_extent()
        size = np.array([extent.width, extent.height]) * 72 / figure.dpi
        boxes = [_box(point, size, side) for side in _SIDES]
        inside = [box for box in boxes if (box[:2] >= 0).all() and (box[2:] <= paper).all()]
        free = [box for box in inside if not _overlaps(box, taken)]
        if not free:
            label.remove()
            continue
        chosen = next((box for box in free if not _overlaps(box, dots)), free[0])
        label.set_position(chosen[:2] - point)
        taken = np.vstack((taken, chosen))
    return figure


def _box(point: NDArray[np.float64], size: NDArray[np.float64], side: tuple[int, int]) -> NDArray[np.float64]:
    """Left, bottom, right and top of a label beside a dot, in points."""
    corner = point + np.array(side) * (size / 2 + _LABEL_GAP) - size / 2
    return np.concatenate((corner, corner + size))


def _overlaps(box: NDArray[np.float64], others: NDArray[np.float64]) -> bool:
    return bool(((box[:2] < others[:, 2:]) & (others[:, :2] < box[2:])).all(1).any())
