"""Generated images that are no photographs: diagrams, charts, screenshots, pages of text, blank and noise images.

A captioner of photographs should abstain on them. The same seed gives the same pixels.
"""

from __future__ import annotations

import colorsys
import math
import random
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIDES = (320, 400, 480, 640)
"""Sides of the images in pixels."""
_TEXT = (
    "the value of each column is stored before work begins and then compared with results that were measured earlier "
    "total sum error open save file edit view window table figure page index model time rate left right start end"
)
_WORDS = _TEXT.split()

Draw = Callable[[Image.Image, random.Random], None]


def draw_non_photograph(kind: str, seed: int) -> Image.Image:
    """Draw an image.

    Args:
        kind: key of `KINDS`.
        seed: random seed.
    """
    chance = random.Random(f"{kind} {seed}")
    image = Image.new("RGB", (chance.choice(SIDES), chance.choice(SIDES)), _light(chance))
    KINDS[kind](image, chance)
    return image


def _light(chance: random.Random) -> tuple[int, int, int]:
    """Choose the colour of a page: mostly white, seldom dark."""
    if chance.random() < 0.6:
        return (255, 255, 255)
    value = chance.choice((30, 235, 245))
    return (value, value, min(255, value + chance.randrange(12)))


def _colour(chance: random.Random) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(chance.random(), chance.uniform(0.3, 1), chance.uniform(0.3, 0.95))
    return round(255 * red), round(255 * green), round(255 * blue)


def _ink(image: Image.Image) -> tuple[int, int, int]:
    """Return a colour that can be read on the ground of an image."""
    return (230, 230, 230) if sum(image.getpixel((0, 0))) < 380 else (25, 25, 25)  # type: ignore[arg-type]


def _sentence(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(_WORDS) for _ in range(words))


def _write(pen: ImageDraw.ImageDraw, at: tuple[float, float], text: str, size: int, ink: tuple[int, int, int]) -> None:
    pen.text(at, text, fill=ink, font=ImageFont.load_default(size))


def _blank(image: Image.Image, chance: random.Random) -> None:
    image.paste(_colour(chance) if chance.random() < 0.6 else (chance.choice((0, 128, 255)),) * 3, (0, 0, *image.size))


