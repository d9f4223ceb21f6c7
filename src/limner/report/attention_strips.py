"""Film strips of the attention over an image for each word of a caption, Xu et al. (2015), Figure 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from limner.errors import SettingsError
from limner.report.attention_plots import MAX_WORDS
from limner.report.plots import DOTS_PER_INCH, INK, fonts_for, shortened

COLUMNS = 8
"""Maximum number of panels in a row."""
STRIP_SIDE = 200
"""Longer side of a panel in pixels."""

# Inches: between panels, lines of words and of gates, the column of names, and between lines of words.
_GAP, _WORD, _GATE, _NAME, _BELOW = 0.06, 0.24, 0.2, 0.3, 0.1
_NARROWEST = 0.85  # width of a column, which leaves space for words above panels of high images


class AttentionStrip(NamedTuple):
    """Attention of one model for each word of a caption."""

    panels: Sequence[Image.Image]
    """The image and T heat maps of the same size, as `attended_panels` and `attention_plots.panels` return them."""
    gates: NDArray[np.float64] | None = None
    """Gate beta of each word, (T,), printed below the heat maps; None without a gate."""
    name: str = ""
    """Name of the model, printed beside the rows of its heat maps; empty for none."""


class StripLayout(NamedTuple):
    """Positions of the panels of strips in inches from the top left corner of the figure.

    Position 0 of a row of panels is that of the image. If the panels need several rows, each line of words is followed
    by the rows of all strips, so that the heat maps of a word are below each other.
    """

    columns: int
    """Number of panels in a row."""
    lines: int
    """Number of rows of each strip."""
    pitch: float
    """Distance between the left edges of panels."""
    margin: float
    """Left edge of the first panel's column."""
    panel: tuple[float, float]
    """Width and height of a panel."""
    below: tuple[float, ...]
    """Height of the line of gates below the rows of each strip."""

    @property
    def line_height(self) -> float:
        """Height of a line of words with the rows of all strips."""
        return _WORD + sum(self.panel[1] + _GAP + gates for gates in self.below) + _BELOW

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the figure."""
        return self.margin + self.columns * self.pitch, self.lines * self.line_height - _BELOW

    def centre(self, position: int) -> float:
        """Horizontal centre of the panel at a position."""
        return self.margin + (position % self.columns + 0.5) * self.pitch

    def top(self, position: int, strip: int) -> float:
        """Upper edge of the panel at a position of a strip."""
        above = sum(self.panel[1] + _GAP + gates for gates in self.below[:strip])
        return position // self.columns * self.line_height + _WORD + above


def arrange(strips: Sequence[AttentionStrip], columns: int = COLUMNS) -> StripLayout:
    """Distribute the panels of strips over rows of about equal length.

    Args:
        strips: strips with the same number of panels.
        columns: maximum number of panels in a row.
    """
    count = len(strips[0].panels)
    lines = math.ceil(count / columns)
    columns = math.ceil(count / lines)
    width = max(strip.panels[0].width for strip in strips) / DOTS_PER_INCH
    height = max(strip.panels[0].height for strip in strips) / DOTS_PER_INCH
    margin = _NAME if any(strip.name for strip in strips) else _GAP / 2
    below = tuple(0.0 if strip.gates is None else _GATE for strip in strips)
    return StripLayout(columns, lines, max(width, _NARROWEST) + _GAP, margin, (width, height), below)


def attention_strips(words: Sequence[str], strips: Sequence[AttentionStrip], *, columns: int = COLUMNS) -> Figure:
    """Plot the attention of one or several models for each word of a caption, Xu et al. (2015), Figure 2.

    The image comes first, then a heat map for each word, from left to right. The words are above the heat maps, gates
    below. The strips of several models are below each other.

    Args:
        words: words of the caption (T); only the first `MAX_WORDS` are drawn.
        strips: attention of each model, such as soft and hard attention.
        columns: maximum number of panels in a row.

    Raises:
        SettingsError: there is no strip, or a strip has not T + 1 panels or T gates.
    """
    if not strips:
        raise SettingsError("attention strips: expected at least one strip, got none")
    for strip in strips:
        if len(strip.panels) != len(words) + 1 or (strip.gates is not None and len(strip.gates) != len(words)):
            gates = "no" if strip.gates is None else str(len(strip.gates))
            raise SettingsError(
                f"attention strip: expected {len(words) + 1} panels and {len(words)} gates or none, the image and "
                f"one for each word, got {len(strip.panels)} panels and {gates} gates"
            )
    count = min(len(words), MAX_WORDS)
    strips = [strip._replace(panels=strip.panels[: count + 1]) for strip in strips]
    layout = arrange(strips, columns)
    figure = Figure(figsize=layout.size)
    figure.patch.set_alpha(0)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    width, height = layout.size
    axes.set(xlim=(0, width), ylim=(height, 0))
    _draw_image(axes, layout, strips)
    for position, word in enumerate(words[:count], start=1):
        line = layout.top(position, 0) - _WORD / 2
        _print(axes, layout, layout.centre(position), line, shortened(word), 10)
    for number, strip in enumerate(strips):
        for position, panel in enumerate(strip.panels[1:], start=1):
            _draw(axes, panel, layout.centre(position), layout.top(position, number))
            if strip.gates is not None:
                below = layout.top(position, number) + layout.panel[1] + _GATE / 2
                _print(axes, layout, layout.centre(position), below, f"β {strip.gates[position - 1]:.2f}", 8, INK)
        _print_name(axes, layout, number, strip)
    if count < len(words):
        note = f"the first {count} of {len(words)} words"
        _print(axes, layout, layout.centre(0), layout.top(0, 0) - _WORD / 2, note, 8, INK)
    return figure


def _draw_image(axes: Axes, layout: StripLayout, strips: Sequence[AttentionStrip]) -> None:
    """Draw the image at the first position, vertically centred on the rows of all strips."""
    first, last = layout.top(0, 0), layout.top(0, len(strips) - 1)
    _draw(axes, strips[0].panels[0], layout.centre(0), (first + last) / 2)


def _draw(axes: Axes, panel: Image.Image, centre: float, top: float) -> None:
    """Draw a panel in its own size."""
    width, height = (length / DOTS_PER_INCH for length in panel.size)
    extent = (centre - width / 2, centre + width / 2, top + height, top)
    axes.imshow(np.asarray(panel), extent=extent, aspect="auto", clip_on=False)


def _print(axes: Axes, layout: StripLayout, x: float, y: float, label: str, size: float, colour: str = "black") -> None:
    """Print a centred label, in a smaller font if it is wider than its column."""
    text = axes.text(x, y, label, ha="center", va="center", color=colour, fontsize=size, parse_math=False)
    text.set_fontfamily(fonts_for(label))
    available = (layout.pitch - _GAP) * axes.figure.dpi
    text.set_fontsize(size * min(1.0, available / max(text.get_window_extent().width, 1.0)))


def _print_name(axes: Axes, layout: StripLayout, number: int, strip: AttentionStrip) -> None:
    """Print the name of a strip upright beside each of its rows."""
    for line in range(layout.lines if strip.name else 0):
        middle = layout.top(line * layout.columns, number) + layout.panel[1] / 2
        label = shortened(strip.name)
        text = axes.text(_NAME / 2, middle, label, ha="center", va="center", rotation=90, fontsize=9, color=INK)
        text.set(parse_math=False, fontfamily=fonts_for(label))
