"""Plots of learning curves, recall curves, gradients, labels and image gates.

Every function returns a matplotlib `Figure` outside of pyplot, which needs no display and is freed with its last
reference. `svg` converts a figure to markup, `save_png` writes it to a file.
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
from limner.metrics.classification import ReliabilityBin
from limner.runs.records import LogLine, Point
from limner.storage.outputs import GENERATOR

# Distinguishable with colour vision deficiency, and on a white and a dark background (after Okabe and Ito, 2008).
COLOURS = ("#0f7fbf", "#d9662b", "#1a9e77", "#b8589b", "#b98a00", "#6a6fd1")
# Colours of text and lines, which `svg` replaces by the colour variables of the page.
INK, FAINT = "#5a5f69", "#b4b8c0"
SIZE = (4.6, 3.0)
"""Width and height of a plot in inches."""
DOTS_PER_INCH = 160
MAX_LABEL_LENGTH = 24
"""Maximum length of a label in characters; a longer one is truncated."""
GATED_WORDS = 20
"""Number of words plotted with their mean gate."""


def _style() -> AbstractContextManager[None]:
    return rc_context(
        {
            "font.family": "sans-serif",
            "svg.fonttype": "none",  # selectable text in the font of the page
            "svg.hashsalt": "limner",  # reproducible output
            "axes.formatter.useoffset": False,  # tick labels are the values themselves
        }
    )


def _axes(figure: Figure, title: str, xlabel: str, subplot: tuple[int, int, int] = (1, 1, 1)) -> Axes:
    axes = figure.add_subplot(*subplot)
    axes.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold")
    axes.set_xlabel(xlabel, color=INK)
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
    """Make the background transparent, and add a legend if there are several lines."""
    axes.patch.set_alpha(0)
    if len(axes.get_lines()) > 1:
        axes.legend(frameon=False, labelcolor=INK, fontsize=9, handlelength=1.4)


def loss_curves(log: Sequence[LogLine], kept: int | None = None) -> Figure:
    """Plot the training and validation loss in nats per token against the number of updates.

    Args:
        log: the training log.
        kept: update of the kept weights, which a dashed line marks.
    """
    figure = _figure()
    axes = _axes(figure, "Loss, nats per token", "updates")
    for kind, name, colour in (("train", "training", COLOURS[0]), ("val", "validation", COLOURS[1])):
        points = [(line.step, line.loss) for line in log if line.kind == kind and line.loss is not None]
        _line(axes, points, name, colour)
    _mark_kept(axes, kept)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _finish(axes)
    return figure


def metric_curves(title: str, log: Sequence[LogLine], names: Mapping[str, str], kept: int | None = None) -> Figure:
    """Plot validation metrics against the number of updates.

    Args:
        title: title of the plot.
        log: the training log.
        names: labels of the metrics by their name in the log.
        kept: update of the kept weights, which a dashed line marks.
    """
    figure = _figure()
    axes = _axes(figure, title, "updates")
    validations = [(line.step, line.named()) for line in log if line.kind == "val"]
    for position, (name, label) in enumerate(names.items()):
        points = [(step, values[name]) for step, values in validations if name in values]
        _line(axes, points, label, COLOURS[position % len(COLOURS)])
    _mark_kept(axes, kept)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _finish(axes)
    return figure


def run_curves(title: str, curves: Mapping[str, Sequence[Point]]) -> Figure:
    """Plot one figure of several trainings against the number of updates, with a line for each.

    Args:
        title: title of the plot.
        curves: points (update, value) by the name of the run; a run without points has its colour, but no line.
    """
    figure = _figure()
    axes = _axes(figure, title, "updates")
    for position, (name, points) in enumerate(curves.items()):
        style = "-" if position < len(COLOURS) else ":"
        _line(axes, points, shortened(name), COLOURS[position % len(COLOURS)], style)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _finish(axes)
    return figure


def _mark_kept(axes: Axes, step: int | None) -> None:
    if step is not None:
        axes.axvline(step, color=INK, linewidth=1, linestyle=(0, (4, 3)), label="kept weights")


def recall_curves(
    title: str, curves: Mapping[str, Sequence[Point]], chance: Sequence[Point] = ((0, 0), (1, 1))
) -> Figure:
    """Plot recall curves as in Mao et al. (2015), Figure 4, and Kiros et al. (2014), Figure 2, with a random ranking.

    Args:
        title: title of the plot.
        curves: curves by label; points are (fraction of the ranking, recall).
        chance: curve of a random ranking; default: the diagonal.
    """
    figure = _figure()
    axes = _axes(figure, title, "fraction of the ranking")
    for position, (label, points) in enumerate(curves.items()):
        _line(axes, points, label, COLOURS[position % len(COLOURS)], "-" if position < len(COLOURS) else ":")
    axes.plot(*zip(*chance, strict=True), label="random ranking", color=FAINT, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.set_ylim(0, 1.02)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    _finish(axes)
    return figure


def _line(axes: Axes, points: Sequence[tuple[float, float]], label: str, colour: str, style: str = "-") -> None:
    if points:
        marker = "o" if len(points) < 30 else None
        x, y = zip(*points, strict=True)
        axes.plot(x, y, style, label=label, color=colour, linewidth=1.8, marker=marker, markersize=3)


def gradient_norms(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Plot norms of the Jacobian of the recurrent state on a logarithmic axis against the distance in tokens.

    Args:
        curves: norms at the distances 0, 1, 2, … by label; norms of zero are left out.
    """
    figure = _figure()
    axes = _axes(figure, "Norm of the Jacobian of the state", "distance, tokens")
    for position, (label, norms) in enumerate(curves.items()):
        points = [(float(distance), norm) for distance, norm in enumerate(norms) if norm > 0]
        _line(axes, points, label, COLOURS[position % len(COLOURS)], "-" if position < len(COLOURS) else ":")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    _finish(axes)
    return figure