def _noise(image: Image.Image, chance: random.Random) -> None:
    values = np.random.default_rng(chance.randrange(1 << 30))
    cell, grey = chance.choice((1, 1, 2, 4, 16)), chance.random() < 0.4
    shape = (image.height // cell + 1, image.width // cell + 1, 1 if grey else 3)
    pixels = values.integers(0, 256, shape, np.uint8).repeat(cell, 0).repeat(cell, 1)
    pixels = pixels[: image.height, : image.width].repeat(3 if grey else 1, 2)
    image.paste(Image.fromarray(pixels))


def _gradient(image: Image.Image, chance: random.Random) -> None:
    one, other, turn = np.array(_colour(chance)), np.array(_colour(chance)), chance.uniform(0, 2 * math.pi)
    rows, columns = np.mgrid[-1 : 1 : image.height * 1j, -1 : 1 : image.width * 1j]
    shares = np.hypot(rows, columns) if chance.random() < 0.3 else rows * math.sin(turn) + columns * math.cos(turn)
    shares = np.clip((shares - shares.min()) / np.ptp(shares), 0, 1)[..., None]
    image.paste(Image.fromarray((one * shares + other * (1 - shares)).astype(np.uint8)))


def _text_page(image: Image.Image, chance: random.Random) -> None:
    pen, size, ink = ImageDraw.Draw(image), chance.choice((10, 12, 14, 18)), _ink(image)
    _write(pen, (30, 20), _sentence(chance, 4).title(), 2 * size, ink)
    for y in range(30 + 3 * size, image.height - 20, round(1.5 * size)):
        if chance.random() < 0.9:
            _write(pen, (30, y), _sentence(chance, max(2, image.width // (5 * size))), size, ink)


def _axes(image: Image.Image, pen: ImageDraw.ImageDraw, chance: random.Random) -> tuple[int, int, int, int]:
    left, top, right, bottom = 50, 40, image.width - 25, image.height - 45
    ink = _ink(image)
    pen.line([(left, top), (left, bottom), (right, bottom)], fill=ink, width=2)
    _write(pen, (left + 30, 12), _sentence(chance, 3), 16, ink)
    for step in range(5):
        _write(pen, (8, bottom - step * (bottom - top) / 5 - 8), str(step * 20), 11, ink)
    return left, top, right, bottom


def _bar_chart(image: Image.Image, chance: random.Random) -> None:
    pen = ImageDraw.Draw(image)
    left, top, right, bottom = _axes(image, pen, chance)
    count, fill = chance.randint(3, 10), _colour(chance)
    width = (right - left) / count
    for bar in range(count):
        x, y = left + (bar + 0.15) * width, bottom - chance.uniform(0.05, 1) * (bottom - top)
        pen.rectangle([x, y, x + 0.7 * width, bottom - 1], fill=fill)
        _write(pen, (x, bottom + 6), chance.choice(_WORDS)[:6], 11, _ink(image))


def _line_plot(image: Image.Image, chance: random.Random) -> None:
    pen = ImageDraw.Draw(image)
    left, top, right, bottom = _axes(image, pen, chance)
    for _ in range(chance.randint(1, 4)):
        height, points = chance.random(), []
        for x in np.linspace(left, right, 40):
            height = min(1, max(0, height + chance.uniform(-0.12, 0.12)))
            points.append((float(x), bottom - height * (bottom - top)))
        pen.line(points, fill=_colour(chance), width=chance.choice((1, 2, 3)))


def _pie_chart(image: Image.Image, chance: random.Random) -> None:
    pen, side, start = ImageDraw.Draw(image), min(image.size) - 80, 0.0
    shares = [chance.uniform(0.2, 1) for _ in range(chance.randint(2, 7))]
    for number, share in enumerate(shares):
        end, fill = start + 360 * share / sum(shares), _colour(chance)
        pen.pieslice([30, 50, 30 + side, 50 + side], start, end, fill=fill)
        _write(pen, (image.width - 75, 40 + 20 * number), chance.choice(_WORDS), 12, fill)
        start = end
    _write(pen, (40, 15), _sentence(chance, 3), 18, _ink(image))


def _flow_diagram(image: Image.Image, chance: random.Random) -> None:
    pen, ink = ImageDraw.Draw(image), _ink(image)
    rows, columns = chance.randint(2, 4), chance.randint(1, 3)
    across, down, centre = image.width / columns, image.height / rows, None
    for row in range(rows):
        for column in range(columns):
            x, y = (column + 0.5) * across, (row + 0.5) * down
            if centre is not None:
                pen.line([centre, (x, y)], fill=ink, width=2)
            centre = (x, y)
    for row in range(rows):
        for column in range(columns):
            x, y = (column + 0.5) * across, (row + 0.5) * down
            box = [x - 0.3 * across, y - 0.22 * down, x + 0.3 * across, y + 0.22 * down]
            shape = chance.choice((pen.rectangle, pen.ellipse))
            shape(box, fill=chance.choice(((255, 255, 255), (225, 235, 250), _colour(chance))), outline=ink)
            _write(pen, (box[0] + 12, y - 8), chance.choice(_WORDS), 14, (20, 20, 20))


def _screenshot(image: Image.Image, chance: random.Random) -> None:
    pen, bar, width = ImageDraw.Draw(image), _colour(chance), image.width
    pen.rectangle([0, 0, width, 28], fill=bar)
    for number, word in enumerate(chance.sample(("File", "Edit", "View", "Tools", "Window", "Help"), 4)):
        _write(pen, (10 + 60 * number, 34), word, 13, _ink(image))
    pen.rectangle([0, 58, width // 4, image.height], fill=(210, 214, 220))
    for y in range(70, image.height - 20, 24):
        _write(pen, (10, y), chance.choice(_WORDS), 12, (40, 40, 40))
        if chance.random() < 0.8:
            _write(pen, (width // 4 + 20, y), _sentence(chance, width // 90), 12, _ink(image))
    x, y = width - 110, image.height - 45
    pen.rounded_rectangle([x, y, x + 90, y + 28], 5, fill=bar)
    _write(pen, (x + 30, y + 6), chance.choice(("OK", "Send", "Next")), 13, (255, 255, 255))


def _table(image: Image.Image, chance: random.Random) -> None:
    pen, ink, columns = ImageDraw.Draw(image), _ink(image), chance.randint(2, 5)
    width = (image.width - 40) / columns
    for row, y in enumerate(range(20, image.height - 45, 28)):
        for column in range(columns):
            x = 20 + column * width
            pen.rectangle([x, y, x + width, y + 28], outline=ink, fill=(200, 210, 230) if row == 0 else None)
            text = chance.choice(_WORDS) if row == 0 or column == 0 else f"{chance.uniform(0, 999):.2f}"
            _write(pen, (x + 6, y + 7), text, 12, (20, 20, 20) if row == 0 else ink)


def _checkerboard(image: Image.Image, chance: random.Random) -> None:
    pen, side, fill = ImageDraw.Draw(image), chance.choice((8, 16, 32, 64)), _colour(chance)
    for y in range(0, image.height, side):
        for x in range((y // side % 2) * side, image.width, 2 * side):
            pen.rectangle([x, y, x + side - 1, y + side - 1], fill=fill)


def _code_square(image: Image.Image, chance: random.Random) -> None:
    cells, side = 25, min(image.size) * 3 // 4
    dots = np.random.default_rng(chance.randrange(1 << 30)).random((cells, cells)) < 0.5
    for y, x in ((0, 0), (0, cells - 7), (cells - 7, 0)):  # the marks of three corners
        dots[y : y + 7, x : x + 7] = True
        dots[y + 1 : y + 6, x + 1 : x + 6] = False
        dots[y + 2 : y + 5, x + 2 : x + 5] = True
    square = Image.fromarray(np.where(dots, 0, 255).astype(np.uint8)).resize((side, side), Image.Resampling.NEAREST)
    image.paste((255, 255, 255), (0, 0, *image.size))
    image.paste(square, ((image.width - side) // 2, (image.height - side) // 2))


def _terminal(image: Image.Image, chance: random.Random) -> None:
    image.paste((12, 12, 20), (0, 0, *image.size))
    pen, ink = ImageDraw.Draw(image), chance.choice(((90, 230, 110), (220, 220, 220), (240, 190, 90)))
    for y in range(8, image.height - 16, 17):
        if chance.random() < 0.85:
            _write(pen, (8, y), "$ " * (chance.random() < 0.3) + _sentence(chance, chance.randint(1, 9)), 13, ink)


KINDS: dict[str, Draw] = {
    "blank": _blank,
    "noise": _noise,
    "gradient": _gradient,
    "text page": _text_page,
    "bar chart": _bar_chart,
    "flow diagram": _flow_diagram,
    "screenshot": _screenshot,
    "line plot": _line_plot,
    "pie chart": _pie_chart,
    "table": _table,
    "checkerboard": _checkerboard,
    "code square": _code_square,
    "terminal": _terminal,
}
"""Functions that draw each kind."""
HELD_OUT = ("line plot", "pie chart", "table", "checkerboard", "code square", "terminal")
"""Kinds that no calibration of confidence has seen; tests of it use them besides the others."""
