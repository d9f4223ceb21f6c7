"""Drawings of the objects on a canvas of 100 x 100 units with y pointing down; `objects.txt` has their strokes.

Objects are drawn larger than needed; `draw_object` crops, scales and shades the result.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any

from PIL import Image

from limner.synthetic.scenes.pen import CREAM, HUSK, LEAF, NIGHT, STEEL, WOOD, Colour, Pen, Point, arc, ink_of, smooth
from limner.synthetic.scenes.scene import SceneObject

OVERSAMPLING = 3
_COLOURS = {"cream": CREAM, "husk": HUSK, "leaf": LEAF, "night": NIGHT, "steel": STEEL, "wood": WOOD}


def _read_drawings() -> dict[str, list[str]]:
    """Read the strokes of each object, by its name."""
    drawings: dict[str, list[str]] = {}
    with files("limner.synthetic.scenes").joinpath("objects.txt").open(encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith((" ", "#")):
                strokes = drawings[line.strip()] = []
            elif line.startswith(" "):
                strokes.append(line)
    return drawings


DRAWINGS = _read_drawings()
"""Strokes by the name of an object."""


def _draw(pen: Pen, obj: SceneObject) -> None:
    for line in DRAWINGS[obj.name]:
        shape, *words = line.split()
        if shape[0].isdigit():
            remainder, divisor = map(int, shape.split("/"))
            if obj.variant % divisor != remainder:
                continue
            shape, *words = words
        points: list[Point] = []
        options: dict[str, Any] = {}
        for word in words:
            kind, _, values = word.partition(":")
            if kind == "arc":
                x, y, rx, ry, start, stop, *steps = map(float, values.split(","))
                points += arc(x, y, rx, ry, start, stop, *map(int, steps))
            elif kind == "smooth":
                points += smooth(list(map(_point, values.split(";"))))
            elif word[0] in ".0123456789":
                points.append(_point(word))
            elif word in ("plain", "outlined"):
                options["edge"] = word == "outlined"
            elif "=" in word and "|" not in word:
                name, _, value = word.partition("=")
                options[name] = float(value)
            else:
                options["fill"] = _colour(word, pen, obj.colour)
        if shape in ("box", "eye", "oval"):
            getattr(pen, shape)(*chain.from_iterable(points), **options)
        else:
            getattr(pen, shape)(points, **options)


def _point(text: str) -> Point:
    x, y = text.split(",")
    return float(x), float(y)


def _colour(text: str, pen: Pen, name: str) -> Colour:
    usual, _, exception = text.partition("|")
    of, _, other = exception.partition("=")
    chosen = other if of == name else usual
    if chosen.startswith("#"):
        red, green, blue = bytes.fromhex(chosen[1:])
        return red, green, blue
    colour: Colour = _COLOURS.get(chosen) or getattr(pen.ink, chosen)
    return colour


MIRRORED_OBJECTS = frozenset(DRAWINGS) - {"letter:sign"}
"""Objects that may be mirrored; a mirrored letter would be another letter."""


@cache
def _light() -> Image.Image:
    """Overlay of all objects: light from the top left, shade at the bottom right."""
    side = 32
    light = Image.new("RGBA", (side, side))
    for y in range(side):
        for x in range(side):
            height = (x * 0.6 + y) / (1.6 * (side - 1)) * 2 - 1
            tone = (255, 250, 235) if height < 0 else (30, 20, 60)
            light.putpixel((x, y), (*tone, round((70 if height < 0 else 62) * abs(height))))
    return light


def draw_object(obj: SceneObject, side: int) -> Image.Image:
    """Draw one object, RGBA, cropped to its outline, whose longer side is `span` times the side of the image."""
    target = max(4, round(obj.span * side))
    pen = Pen(target * OVERSAMPLING, ink_of(obj.colour))
    _draw(pen, obj)
    image = pen.image.crop(pen.image.getchannel("A").getbbox())
    if obj.flip and obj.name in MIRRORED_OBJECTS:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    width, height = image.width * obj.stretch, float(image.height)
    scale = target / max(width, height)
    small = image.resize((max(1, round(width * scale)), max(1, round(height * scale))), Image.Resampling.LANCZOS)
    shaded = Image.alpha_composite(small, _light().resize(small.size, Image.Resampling.BILINEAR))
    shaded.putalpha(small.getchannel("A"))
    return shaded
