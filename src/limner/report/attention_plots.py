"""Pictures of attention: which source words, which places of the picture and how much of it a target word needed.

The drawings of Calixto, Liu and Campbell (2017), Figure 3. They take words and plain arrays, whatever model these
came from, and return a matplotlib `Figure` (for `limner.report.plots.svg` or `save_png`), small pictures, or markup.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from limner.errors import SettingsError
from limner.media.image import open_image
from limner.report.plots import DOTS_PER_INCH, INK, fonts_for, shortened

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels of the upright picture."""
Pixels = NDArray[np.float32]
Floats = NDArray[np.float64]

MOST_WORDS = 120
"""Of a longer sentence the first words are drawn, and a line says so."""
PANEL = 240
"""Longer side of a small picture, in pixels."""

CELL = 0.26  # inches, of one weight: room for two digits, and for a line of a word
_READABLE = 0.05  # weights from here on are printed in their cells
_GREYS = LinearSegmentedColormap.from_list("weights", ["#eeeeee", "#000000"])
_FAR = 30  # cells, beyond which words are repeated on the other side
_MARGIN = 0.08  # inches around a drawing

# Grey values, 0 to 1: where a word does not look, the picture is grey, from _DARK[0] to _DARK[1]; where it looks most,
# coloured and from _LIGHT up. So light is never darker than dark, whatever the picture shows.
_DARK, _LIGHT = (0.08, 0.38), 0.42
_UNSEEN = 0.4  # of that grey, for what lies outside the grid
_NOTHING = 1e-12  # a map whose largest weight is below this is dark


def alignment(
    source: Sequence[str], target: Sequence[str], weights: ArrayLike, *, betas: ArrayLike | None = None
) -> Figure:
    """Draw which source words each target word was made from, Calixto et al. (2017), Figure 3b.

    The scale of greys is the same in all drawings: a weight of 0 is light, of 1 black. The size follows the
    sentences, a cell is always as large.

    Args:
        source: words (S), across.
        target: words (T), down.
        weights: (T, S), each row of which sums to 1 or less.
        betas: the image gate of each target word (T), printed after it.

    Raises:
        SettingsError: the shapes do not fit, a side has no words, or a value is not finite or lies outside 0 to 1.
    """
    if not target:
        raise SettingsError("alignment: there are no target words; leave out what was translated by nothing")
    cells = _checked("alignment weights", weights, (len(target), len(source)))[:MOST_WORDS, :MOST_WORDS]
    down, across = _labels(target, betas)[:MOST_WORDS], _labels(source, None)[:MOST_WORDS]
    figure = Figure(figsize=(CELL * len(across), CELL * len(down)))
    figure.patch.set_alpha(0)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(cells, cmap=_GREYS, vmin=0, vmax=1, interpolation="none", aspect="auto", clip_on=False)
    axes.hlines(np.arange(1, len(down)) - 0.5, -0.5, len(across) - 0.5, "white", linewidth=0.6, clip_on=False)
    axes.vlines(np.arange(1, len(across)) - 0.5, -0.5, len(down) - 0.5, "white", linewidth=0.6, clip_on=False)
    for row, column in np.argwhere(cells >= _READABLE):
        weight = float(cells[row, column])
        printed = f"{weight:.2f}".lstrip("0") if weight < 0.995 else "1"
        ink = "white" if weight > 0.5 else "black"
        axes.text(column, row, printed, ha="center", va="center", color=ink, fontsize=6.5)
    axes.set_xticks(range(len(across)), across, parse_math=False, rotation=90, fontsize=9)
    axes.set_yticks(range(len(down)), down, parse_math=False, fontsize=9)
    axes.tick_params(colors=INK, length=0, labeltop=True, labelbottom=len(down) > _FAR, labelright=len(across) > _FAR)
    for tick in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        tick.set_fontfamily(fonts_for(tick.get_text()))
    axes.spines[:].set_visible(False)
    if left_out := [
        f"the first {MOST_WORDS} of {len(words)} {name} words"
        for name, words in (("source", source), ("target", target))
        if len(words) > MOST_WORDS
    ]:
        axes.set_xlabel(", ".join(left_out), color=INK, fontsize=9)
    _fit(figure, axes)
    return figure


def _fit(figure: Figure, axes: Axes) -> None:
    """Enlarge the paper around the axes, which keep their size, until their labels are on it."""
    wide, high = figure.get_size_inches()
    extent = axes.get_tightbbox()
    assert extent is not None, "axes that are drawn"
    left, bottom = (_MARGIN - lowest / figure.dpi for lowest in (extent.x0, extent.y0))  # inches added there
    right, top = extent.x1 / figure.dpi, extent.y1 / figure.dpi
    paper = left + right + _MARGIN, bottom + top + _MARGIN
    figure.set_size_inches(paper)
    axes.set_position((left / paper[0], bottom / paper[1], wide / paper[0], high / paper[1]))


