"""Drawings: learning curves, recall curves and maps of words.

Every function returns a matplotlib `Figure` that belongs to no window and to no global list, so drawing needs
no display and leaves nothing behind. `svg` turns one into markup.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from limner.records import LogLine, Point

# Distinct for colour-blind readers and readable on white and on near-black (after Okabe and Ito, 2008).
COLOURS = ("#0f7fbf", "#d9662b", "#1a9e77", "#b8589b", "#b98a00", "#6a6fd1")
# Stand-ins for the ink of text and lines: `svg` makes them the page's own colours, light or dark.
INK, FAINT = "#5a5f69", "#b4b8c0"
SIZE = (4.6, 3.0)
MAP_SIZE = (9.2, 6.0)
DOT = 2.4  # points


def _style() -> AbstractContextManager[None]:
    return rc_context(
        {
            "font.family": "sans-serif",
            "svg.fonttype": "none",  # text stays text: selectable, and in the page's own font
            "svg.hashsalt": "limner",  # the same drawing gives the same bytes
        }
    )


def _axes(figure: Figure, title: str, across: str) -> Axes:
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold")
    axes.set_xlabel(across, color=INK)
    axes.tick_params(colors=INK, length=0)
    axes.grid(axis="y", color=FAINT, alpha=0.5, linewidth=0.6)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.margins(x=0.02)
    return axes


def _figure() -> Figure:
    figure = Figure(figsize=SIZE, layout="constrained")
    figure.patch.set_alpha(0)
    return figure


def _finish(axes: Axes) -> None:
    """Name the lines, in a legend where there are several."""
    axes.patch.set_alpha(0)
    if len(axes.get_lines()) > 1:
        axes.legend(frameon=False, labelcolor=INK, fontsize=9, handlelength=1.4)


def loss_curves(log: Sequence[LogLine]) -> Figure:
    """Draw the training and validation loss, nats a word, against updates."""
    figure = _figure()
    axes = _axes(figure, "Loss, nats a word", "updates")
    for kind, name, colour in (("train", "training", COLOURS[0]), ("val", "validation", COLOURS[1])):
        points = [(line.step, line.loss) for line in log if line.kind == kind and line.loss is not None]
        _line(axes, points, name, colour)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _finish(axes)
    return figure


def metric_curves(title: str, log: Sequence[LogLine], names: Mapping[str, str]) -> Figure:
    """Draw validation metrics, perplexity among them, against updates.

    Args:
        title: what the metrics have in common.
        log: the training log.
        names: the metrics to draw, by the name in the log, with the label to print.
    """
    figure = _figure()
    axes = _axes(figure, title, "updates")
    validations = [(line.step, line.named()) for line in log if line.kind == "val"]
    for position, (name, label) in enumerate(names.items()):
        points = [(step, values[name]) for step, values in validations if name in values]
        _line(axes, points, label, COLOURS[position % len(COLOURS)])
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _finish(axes)
    return figure


def recall_curves(
    title: str, curves: Mapping[str, Sequence[Point]], chance: Sequence[Point] = ((0, 0), (1, 1))
) -> Figure:
    """Draw the curves of Mao et al. (2015), Figure 4, or Kiros et al. (2014), Figure 2, with that of a random order.

    Args:
        title: what was searched for.
        curves: by label; points of (share of candidates looked at, share of right answers found).
        chance: the curve of a random order, where it is not the diagonal.
    """
    figure = _figure()
    axes = _axes(figure, title, "share of candidates looked at")
    for position, (label, points) in enumerate(curves.items()):
        _line(axes, points, label, COLOURS[position % len(COLOURS)], "-" if position < len(COLOURS) else ":")
    axes.plot(*zip(*chance, strict=True), label="random order", color=FAINT, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.set_ylim(0, 1.02)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    _finish(axes)
    return figure


def _line(axes: Axes, points: Sequence[tuple[float, float]], label: str, colour: str, style: str = "-") -> None:
    if points:
        marker = "o" if len(points) < 30 else None
        across, up = zip(*points, strict=True)
        axes.plot(across, up, style, label=label, color=colour, linewidth=1.8, marker=marker, markersize=3)


def word_map(title: str, words: Sequence[str], positions: NDArray[np.float64], groups: Sequence[int]) -> Figure:
    """Draw words where they lie in the plane; where labels would overlap, the later word stays a dot.

    Args:
        title: what placed them.
        words: (N), those that matter most first.
        positions: (N, 2).
        groups: (N), from 0; words of one group have one colour.
    """
    figure = Figure(figsize=MAP_SIZE, layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold")
    axes.set_axis_off()
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.04)
    colours = [COLOURS[group % len(COLOURS)] for group in groups]
    for colour in dict.fromkeys(colours):
        own = positions[[one == colour for one in colours]]
        axes.plot(*own.T, color=colour, linestyle="none", marker="o", markersize=DOT, markeredgewidth=0)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # a label must not move what it was fitted to
    paper = figure.get_size_inches() * 72
    points = axes.transData.transform(positions) * 72 / figure.dpi
    dots = np.hstack((points - DOT / 2, points + DOT / 2))
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


# Where a label may stand, as the way from its dot: right, left, above, below.
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1))
_GAP = 2.0  # points from the middle of a dot to its label


def _box(point: NDArray[np.float64], size: NDArray[np.float64], side: tuple[int, int]) -> NDArray[np.float64]:
    """Left, bottom, right and top of a label beside a dot, in points."""
    corner = point + np.array(side) * (size / 2 + _GAP) - size / 2
    return np.concatenate((corner, corner + size))


def _overlaps(box: NDArray[np.float64], others: NDArray[np.float64]) -> bool:
    return bool(((box[:2] < others[:, 2:]) & (others[:, :2] < box[2:])).all(1).any())


def svg(figure: Figure, description: str) -> str:
    """The figure as markup to stand in a page, whose font and `--ink` and `--faint` colours it takes.

    Args:
        figure: what to draw.
        description: what a reader who cannot see it is told; plain words, no markup.
    """
    target = io.StringIO()
    with _style():
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    markup = target.getvalue()
    for pattern, instead in _FOR_PAGES:
        markup = re.sub(pattern, instead, markup, flags=re.DOTALL)
    markup = markup.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
    return markup.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1)


# What matplotlib writes for a file of its own, and what suits a page with several drawings.
_FOR_PAGES = (
    (r"^.*?(?=<svg)", ""),
    (r"<metadata>.*?</metadata>", ""),
    (r'(<svg[^>]*?) width="[\d.]+pt"', r"\1"),
    (r'(<svg[^>]*?) height="[\d.]+pt"', r"\1"),
    (r' id="[a-z0-9.]+_\d+"', ""),  # names like axes_1 that every drawing has
    (r">\*\{", ">svg *{"),
    (r"font: (\d+) ([\d.]+px) [^;\"]*", r"font-weight: \1; font-size: \2"),
    (r" font-family: [^;\"]*;", ""),
)
