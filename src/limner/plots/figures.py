"""Plots of learning curves, recall curves and gradients.

Every function returns a matplotlib `Figure` outside of pyplot, which needs no display and is freed with its last
reference. `svg` converts a figure to markup, `save_plot` writes it to a file.
"""

from __future__ import annotations

import functools
import html
import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from matplotlib import font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from limner.errors import SettingsError
from limner.files import atomic_write

Point = tuple[float, float]
# Distinguishable with colour vision deficiency, and on a white and a dark background (after Okabe and Ito, 2008).
COLOURS = ("#0f7fbf", "#d9662b", "#1a9e77", "#b8589b", "#b98a00", "#6a6fd1")
# Colours of text and lines, which `svg` replaces by the colour variables of the page.
INK, FAINT = "#5a5f69", "#b4b8c0"
SIZE = (4.6, 3.0)  # width and height of a plot in inches
DOTS_PER_INCH = 160
MAX_LABEL_LENGTH = 24  # maximum length of a label in characters; a longer one is truncated


def _style() -> AbstractContextManager[None]:
    return rc_context(
        {
            "font.family": "sans-serif",
            "svg.fonttype": "none",  # selectable text in the font of the page
            "svg.hashsalt": "limner",  # reproducible output
            "axes.formatter.useoffset": False,  # tick labels are the values themselves
        }
    )


def _axes(title: str, xlabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold")
    axes.set_xlabel(xlabel, color=INK)
    axes.tick_params(colors=INK, length=0)
    axes.grid(axis="y", color=FAINT, alpha=0.5, linewidth=0.6)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.margins(x=0.02)
    return figure, axes


def _finish(axes: Axes) -> None:
    """Make the background transparent, and add a legend if there are several lines."""
    axes.patch.set_alpha(0)
    if len(axes.get_lines()) > 1:
        axes.legend(frameon=False, labelcolor=INK, fontsize=9, handlelength=1.4)


def curves(title: str, lines: Mapping[str, Sequence[Point]], kept: int | None = None) -> Figure:
    """Plot values of trainings against the number of updates: points (update, value) by label.

    A line without points has its colour, but is not drawn. A dashed line marks the update of the kept weights.
    """
    figure, axes = _axes(title, "updates")
    _lines(axes, lines)
    if kept is not None:
        axes.axvline(kept, color=INK, linewidth=1, linestyle=(0, (4, 3)), label="kept weights")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _finish(axes)
    return figure


def recall_curves(
    title: str, lines: Mapping[str, Sequence[Point]], chance: Sequence[Point] = ((0, 0), (1, 1))
) -> Figure:
    """Plot recall curves as in Mao et al. (2015), Figure 4, and Kiros et al. (2014), Figure 2, with a random ranking.

    Points are (fraction of the ranking, recall), by label; by default, the random ranking is the diagonal.
    """
    figure, axes = _axes(title, "fraction of the ranking")
    _lines(axes, lines)
    axes.plot(*zip(*chance, strict=True), label="random ranking", color=FAINT, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.set_ylim(0, 1.02)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    _finish(axes)
    return figure


def _lines(axes: Axes, lines: Mapping[str, Sequence[Point]]) -> None:
    """Draw a line for each label in the next colour, dotted after the last colour, and marked at the points if few."""
    for position, (label, points) in enumerate(lines.items()):
        if points:
            style, colour = "-" if position < len(COLOURS) else ":", COLOURS[position % len(COLOURS)]
            marker = "o" if len(points) < 30 else None
            x, y = zip(*points, strict=True)
            axes.plot(x, y, style, label=shortened(label), color=colour, linewidth=1.8, marker=marker, markersize=3)


def gradient_norms(norms: Mapping[str, Sequence[float]]) -> Figure:
    """Plot norms of the Jacobian of the recurrent state by distance in tokens, logarithmic, without norms of zero."""
    figure, axes = _axes("Norm of the Jacobian of the state", "distance, tokens")
    positive = {
        label: [(float(distance), norm) for distance, norm in enumerate(values) if norm > 0]
        for label, values in norms.items()
    }
    _lines(axes, positive)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    _finish(axes)
    return figure


def shortened(word: str, length: int = MAX_LABEL_LENGTH) -> str:
    """A word on one line, truncated to `length` characters."""
    word = " ".join(word.split())
    return word if len(word) <= length else word[: length - 1] + "…"


def fonts_for(text: str) -> list[str]:
    """Names of the default font and of installed fonts with the characters that it lacks.

    A character without any font is drawn as a box with the name of its script. Markup (`svg`) keeps the character.
    """
    return list(dict.fromkeys(("sans-serif", *(_font_with(character) for character in text))))


@functools.cache
def _font_with(character: str) -> str:
    entries = font_manager.fontManager.ttflist
    for entry in sorted(
        entries, key=lambda entry: (entry.name != _DEFAULT_FONT, entry.name.startswith(_FALLBACK_FONT))
    ):
        with suppress(RuntimeError):  # a font that FreeType cannot render, such as coloured emoji
            if font_manager.get_font(entry.fname).get_char_index(ord(character)):
                return entry.name
    return _DEFAULT_FONT


# The default font of matplotlib, and its fallback font of boxes.
_DEFAULT_FONT, _FALLBACK_FONT = "DejaVu Sans", "Last Resort"


def save_plot(figure: Figure, out: Path) -> Path:
    """Write a figure as .png or .svg on a white background, and return `out`; an existing file is replaced."""
    require_plot_suffix(out)
    kind = out.suffix[1:].lower()
    metadata = {"Software": "Limner"} if kind == "png" else {"Creator": "Limner", "Date": None}
    with atomic_write(out) as beside, _style():
        figure.savefig(beside, format=kind, dpi=DOTS_PER_INCH, facecolor="white", metadata=metadata)
    return out


def require_plot_suffix(out: Path) -> None:
    """Raise SettingsError if a file name does not end in .png or .svg."""
    if out.suffix.lower() not in (".png", ".svg"):
        raise SettingsError(f"{out}: expected a file name that ends in .png or .svg")


def svg(figure: Figure, description: str) -> str:
    """Convert a figure to SVG markup that uses the font and the colours `--ink` and `--faint` of the page.

    The description is its alternative text.
    """
    target = io.StringIO()
    with _style():
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    markup = target.getvalue()
    for pattern, replacement in _SVG_REPLACEMENTS:
        markup = re.sub(pattern, replacement, markup, flags=re.DOTALL)
    markup = markup.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
    return markup.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1)


# Changes of matplotlib's stand-alone SVG files for a page with several figures.
_SVG_REPLACEMENTS = (
    (r"^.*?(?=<svg)", ""),
    (r"<metadata>.*?</metadata>", ""),
    (r'(<svg[^>]*?) width="[\d.]+pt"', r"\1"),
    (r'(<svg[^>]*?) height="[\d.]+pt"', r"\1"),
    (r' id="[A-Za-z0-9.]+_\d+"', ""),  # ids like axes_1, which every figure has
    (r'(<image[^>]*?) id="\w+"', r"\1"),  # equal in figures with equal images
    (r">\*\{", ">svg *{"),
    (r"font: (\d+) ([\d.]+px) [^;\"]*", r"font-weight: \1; font-size: \2"),
    (r" font-family: [^;\"]*;", ""),
)
