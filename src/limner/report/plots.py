"""Drawings: learning curves, recall curves, maps of words and what an image gate does.

Every function returns a matplotlib `Figure` that belongs to no window and to no global list, so drawing needs
no display and leaves nothing behind. `svg` turns one into markup, `save_png` writes one to a file.
"""

from __future__ import annotations

import functools
import html
import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import numpy as np
from matplotlib import font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from limner.files import atomic_write
from limner.runs.records import LogLine, Point

# Distinct for colour-blind readers and readable on white and on near-black (after Okabe and Ito, 2008).
COLOURS = ("#0f7fbf", "#d9662b", "#1a9e77", "#b8589b", "#b98a00", "#6a6fd1")
# Stand-ins for the ink of text and lines: `svg` makes them the page's own colours, light or dark.
INK, FAINT = "#5a5f69", "#b4b8c0"
SIZE = (4.6, 3.0)
MAP_SIZE = (9.2, 6.0)
DOT = 2.4  # points
DOTS_PER_INCH = 160
MOST_LETTERS = 24
"""Of a longer word the end is left out."""
GATED_WORDS = 20
"""So many words are drawn with the mean of their gate."""


def _style() -> AbstractContextManager[None]:
    return rc_context(
        {
            "font.family": "sans-serif",
            "svg.fonttype": "none",  # text stays text: selectable, and in the page's own font
            "svg.hashsalt": "limner",  # the same drawing gives the same bytes
        }
    )


def _axes(figure: Figure, title: str, across: str, place: tuple[int, int, int] = (1, 1, 1)) -> Axes:
    axes = figure.add_subplot(*place)
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


def gate_statistics(
    shares: Mapping[str, Sequence[float]],
    words: Sequence[tuple[str, float, int]],
    *,
    thresholds: Sequence[float] = (0.5, 0.8),
) -> Figure:
    """Draw how often an image gate is open, and for which words most; Calixto et al. (2017), section 5.2.

    Args:
        shares: by part of the vocabulary ("all words", "nouns"), the share of its words, 0 to 1, whose gate is
            above each threshold.
        words: word, mean gate and number of times it was said; the `GATED_WORDS` highest means are drawn.
        thresholds: in the order of the shares.
    """
    highest = sorted(words, key=lambda entry: (-entry[1], -entry[2], entry[0]))[:GATED_WORDS]
    group = len(thresholds) + 0.5  # rows of one part, with the space after it
    rows = max(len(shares) * group, len(highest), 2)
    figure = Figure(figsize=(2 * SIZE[0], 1.2 + 0.24 * rows), layout="constrained")
    figure.patch.set_alpha(0)
    parts = _axes(figure, "How many words have an open gate", "share of the words", (1, 2, 1))
    thickness = 0.8 / group
    for position, threshold in enumerate(thresholds):
        values = [own[position] for own in shares.values()]
        places = [row + (position - (len(thresholds) - 1) / 2) / group for row in range(len(shares))]
        bars = parts.barh(places, values, thickness, color=COLOURS[position], clip_on=False)
        bars.set_label(f"above {threshold:g}")
        parts.bar_label(bars, [f"{value:.0%}" for value in values], padding=3, color=INK, fontsize=8)
    _name_rows(parts, list(shares), rows / group)
    parts.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    figure.legend(loc="outside lower left", ncols=len(thresholds), frameon=False, labelcolor=INK, fontsize=9)
    means = _axes(figure, "Words of the highest mean gate", "mean gate (how often said)", (1, 2, 2))
    bars = means.barh(range(len(highest)), [mean for _, mean, _ in highest], 0.8, color=COLOURS[0], clip_on=False)
    means.bar_label(bars, [f"{mean:.2f} ({count:,})" for _, mean, count in highest], padding=3, color=INK, fontsize=8)
    _name_rows(means, [word for word, _, _ in highest], rows)
    return figure


def _name_rows(axes: Axes, names: Sequence[str], rows: float) -> None:
    """Set up lying bars from 0 to 1: names down the left side, the first on top, in room for so many rows."""
    shown = [shortened(name) for name in names]
    axes.set_yticks(range(len(shown)), shown, parse_math=False, fontsize=9)
    for tick, name in zip(axes.get_yticklabels(), shown, strict=True):
        tick.set_fontfamily(fonts_for(name))
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_xlim(0, 1.12)
    axes.set_xticks((0, 0.25, 0.5, 0.75, 1))
    axes.grid(visible=False)
    axes.patch.set_alpha(0)


def shortened(word: str) -> str:
    """The word on one line and no longer than a drawing has room for."""
    word = " ".join(word.split())
    return word if len(word) <= MOST_LETTERS else word[: MOST_LETTERS - 1] + "…"


def fonts_for(text: str) -> list[str]:
    """The usual font, and those installed here that have the signs it lacks: another script, say.

    A sign that no font has is drawn as a box that shows its kind of script. Markup (`svg`) keeps the sign itself.
    """
    return list(dict.fromkeys(("sans-serif", *(_font_with(sign) for sign in text))))


@functools.cache
def _font_with(sign: str) -> str:
    entries = font_manager.fontManager.ttflist
    for entry in sorted(entries, key=lambda entry: (entry.name != _USUAL, entry.name.startswith(_LAST))):
        with suppress(RuntimeError):  # a font of a kind that cannot be drawn, coloured emoji for one
            if font_manager.get_font(entry.fname).get_char_index(ord(sign)):
                return entry.name
    return _USUAL


# Matplotlib's own fonts: what it uses unless told otherwise, and the boxes for whatever nothing else has.
_USUAL, _LAST = "DejaVu Sans", "Last Resort"


# Where a label may stand, as the way from its dot: right, left, above, below.
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1))
_GAP = 2.0  # points from the middle of a dot to its label


def _box(point: NDArray[np.float64], size: NDArray[np.float64], side: tuple[int, int]) -> NDArray[np.float64]:
    """Left, bottom, right and top of a label beside a dot, in points."""
    corner = point + np.array(side) * (size / 2 + _GAP) - size / 2
    return np.concatenate((corner, corner + size))


def _overlaps(box: NDArray[np.float64], others: NDArray[np.float64]) -> bool:
    return bool(((box[:2] < others[:, 2:]) & (others[:, :2] < box[2:])).all(1).any())


def save_png(figure: Figure, out: Path) -> Path:
    """Write a figure on white as PNG; an older file is replaced.

    Returns:
        `out`.

    Raises:
        RunError: it cannot be written; the old file is as it was.
    """
    with atomic_write(out) as beside, _style():
        figure.savefig(beside, format="png", dpi=DOTS_PER_INCH, facecolor="white")
    return out


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
    (r' id="[A-Za-z0-9.]+_\d+"', ""),  # names like axes_1 that every drawing has
    (r'(<image[^>]*?) id="\w+"', r"\1"),  # the same in two drawings that show the same
    (r">\*\{", ">svg *{"),
    (r"font: (\d+) ([\d.]+px) [^;\"]*", r"font-weight: \1; font-size: \2"),
    (r" font-family: [^;\"]*;", ""),
)