def panels(
    picture: Path | Image.Image, weights: ArrayLike, grid: tuple[int, int], *, box: Box | None = None, side: int = PANEL
) -> list[Image.Image]:
    """Show where on a picture each word looked, by light: the picture itself, then one small picture a word.

    The light of each word is scaled by its own largest weight, from zero: a word that looks everywhere alike has
    the whole grid in full light, one that looks at one place only that. A word whose weights are all zero (it saw no
    picture) is all dark. Weights are upsampled bicubically, each to the middle of its cell.

    Args:
        picture: a picture or the file of one.
        weights: (T, L), row by row of the grid, as `FeatureSpec.grid_size` has it.
        grid: rows and columns, whose product is L.
        box: what of the picture the grid covers; all of it unless given. Features of a picture that was cut to a
            square in the middle cover that square; parts of the box outside the picture are passed over.
        side: longer side of the small pictures, in pixels.

    Returns:
        1 + T pictures, all of one size; a smaller picture is enlarged.

    Raises:
        MediaError: the file cannot be read.
        SettingsError: the shapes do not fit, a value is not finite or lies outside 0 to 1, or the box is empty or
            misses the picture.
    """
    rows, columns = grid
    maps = _checked("picture weights", weights, (len(np.asarray(weights)), rows * columns))
    whole = open_image(picture) if isinstance(picture, Path) else picture.convert("RGB")
    scale = side / max(whole.size)
    small = whole.resize([max(1, round(length * scale)) for length in whole.size], Image.Resampling.LANCZOS)
    area = _on_picture(box, whole.size, scale)
    dark, light = _shades(small, area)
    shown = [small]
    for own in maps:
        strength = _strength(own.reshape(rows, columns), small.size, area)
        mixed = dark + strength[..., None] * (light - dark)
        shown.append(Image.fromarray(mixed.round().astype(np.uint8)))
    return shown


def _shades(picture: Image.Image, area: tuple[int, int, int, int]) -> tuple[Pixels, Pixels]:
    """The picture where nothing looks and where everything does, (H, W, 1) and (H, W, 3), 0 to 255."""
    grey = np.asarray(picture.convert("L"), dtype=np.float32)[..., None]
    seen = Image.new("F", picture.size, _UNSEEN)
    seen.paste(1.0, area)
    dark = (_DARK[0] * 255 + (_DARK[1] - _DARK[0]) * grey) * np.asarray(seen)[..., None]
    light = _LIGHT * 255 + (1 - _LIGHT) * np.asarray(picture, dtype=np.float32)
    return dark, light


def _strength(cells: Floats, size: tuple[int, int], area: tuple[int, int, int, int]) -> Pixels:
    """The light of a word at each pixel, (H, W), 0 to 1 where it is most."""
    left, top, right, bottom = area
    smooth = Image.fromarray(cells.astype(np.float32)).resize((right - left, bottom - top), Image.Resampling.BICUBIC)
    lit = Image.new("F", size, 0.0)
    lit.paste(smooth, (left, top))
    values: Pixels = np.asarray(lit).clip(0)  # bicubic interpolation swings below zero
    return values / max(float(values.max()), _NOTHING)


def _on_picture(box: Box | None, size: tuple[int, int], scale: float) -> tuple[int, int, int, int]:
    """The box in pixels of the small picture, at least one pixel wide and high."""
    if box is None:
        box = (0, 0, *size)
    left, top, right, bottom = box
    if not (left < min(right, size[0]) and top < min(bottom, size[1]) and right > 0 and bottom > 0):
        raise SettingsError(
            f"box {box} of a picture of {size[0]} x {size[1]} pixels: expected left, top, right and bottom of a part "
            "of the picture, in its pixels"
        )
    left, top = round(left * scale), round(top * scale)
    return left, top, max(left + 1, round(right * scale)), max(top + 1, round(bottom * scale))


