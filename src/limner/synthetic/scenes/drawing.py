"""Drawing of scenes: background, soft shadows, objects from back to front, and the box of each object."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import pi, sin
from random import Random
from typing import NamedTuple

from PIL import Image, ImageDraw

from limner.synthetic.scenes.objects import draw_object
from limner.synthetic.scenes.pen import Colour, Point, mix
from limner.synthetic.scenes.scene import FLYING_OBJECTS, Scene, SceneObject

OVERSAMPLING = 2
WHITE: Colour = (255, 255, 255)
Box = tuple[float, float, float, float]


@cache
def _disc(strength: int) -> Image.Image:
    """Soft round mask, which is scaled to shadows and halos."""
    side = 33
    disc = Image.new("L", (side, side))
    for y in range(side):
        for x in range(side):
            distance = ((2 * x / (side - 1) - 1) ** 2 + (2 * y / (side - 1) - 1) ** 2) ** 0.5
            disc.putpixel((x, y), round(strength * max(0.0, 1 - distance) ** 0.7))
    return disc


class BackgroundCanvas:
    """Canvas of a background at twice its final size; coordinates are fractions of its side."""

    def __init__(self, side: int, rng: Random) -> None:
        self.side = side * OVERSAMPLING
        self.rng = rng
        self.image = Image.new("RGB", (self.side, self.side))
        self._draw = ImageDraw.Draw(self.image)

    def gradient(self, top: float, bottom: float, first: Colour, last: Colour) -> None:
        """Draw a band from `top` to `bottom` with a linear transition between two colours."""
        column = Image.new("RGB", (1, 2))
        column.putpixel((0, 0), first)
        column.putpixel((0, 1), last)
        start, stop = round(top * self.side), round(bottom * self.side)
        # Scaling the middle half of a column of two pixels interpolates between its colours.
        band = column.resize((self.side, stop - start), Image.Resampling.BILINEAR, box=(0, 0.5, 1, 1.5))
        self.image.paste(band, (0, start))

    def poly(self, points: list[Point], fill: Colour) -> None:
        """Draw a filled polygon."""
        self._draw.polygon([(x * self.side, y * self.side) for x, y in points], fill=fill)

    def oval(self, x: float, y: float, rx: float, ry: float, fill: Colour) -> None:
        """Draw an ellipse with centre (x, y)."""
        s = self.side
        self._draw.ellipse(((x - rx) * s, (y - ry) * s, (x + rx) * s, (y + ry) * s), fill=fill)

    def box(self, left: float, top: float, right: float, bottom: float, fill: Colour) -> None:
        """Draw a rectangle."""
        s = self.side
        self._draw.rectangle((left * s, top * s, right * s, bottom * s), fill=fill)

    def hills(self, height: float, swing: float, fill: Colour, *, waves: float = 1.3) -> None:
        """Fill the area below a wavy line at `height`."""
        phase = self.rng.uniform(0, 2 * pi)
        line = [(x / 40, height + swing * sin(phase + x / 40 * waves * 2 * pi)) for x in range(41)]
        self.poly([*line, (1, 1), (0, 1)], fill)

    def clouds(self, count: int, fill: Colour) -> None:
        """Draw clouds at random positions."""
        for _ in range(count):
            x, y, size = self.rng.uniform(0, 1), self.rng.uniform(0.06, 0.26), self.rng.uniform(0.05, 0.09)
            for dx, dy, r in ((-1.2, 0.25, 0.7), (0, -0.1, 1.0), (1.1, 0.2, 0.8), (0.2, 0.45, 0.9)):
                self.oval(x + dx * size, y + dy * size, r * size * 1.2, r * size * 0.6, fill)

    def dots(self, count: int, top: float, bottom: float, size: float, fills: tuple[Colour, ...]) -> None:
        """Draw dots at random positions between two heights."""
        for _ in range(count):
            r = size * self.rng.uniform(0.5, 1)
            self.oval(self.rng.random(), self.rng.uniform(top, bottom), r, r, self.rng.choice(fills))

    def glow(self, x: float, y: float, radius: float, fill: Colour) -> None:
        """Draw a disc of light with a halo."""
        halo = round(radius * 5 * self.side)
        corner = round(x * self.side - halo / 2), round(y * self.side - halo / 2)
        self.image.paste(fill, corner, _disc(150).resize((halo, halo), Image.Resampling.BICUBIC))
        self.oval(x, y, radius, radius, fill)


def _draw_meadow(canvas: BackgroundCanvas) -> None:
    canvas.gradient(0, 0.6, (150, 206, 240), (238, 246, 232))
    canvas.clouds(2, (250, 252, 252))
    canvas.hills(0.50, 0.03, (182, 218, 146))
    canvas.hills(0.58, 0.025, (164, 208, 122), waves=0.8)
    canvas.gradient(0.66, 1, (162, 207, 120), (134, 186, 92))
    canvas.dots(26, 0.66, 0.98, 0.010, ((250, 250, 240), (252, 232, 150), (240, 190, 210)))


def _draw_beach(canvas: BackgroundCanvas) -> None:
    canvas.gradient(0, 0.42, (128, 200, 240), (226, 244, 248))
    canvas.clouds(2, WHITE)
    canvas.gradient(0.42, 0.60, (58, 158, 196), (136, 212, 218))
    for _ in range(7):
        x, y = canvas.rng.random(), canvas.rng.uniform(0.45, 0.56)
        canvas.oval(x, y, 0.05, 0.003, (190, 230, 234))
    canvas.hills(0.585, 0.012, (244, 250, 248), waves=1.6)
    canvas.hills(0.605, 0.012, (242, 222, 176), waves=1.6)
    canvas.gradient(0.64, 1, (242, 222, 176), (226, 196, 140))
    canvas.dots(24, 0.66, 0.98, 0.006, ((216, 186, 134), (250, 238, 208)))


def _draw_snow(canvas: BackgroundCanvas) -> None:
    canvas.gradient(0, 0.6, (150, 174, 208), (214, 226, 242))
    canvas.hills(0.50, 0.04, (200, 214, 234))
    canvas.hills(0.60, 0.025, (217, 228, 243), waves=0.9)
    canvas.gradient(0.66, 1, (217, 228, 243), (186, 204, 232))
    canvas.dots(46, 0, 0.98, 0.009, (WHITE, (246, 250, 255)))


def _draw_street(canvas: BackgroundCanvas) -> None:
    canvas.gradient(0, 0.6, (206, 216, 226), (240, 234, 226))
    left = -0.05
    while left < 1:
        width, top = canvas.rng.uniform(0.14, 0.22), canvas.rng.uniform(0.14, 0.34)
        wall = canvas.rng.choice(((204, 196, 190), (190, 194, 202), (212, 204, 188), (198, 188, 194)))
        canvas.box(left, top, left + width - 0.005, 0.6, wall)
        for row in range(int((0.50 - top) / 0.085)):
            for column in (0.2, 0.62):
                x, y = left + width * column, top + 0.03 + row * 0.085
                canvas.box(x, y, x + width * 0.2, y + 0.045, mix(wall, (250, 240, 200), 0.6))
        left += width
    canvas.box(0, 0.56, 1, 0.64, (214, 210, 204))
    canvas.box(0, 0.635, 1, 0.65, (176, 174, 174))
    canvas.gradient(0.65, 1, (150, 152, 160), (128, 130, 140))
    shift = canvas.rng.uniform(-0.2, 0)
    for number in range(5):
        x = shift + number * 0.28
        canvas.poly([(x, 0.83), (x + 0.14, 0.83), (x + 0.13, 0.86), (x - 0.02, 0.86)], (236, 234, 226))


def _draw_room(canvas: BackgroundCanvas) -> None:
    wall = canvas.rng.choice(((236, 216, 196), (232, 208, 204), (226, 220, 196)))
    canvas.gradient(0, 0.64, mix(wall, WHITE, 0.25), wall)
    for number in range(0, 12, 2):
        canvas.box(number / 12, 0, (number + 1) / 12, 0.62, mix(wall, WHITE, 0.12))
    x = canvas.rng.uniform(0.06, 0.62)
    canvas.box(x, 0.08, x + 0.30, 0.40, (250, 246, 238))
    canvas.box(x + 0.02, 0.10, x + 0.28, 0.38, (186, 220, 238))
    canvas.oval(x + 0.10, 0.24, 0.05, 0.02, WHITE)
    canvas.box(x + 0.14, 0.08, x + 0.16, 0.40, (250, 246, 238))
    canvas.box(x, 0.23, x + 0.30, 0.245, (250, 246, 238))
    canvas.box(0, 0.60, 1, 0.64, (246, 238, 228))
    canvas.gradient(0.64, 1, (196, 150, 108), (170, 122, 82))
    for number in range(-4, 12):
        start, stop = 0.5 + (number - 3.5) * 0.12, 0.5 + (number - 3.5) * 0.24
        canvas.poly([(start, 0.64), (start + 0.004, 0.64), (stop + 0.008, 1), (stop, 1)], (158, 112, 76))


def _draw_moonlight(canvas: BackgroundCanvas) -> None:
    canvas.gradient(0, 0.6, (58, 64, 122), (122, 116, 172))
    canvas.dots(34, 0.02, 0.48, 0.006, ((236, 236, 250), (250, 240, 200)))
    canvas.glow(canvas.rng.uniform(0.12, 0.88), 0.16, 0.075, (252, 244, 212))
    canvas.hills(0.52, 0.04, (96, 98, 152))
    canvas.hills(0.60, 0.025, (84, 96, 140), waves=0.9)
    canvas.gradient(0.66, 1, (84, 97, 141), (64, 76, 118))


def _draw_mountains(canvas: BackgroundCanvas) -> None:
    canvas.gradient(0, 0.6, (176, 208, 232), (248, 232, 222))
    for x, peak, half in ((0.18, 0.20, 0.34), (0.82, 0.16, 0.38), (0.50, 0.28, 0.30)):
        x += canvas.rng.uniform(-0.08, 0.08)
        peak += canvas.rng.uniform(-0.03, 0.03)
        slope = (0.64 - peak) / half
        canvas.poly([(x, peak), (x + half, 0.64), (x - half, 0.64)], (142, 150, 172))
        canvas.poly([(x, peak), (x + half, 0.64), (x + 0.08, 0.64)], (124, 132, 158))
        cap = [(x, peak), (x + 0.085, peak + 0.085 * slope), (x + 0.035, peak + 0.06 * slope)]
        cap += [(x, peak + 0.1 * slope), (x - 0.04, peak + 0.055 * slope), (x - 0.085, peak + 0.085 * slope)]
        canvas.poly(cap, (248, 250, 252))
    canvas.hills(0.60, 0.02, (170, 170, 128), waves=1.1)
    canvas.gradient(0.66, 1, (170, 170, 128), (142, 140, 98))
    canvas.dots(16, 0.68, 0.98, 0.014, ((158, 156, 138), (182, 178, 160)))


def _draw_desert(canvas: BackgroundCanvas) -> None:
    canvas.gradient(0, 0.6, (250, 196, 150), (254, 232, 190))
    canvas.glow(canvas.rng.uniform(0.15, 0.85), 0.30, 0.08, (255, 246, 214))
    canvas.hills(0.50, 0.045, (238, 178, 118))
    canvas.hills(0.59, 0.03, (230, 164, 100), waves=0.9)
    canvas.gradient(0.66, 1, (230, 163, 99), (208, 138, 78))
    for height in (0.74, 0.84, 0.93):
        phase = canvas.rng.uniform(0, 6)
        line = [(x / 30, height + 0.012 * sin(phase + x / 3)) for x in range(31)]
        canvas.poly([*line, *((x, y + 0.006) for x, y in reversed(line))], (216, 148, 88))


DRAW_BACKGROUND: dict[str, Callable[[BackgroundCanvas], None]] = {
    "meadow": _draw_meadow, "beach": _draw_beach, "snow": _draw_snow, "street": _draw_street, "room": _draw_room,
    "moonlight": _draw_moonlight, "mountains": _draw_mountains, "desert": _draw_desert,
}  # fmt: skip


def draw_background(name: str, background_seed: int, side: int) -> Image.Image:
    """Draw a background; `background_seed` is the random seed of its clouds, hills and windows."""
    canvas = BackgroundCanvas(side, Random(background_seed))
    DRAW_BACKGROUND[name](canvas)
    return canvas.image.resize((side, side), Image.Resampling.BOX)


class PlacedObject(NamedTuple):
    """Drawing of an object, its top left corner in the image and the height of its shadow, in pixels."""

    image: Image.Image
    left: int
    top: int
    shadow_y: int | None

    @property
    def box(self) -> Box:
        """Box of the object in the image."""
        return self.left, self.top, self.image.width, self.image.height


def place_object(obj: SceneObject, image: Image.Image, side: int) -> PlacedObject:
    """Place the drawing of an object inside the image; flying objects have no shadow."""
    left = max(0, min(round(obj.x * side - image.width / 2), side - image.width))
    top = max(0, min(round(obj.y * side - image.height), side - image.height))
    return PlacedObject(image, left, top, None if obj.word in FLYING_OBJECTS else top + image.height)


def compose(background: Image.Image, objects: list[PlacedObject]) -> Image.Image:
    """Draw objects with soft shadows on a background, from the farthest (highest) to the nearest."""
    image = background.copy()
    for drawing, left, top, shadow_y in sorted(objects, key=lambda placed: placed.top + placed.image.height):
        if shadow_y is not None:
            width, height = max(4, round(drawing.width * 1.1)), max(3, round(drawing.width * 0.26))
            corner = left + (drawing.width - width) // 2, shadow_y - round(height * 0.62)
            image.paste((44, 36, 70), corner, _disc(100).resize((width, height), Image.Resampling.BILINEAR))
        image.paste(drawing, (left, top), drawing)
    return image


def draw_scene(scene: Scene, side: int) -> tuple[Image.Image, list[Box]]:
    """Draw a scene, with the boxes (left, top, width, height) of its objects in order, covered parts included."""
    objects = [place_object(obj, draw_object(obj, side), side) for obj in scene.objects]
    image = compose(draw_background(scene.background, scene.background_seed, side), objects)
    return image, [obj.box for obj in objects]