def reliability(bins: Sequence[ReliabilityBin]) -> Figure:
    """Plot the accuracy of labels against their probability, and the number of labels in each bin.

    Args:
        bins: bins of equal width from 0 to 1.
    """
    figure = _figure()
    axes = _axes(figure, "Reliability", "probability of the label")
    width = 1 / len(bins)
    for position, one in enumerate(bins):
        if one.predictions:
            axes.bar((position + 0.5) * width, one.accuracy, 0.9 * width, color=COLOURS[0])
            axes.annotate(
                f"{one.predictions:,}",
                ((position + 0.5) * width, one.accuracy),
                ha="center",
                va="bottom",
                color=INK,
                fontsize=8,
            )
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle="--", label="calibrated")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.08)
    axes.set_ylabel("accuracy")
    _finish(axes)
    return figure


def gate_statistics(
    fractions: Mapping[str, Sequence[float]],
    words: Sequence[tuple[str, float, int]],
    *,
    thresholds: Sequence[float] = (0.5, 0.8),
) -> Figure:
    """Plot how often the image gate is open, and the words with the highest gate; Calixto et al. (2017), section 5.2.

    Args:
        fractions: fraction of the words whose gate is above each threshold, by part of the vocabulary.
        words: words with their mean gate and number of occurrences; the `GATED_WORDS` highest means are plotted.
        thresholds: thresholds of the gate, in the order of the fractions.
    """
    highest = sorted(words, key=lambda entry: (-entry[1], -entry[2], entry[0]))[:GATED_WORDS]
    group = len(thresholds) + 0.5  # bars of one part, and the space after them
    rows = max(len(fractions) * group, len(highest), 2)
    figure = Figure(figsize=(2 * SIZE[0], 1.2 + 0.24 * rows), layout="constrained")
    figure.patch.set_alpha(0)
    parts = _axes(figure, "Words with an open gate", "percentage of the words", (1, 2, 1))
    thickness = 0.8 / group
    for position, threshold in enumerate(thresholds):
        values = [part[position] for part in fractions.values()]
        rows_of_bars = [row + (position - (len(thresholds) - 1) / 2) / group for row in range(len(fractions))]
        bars = parts.barh(rows_of_bars, values, thickness, color=COLOURS[position], clip_on=False)
        bars.set_label(f"above {threshold:g}")
        parts.bar_label(bars, [f"{value:.0%}" for value in values], padding=3, color=INK, fontsize=8)
    _name_rows(parts, list(fractions), rows / group)
    parts.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    figure.legend(loc="outside lower left", ncols=len(thresholds), frameon=False, labelcolor=INK, fontsize=9)
    means = _axes(figure, "Words with the highest mean gate", "mean gate (occurrences)", (1, 2, 2))
    bars = means.barh(range(len(highest)), [mean for _, mean, _ in highest], 0.8, color=COLOURS[0], clip_on=False)
    means.bar_label(bars, [f"{mean:.2f} ({count:,})" for _, mean, count in highest], padding=3, color=INK, fontsize=8)
    _name_rows(means, [word for word, _, _ in highest], rows)
    return figure


def _name_rows(axes: Axes, names: Sequence[str], rows: float) -> None:
    """Set up the axes of horizontal bars from 0 to 1: names on the left, the first on top, for a number of rows."""
    labels = [shortened(name) for name in names]
    axes.set_yticks(range(len(labels)), labels, parse_math=False, fontsize=9)
    for tick, name in zip(axes.get_yticklabels(), labels, strict=True):
        tick.set_fontfamily(fonts_for(name))
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_xlim(0, 1.12)
    axes.set_xticks((0, 0.25, 0.5, 0.75, 1))
    axes.grid(visible=False)
    axes.patch.set_alpha(0)


def shortened(word: str) -> str:
    """A word on one line, truncated to `MAX_LABEL_LENGTH` characters."""
    word = " ".join(word.split())
    return word if len(word) <= MAX_LABEL_LENGTH else word[: MAX_LABEL_LENGTH - 1] + "…"


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


def save_png(figure: Figure, out: Path) -> Path:
    """Write a figure as PNG on a white background; an existing file is replaced.

    Returns:
        `out`.

    Raises:
        RunError: the file cannot be written; an existing file is unchanged.
    """
    return _save(figure, out, "png")


def save_plot(figure: Figure, out: Path) -> Path:
    """Write a figure as .png or .svg on a white background; an existing file is replaced.

    Returns:
        `out`.

    Raises:
        SettingsError: `out` has another suffix.
        RunError: the file cannot be written; an existing file is unchanged.
    """
    require_plot_suffix(out)
    return _save(figure, out, out.suffix[1:].lower())


def _save(figure: Figure, out: Path, format_: str) -> Path:
    """Write a figure with the mark by which `limner.storage.outputs` knows files of Limner."""
    metadata = {"Software": GENERATOR} if format_ == "png" else {"Creator": GENERATOR, "Date": None}
    with atomic_write(out) as beside, _style():
        figure.savefig(beside, format=format_, dpi=DOTS_PER_INCH, facecolor="white", metadata=metadata)
    return out


def require_plot_suffix(out: Path) -> None:
    """Check that a file name ends in .png or .svg.

    Raises:
        SettingsError: it has another suffix.
    """
    if out.suffix.lower() not in (".png", ".svg"):
        raise SettingsError(f"{out}: expected a file name that ends in .png or .svg")


def svg(figure: Figure, description: str) -> str:
    """Convert a figure to SVG markup that uses the font and the colours `--ink` and `--faint` of the page.

    Args:
        figure: the figure.
        description: alternative text, without markup.
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
