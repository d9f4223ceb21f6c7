"""Plots of attention: alignment with the source words, attention over the image, and the image gate.

As in Calixto, Liu and Campbell (2017), Figure 3, and Xu et al. (2015), Figure 2. The functions take words and arrays of
any model, and return a matplotlib `Figure` (for `limner.plots.figures.svg` or `save_plot`), images, or markup.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from limner.media.image import open_image
from limner.plots.figures import COLOURS, DOTS_PER_INCH, INK, fonts_for, shortened

Box = tuple[float, float, float, float]  # left, top, right and bottom, in pixels of the upright image
Pixels = NDArray[np.float32]
Floats = NDArray[np.float64]
Gates = Sequence[float] | Floats

MAX_WORDS = 120  # maximum number of words of a plot; a note is added to a longer sentence
PANEL = 240  # longer side of a heat map in pixels

CELL = 0.26  # side of the cell of one weight in inches
_MIN_PRINTED = 0.05  # smallest weight that is printed in its cell
_GREYS = LinearSegmentedColormap.from_list("weights", ["#eeeeee", "#000000"])
_REPEAT_LABELS = 30  # number of cells beyond which the words are repeated on the opposite side
_MARGIN = 0.08  # inches around a plot
# Of strips, in inches: between panels, lines of words and of gates, the column of names, between lines of words, and
# the width of a column, which leaves space for words above panels of high images.
_GAP, _WORD, _GATE, _NAME, _BELOW, _NARROWEST = 0.06, 0.24, 0.2, 0.3, 0.1, 0.85

# Brightness from 0 to 1: the image is grey between _DARK[0] and _DARK[1] at a weight of zero, and coloured from _LIGHT
# up at the largest weight. A brighter pixel has a larger weight, whatever the image shows.
_DARK, _LIGHT = (0.08, 0.38), 0.42
_GREY, _WHITE = (0.08, 0.48), 0.66  # _DARK and _LIGHT of grey images with white highlights
_SIGMA = 0.5  # standard deviation of the Gaussian that smooths weights, in cells of the grid
_OUTSIDE = 0.4  # factor of the brightness outside the grid
_EPSILON = 1e-12  # a heat map whose largest weight is smaller is dark


def alignment(
    source: Sequence[str],
    target: Sequence[str],
    weights: ArrayLike,
    *,
    gates: Gates | None = None,
    phrases: Sequence[tuple[tuple[int, int], tuple[int, int]]] = (),
) -> Figure:
    """Plot the alignment of a translation with its source, Calixto et al. (2017), Figure 3b.

    The grey scale is the same in all plots: a weight of 0 is light, a weight of 1 is black. Cells have a fixed size.
    The weights (T, S) belong to target words T, the rows, and source words S, the columns. Gates are printed after the
    target words. Phrase pairs are outlined; a pair is a span of source words and a span of target words.
    """
    cells = np.asarray(weights, dtype=np.float64)[:MAX_WORDS, :MAX_WORDS]
    rows, columns = ([shortened(word) for word in words[:MAX_WORDS]] for words in (target, source))
    if gates is not None:
        rows = [f"{word} ({gate:.2f})" for word, gate in zip(rows, gates[:MAX_WORDS], strict=True)]
    figure = Figure(figsize=(CELL * len(columns), CELL * len(rows)))
    figure.patch.set_alpha(0)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(cells, cmap=_GREYS, vmin=0, vmax=1, interpolation="none", aspect="auto", clip_on=False)
    axes.hlines(np.arange(1, len(rows)) - 0.5, -0.5, len(columns) - 0.5, "white", linewidth=0.6, clip_on=False)
    axes.vlines(np.arange(1, len(columns)) - 0.5, -0.5, len(rows) - 0.5, "white", linewidth=0.6, clip_on=False)
    for (left, right), (top, bottom) in phrases:
        width, height = min(right, len(columns)) - left, min(bottom, len(rows)) - top
        if min(width, height) > 0:
            outline = Rectangle((left - 0.5, top - 0.5), width, height, fill=False, edgecolor=COLOURS[1], linewidth=1.4)
            axes.add_patch(outline).set(clip_on=False, zorder=3)  # above the lines between the cells
    for row, column in np.argwhere(cells >= _MIN_PRINTED):
        weight = float(cells[row, column])
        printed = f"{weight:.2f}".lstrip("0") if weight < 0.995 else "1"
        ink = "white" if weight > 0.5 else "black"
        axes.text(column, row, printed, ha="center", va="center", color=ink, fontsize=6.5)
    axes.set_xticks(range(len(columns)), columns, parse_math=False, rotation=90, fontsize=9)
    axes.set_yticks(range(len(rows)), rows, parse_math=False, fontsize=9)
    bottom, right = len(rows) > _REPEAT_LABELS, len(columns) > _REPEAT_LABELS
    axes.tick_params(colors=INK, length=0, labeltop=True, labelbottom=bottom, labelright=right)
    for tick in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        tick.set_fontfamily(fonts_for(tick.get_text()))
    axes.spines[:].set_visible(False)
    if truncated := [
        f"the first {MAX_WORDS} of {len(words)} {name} words"
        for name, words in (("source", source), ("target", target))
        if len(words) > MAX_WORDS
    ]:
        axes.set_xlabel(", ".join(truncated), color=INK, fontsize=9)
    _fit(figure, axes)
    return figure


def _fit(figure: Figure, axes: Axes) -> None:
    """Enlarge the figure to contain the labels; the axes keep their size."""
    width, height = figure.get_size_inches()
    extent = axes.get_tightbbox()
    assert extent is not None, "the axes are visible"
    left, bottom = (_MARGIN - lowest / figure.dpi for lowest in (extent.x0, extent.y0))  # inches added on this side
    right, top = extent.x1 / figure.dpi, extent.y1 / figure.dpi
    size = left + right + _MARGIN, bottom + top + _MARGIN
    figure.set_size_inches(size)
    axes.set_position((left / size[0], bottom / size[1], width / size[0], height / size[1]))


def panels(
    image: Path | Image.Image,
    weights: ArrayLike,
    grid: tuple[int, int],
    *,
    box: Box | None = None,
    side: int = PANEL,
    smooth: bool = True,
    colour: bool = True,
) -> list[Image.Image]:
    """Create a heat map of the attention over the image for each word; return the image and T heat maps of its size.

    The brightness is scaled by the largest weight of the word: uniform attention lights the whole grid, and weights of
    zero (a sentence without an image) light none of it. Weights are upsampled and smoothed by a Gaussian, as in Xu et
    al. (2015), section 5.4. The weights (T, L) are row by row of the grid, whose rows and columns have the product L.
    `box` is the part of the image that the grid covers, such as the central square of a cropped image, by default all
    of it; `side` is the longer side of a heat map in pixels. Weights of the frames of a video are not smoothed. Without
    `colour` the image is grey with white highlights.
    """
    rows, columns = grid
    maps = np.asarray(weights, dtype=np.float64)
    original = open_image(image) if isinstance(image, Path) else image.convert("RGB")
    scale = side / max(original.size)
    small = original.resize([max(1, round(length * scale)) for length in original.size], Image.Resampling.LANCZOS)
    area = _scaled_box(box, original.size, scale)
    dark, light = _shades(small, area, colour)
    heat_maps = [small]
    for cells in maps:
        strength = _strength(cells.reshape(rows, columns), small.size, area, smooth)
        mixed = dark + strength[..., None] * (light - dark)
        heat_maps.append(Image.fromarray(mixed.round().astype(np.uint8)))
    return heat_maps


def _shades(image: Image.Image, area: tuple[int, int, int, int], colour: bool) -> tuple[Pixels, Pixels]:
    """The image at zero weight (H, W, 1) and at the largest weight (H, W, 3), from 0 to 255."""
    grey = np.asarray(image.convert("L"), dtype=np.float32)[..., None]
    brightness = Image.new("F", image.size, _OUTSIDE)
    brightness.paste(1.0, area)
    (low, high), lowest_lit = (_DARK, _LIGHT) if colour else (_GREY, _WHITE)
    dark = (low * 255 + (high - low) * grey) * np.asarray(brightness)[..., None]
    lit = np.asarray(image, dtype=np.float32) if colour else np.repeat(grey, 3, axis=2)
    return dark, lowest_lit * 255 + (1 - lowest_lit) * lit


def _strength(cells: Floats, size: tuple[int, int], area: tuple[int, int, int, int], smooth: bool) -> Pixels:
    """The upsampled weights of a word at each pixel (H, W), scaled to a maximum of 1."""
    left, top, right, bottom = area
    down, across = (
        _upsampling(count, length, smooth)
        for count, length in zip(cells.shape, (bottom - top, right - left), strict=True)
    )
    padded = Image.new("F", size, 0.0)
    padded.paste(Image.fromarray((down @ cells @ across.T).astype(np.float32)), (left, top))
    values: Pixels = np.asarray(padded)
    return values / max(float(values.max()), _EPSILON)


def _upsampling(count: int, length: int, smooth: bool) -> Floats:
    """Matrix (length, count) that maps weights of cells to weights of pixels; rows sum to 1."""
    pixels = (np.arange(length) + 0.5) * count / length  # centres of the pixels, in cells
    if not smooth:
        nearest: Floats = np.eye(count)[pixels.astype(int)]
        return nearest
    edges = (np.arange(count + 1) - pixels[:, None]) / (_SIGMA * math.sqrt(2))
    covered: Floats = np.diff(np.vectorize(math.erf, otypes=[float])(edges))  # integrals of the Gaussian over the cells
    smoothed: Floats = covered / covered.sum(1, keepdims=True)
    return smoothed


def _scaled_box(box: Box | None, size: tuple[int, int], scale: float) -> tuple[int, int, int, int]:
    """The box in pixels of the scaled image, at least one pixel wide and high."""
    if box is None:
        box = (0, 0, *size)
    left, top, right, bottom = box
    left, top = round(left * scale), round(top * scale)
    return left, top, max(left + 1, round(right * scale)), max(top + 1, round(bottom * scale))


class AttentionStrip(NamedTuple):
    """Attention of one model for each word of a sentence."""

    panels: Sequence[Image.Image]  # the image and T heat maps of the same size, as `panels` returns them
    gates: Gates | None = None  # image gate β of each word, (T,), printed below the heat maps; None without a gate
    name: str = ""  # name of the model, printed beside the rows of its heat maps; empty for none


def attention_strips(words: Sequence[str], strips: Sequence[AttentionStrip], *, columns: int = 8) -> Figure:
    """Plot the attention of one or several models for each word of a sentence, Xu et al. (2015), Figure 2.

    The image comes first, then a heat map for each word, from left to right. The words are above the heat maps, gates
    below. If the panels need several rows, each line of words is followed by the rows of all strips, so that the heat
    maps of a word are below each other. Only the first `MAX_WORDS` words are drawn, at most `columns` in a row.
    """
    count = min(len(words), MAX_WORDS)
    layout = _arrange(strips, count + 1, columns)
    figure = Figure(figsize=layout.size)
    figure.patch.set_alpha(0)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, layout.size[0]), ylim=(layout.size[1], 0))
    (centre, first), (_, last) = layout.place(0, 0), layout.place(0, len(strips) - 1)
    _draw(axes, strips[0].panels[0], centre, (first + last) / 2)  # vertically centred on the rows of all strips
    available = layout.pitch - _GAP
    if count < len(words):
        _print(axes, (centre, first - _WORD / 2), f"the first {count} of {len(words)} words", 8, INK, available)
    for position, word in enumerate(words[:count], start=1):
        centre, top = layout.place(position, 0)
        _print(axes, (centre, top - _WORD / 2), shortened(word), 10, "black", available)
    for number, strip in enumerate(strips):
        for position, panel in enumerate(strip.panels[1 : count + 1], start=1):
            centre, top = layout.place(position, number)
            _draw(axes, panel, centre, top)
            if strip.gates is not None:
                below = (centre, top + layout.height + _GATE / 2)
                _print(axes, below, f"β {strip.gates[position - 1]:.2f}", 8, INK, available)
        for line in range(layout.lines if strip.name else 0):
            middle = layout.place(line * layout.columns, number)[1] + layout.height / 2
            _print(axes, (_NAME / 2, middle), shortened(strip.name), 9, INK, None).set_rotation(90)
    return figure


class _Layout(NamedTuple):
    """Positions of the panels of strips in inches from the top left corner; position 0 belongs to the image."""

    columns: int
    lines: int  # number of rows of each strip
    pitch: float  # distance between the left edges of panels
    margin: float  # left edge of the first panel's column
    height: float  # height of a panel
    below: Sequence[float]  # space below the rows of each strip, with its gates

    @property
    def line_height(self) -> float:
        """Height of a line of words with the rows of all strips."""
        return _WORD + sum(self.height + space for space in self.below) + _BELOW

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the figure."""
        return self.margin + self.columns * self.pitch, self.lines * self.line_height - _BELOW

    def place(self, position: int, strip: int) -> tuple[float, float]:
        """Horizontal centre and upper edge of the panel at a position of a strip."""
        above = self.line_height * (position // self.columns) + _WORD + strip * self.height + sum(self.below[:strip])
        return self.margin + (position % self.columns + 0.5) * self.pitch, above


def _arrange(strips: Sequence[AttentionStrip], count: int, columns: int) -> _Layout:
    """Distribute the panels of strips over rows of about equal length."""
    lines = math.ceil(count / columns)
    width, height = (max(strip.panels[0].size[axis] for strip in strips) / DOTS_PER_INCH for axis in (0, 1))
    margin = _NAME if any(strip.name for strip in strips) else _GAP / 2
    below = [_GAP + (0.0 if strip.gates is None else _GATE) for strip in strips]
    return _Layout(math.ceil(count / lines), lines, max(width, _NARROWEST) + _GAP, margin, height, below)


def _draw(axes: Axes, panel: Image.Image, centre: float, top: float) -> None:
    half, height = panel.width / DOTS_PER_INCH / 2, panel.height / DOTS_PER_INCH
    axes.imshow(
        np.asarray(panel), extent=(centre - half, centre + half, top + height, top), aspect="auto", clip_on=False
    )


def _print(axes: Axes, place: tuple[float, float], label: str, size: float, colour: str, width: float | None) -> Text:
    """Print a centred label, in a smaller font if it is wider than `width` inches."""
    text = axes.text(*place, label, ha="center", va="center", color=colour, fontsize=size, parse_math=False)
    text.set_fontfamily(fonts_for(label))
    if width is not None:
        text.set_fontsize(size * min(1.0, width * axes.figure.dpi / max(text.get_window_extent().width, 1.0)))
    return text


def gate_spans(words: Sequence[str], gates: Gates) -> str:
    """Render words (T) as escaped markup with a darker blue background the larger their image gate (T), from 0 to 1.

    The text is black or white, whichever has the higher contrast: at least 4.5 to 1 (WCAG 2.2, success criterion 1.4.3)
    on a light and on a dark page. The title of a word is its gate.
    """
    spans = []
    for word, gate in zip(words, map(float, gates), strict=True):
        colour = "#" + "".join(f"{round(channel):02x}" for channel in _CLOSED + gate * (_OPEN - _CLOSED))
        ink = "#fff" if gate > _WHITE_INK else "#000"
        style = f"background:{colour};color:{ink};padding:0 .2em;border-radius:.2em;print-color-adjust:exact"
        spans.append(f'<span style="{style}" title="image gate {gate:.2f}">{html.escape(word)}</span>')
    return " ".join(spans)


# Background colours of a closed and of an open gate, and the gate from which white has the higher contrast.
_CLOSED, _OPEN, _WHITE_INK = np.array([240.0, 242, 245]), np.array([8.0, 71, 122]), 0.7033