def heat_maps(
    picture: Path | Image.Image,
    words: Sequence[str],
    weights: ArrayLike,
    grid: tuple[int, int],
    *,
    betas: ArrayLike | None = None,
    box: Box | None = None,
) -> Figure:
    """Draw where on the picture each target word looked, Calixto et al. (2017), Figure 3a.

    Args:
        picture: a picture or the file of one; it comes first.
        words: target words (T), printed beneath their panels.
        weights: (T, L), row by row of the grid.
        grid: rows and columns, whose product is L.
        betas: the image gate of each word (T), printed after it: "Mann (0.83)".
        box: what of the picture the grid covers, as of `panels`.

    Raises:
        MediaError: the file cannot be read.
        SettingsError: as of `panels`.
    """
    maps = _checked("picture weights", weights, (len(words), grid[0] * grid[1]))[:MOST_WORDS]
    more = f"the first {MOST_WORDS} of {len(words)} words" if len(words) > MOST_WORDS else ""
    labels = [more, *_labels(words, betas)[:MOST_WORDS]]
    shown = panels(picture, maps, grid, box=box)
    wide, high = shown[0].width / PANEL, shown[0].height / PANEL  # of pitches
    columns = min(len(shown), max(4, math.ceil(math.sqrt(1.6 * (high + _LINE) * len(shown)))))
    rows = math.ceil(len(shown) / columns)
    pitch = PANEL / DOTS_PER_INCH  # inches; narrow pictures are no nearer, for the words beneath
    figure = Figure(figsize=(pitch * (columns + _GAP), pitch * (rows * (high + _LINE) + _GAP)))
    figure.patch.set_alpha(0)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    for place, (image, label) in enumerate(zip(shown, labels, strict=True)):
        middle, top = _GAP / 2 + place % columns + 0.5, _GAP + place // columns * (high + _LINE)
        half = wide * (1 - _GAP) / 2
        bottom = top + high * (1 - _GAP)
        axes.imshow(np.asarray(image), extent=(middle - half, middle + half, bottom, top), clip_on=False)
        _beneath(axes, middle, bottom + _LINE / 2, label, (1 - _GAP) * pitch * figure.dpi)
    axes.set(xlim=(0, columns + _GAP), ylim=(rows * (high + _LINE) + _GAP, 0), aspect="auto")
    return figure


_GAP, _LINE = 0.06, 0.2  # between panels, and for the words beneath one; of a panel's longer side


def _beneath(axes: Axes, across: float, down: float, label: str, room: float) -> None:
    """A word in the middle of its panel, smaller where it would not fit; `room` in pixels of the figure."""
    written = axes.text(
        across, down, label, ha="center", va="center", color=INK, fontsize=9, parse_math=False, clip_on=False
    )
    written.set_fontfamily(fonts_for(label))
    written.set_fontsize(9 * min(1.0, room / max(written.get_window_extent().width, 1.0)))


def beta_spans(words: Sequence[str], betas: ArrayLike) -> str:
    """A sentence as markup whose words are the darker blue, the wider their image gate was open.

    Each word brings its own background and the ink, black or white, that stands out more from it: at least 4.5
    to 1, as WCAG 2.2 asks (success criterion 1.4.3), on a light page and on a dark one. Its title says the gate.

    Args:
        words: (T), escaped here.
        betas: (T), 0 to 1.

    Raises:
        SettingsError: the lengths differ, or a gate is not finite or lies outside 0 to 1.
    """
    gates = _checked("gates", betas, (len(words),))
    return " ".join(_span(word, float(beta)) for word, beta in zip(words, gates, strict=True))


def _span(word: str, beta: float) -> str:
    paper = _CLOSED + beta * (_OPEN - _CLOSED)
    channels = paper / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))
    ink = "#fff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#000"
    colour = "#" + "".join(f"{round(channel):02x}" for channel in paper)
    style = f"background:{colour};color:{ink};padding:0 .2em;border-radius:.2em;print-color-adjust:exact"
    return f'<span style="{style}" title="image gate {beta:.2f}">{html.escape(word)}</span>'


_CLOSED, _OPEN = np.array([240.0, 242, 245]), np.array([8.0, 71, 122])


def _labels(words: Sequence[str], betas: ArrayLike | None) -> list[str]:
    shown = [shortened(word) for word in words]
    if betas is None:
        return shown
    gates = _checked("gates", betas, (len(words),))
    return [f"{word} ({beta:.2f})" for word, beta in zip(shown, gates, strict=True)]


def _checked(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.shape != shape or 0 in shape[1:]:
        raise SettingsError(
            f"{name} of shape {numbers.shape}: expected {shape}: a row for each target word, a column for each source "
            "word or place of the grid, one at least"
        )
    if not ((numbers >= 0) & (numbers <= 1 + 1e-3)).all():  # false for NaN too; half precision may pass 1 a little
        raise SettingsError(f"{name}: expected values from 0 to 1, not {numbers.min()} to {numbers.max()}")
    return numbers
