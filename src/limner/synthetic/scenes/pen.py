"""Drawing of filled and outlined shapes on a square canvas, and smooth curves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import cos, pi, sin
from typing import NamedTuple

from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
Point = tuple[float, float]

PALETTE: dict[str, Colour] = {
    "red": (226, 52, 48),
    "yellow": (252, 206, 44),
    "green": (32, 158, 84),
    "blue": (44, 108, 220),
    "purple": (136, 66, 190),
    "pink": (250, 138, 190),
    "white": (252, 251, 246),
    "black": (50, 48, 58),
}
CREAM: Colour = (255, 246, 226)
WOOD: Colour = (164, 108, 66)
LEAF: Colour = (92, 152, 70)
HUSK: Colour = (150, 150, 82)
STEEL: Colour = (150, 158, 172)
NIGHT: Colour = (38, 34, 52)
SMOOTH_STEPS = 7
"""Points of a smooth curve between two given points."""


def mix(first: Colour, second: Colour, share: float) -> Colour:
    """Blend two colours; `share` is the weight of the second."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


class Ink(NamedTuple):
    """Tones of the drawing of an object in one colour."""

    base: Colour
    light: Colour
    dark: Colour
    edge: Colour
    accent: Colour  # for details, contrasts with the base


@cache
def ink_of(name: str) -> Ink:
    """Tones of a colour of `PALETTE`."""
    base = PALETTE[name]
    # A cool grey, because darker shadows of white objects resemble dirt.
    shadow = (70, 84, 128) if name == "white" else NIGHT
    accent = (188, 198, 220) if name == "white" else CREAM
    return Ink(base, mix(base, (255, 255, 255), 0.45), mix(base, shadow, 0.3), mix(base, shadow, 0.66), accent)


class Pen:
    """Canvas for filled and outlined shapes; coordinates are hundredths of its side."""

    def __init__(self, pixels: int, ink: Ink) -> None:
        self.ink = ink
        self.unit = pixels / 100
        self.image = Image.new("RGBA", (pixels, pixels), (*ink.edge, 0))
        self._draw = ImageDraw.Draw(self.image)
        self._edge = max(2, round(1.9 * self.unit))

    def poly(self, points: Sequence[Point], fill: Colour | None = None, *, edge: bool = True) -> None:
        """Draw a filled polygon with rounded corners."""
        scaled = [(x * self.unit, y * self.unit) for x, y in points]
        self._draw.polygon(scaled, fill=fill or self.ink.base)
        if edge:
            # One point more than a closed line, so that its last corner is rounded as well.
            self._draw.line(scaled + scaled[:2], fill=self.ink.edge, width=self._edge, joint="curve")

    def blob(self, points: Sequence[Point], fill: Colour | None = None) -> None:
        """Draw a filled smooth curve through the points."""
        self.poly(smooth([*points, *points[:3]])[:-1], fill)

    def oval(self, x: float, y: float, rx: float, ry: float, fill: Colour | None = None, *, edge: bool = True) -> None:
        """Draw an ellipse with centre (x, y)."""
        u = self.unit
        self._draw.ellipse(
            ((x - rx) * u, (y - ry) * u, (x + rx) * u, (y + ry) * u),
            fill=fill or self.ink.base,
            outline=self.ink.edge if edge else None,
            width=self._edge if edge else 0,
        )

    def box(
        self, left: float, top: float, right: float, bottom: float, fill: Colour | None = None, *, radius: float = 2
    ) -> None:
        """Draw a rectangle with rounded corners."""
        u = self.unit
        self._draw.rounded_rectangle(
            (left * u, top * u, right * u, bottom * u),
            radius * u,
            fill=fill or self.ink.base,
            outline=self.ink.edge,
            width=self._edge,
        )

    def line(self, points: Sequence[Point], width: float, fill: Colour | None = None, *, edge: bool = False) -> None:
        """Draw a line with round ends through the points; `edge` adds an outline."""
        scaled = [(x * self.unit, y * self.unit) for x, y in points]
        passes = [(self.ink.edge, width * self.unit + 2 * self._edge)] if edge else []
        for colour, thickness in [*passes, (fill or self.ink.edge, width * self.unit)]:
            self._draw.line(scaled, fill=colour, width=round(thickness), joint="curve")
            for x, y in (scaled[0], scaled[-1]):
                r = thickness / 2
                self._draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)

    def curve(self, points: Sequence[Point], width: float, fill: Colour | None = None, *, edge: bool = False) -> None:
        """Draw a smooth line through the points."""
        first, last = points[0], points[-1]
        self.line(smooth([first, *points, last]), width, fill, edge=edge)

    def eye(self, x: float, y: float, radius: float = 3.2) -> None:
        """Draw the eye of an animal."""
        self.oval(x, y, radius, radius, (255, 255, 255), edge=False)
        self.oval(x + radius * 0.15, y + radius * 0.1, radius * 0.62, radius * 0.62, NIGHT, edge=False)


def smooth(points: Sequence[Point]) -> list[Point]:
    """Catmull-Rom spline through all points except the first and the last."""
    curve = []
    for (ax, ay), (bx, by), (cx, cy), (dx, dy) in zip(points, points[1:], points[2:], points[3:], strict=False):
        for step in range(SMOOTH_STEPS):
            t = step / SMOOTH_STEPS
            curve.append((_spline(ax, bx, cx, dx, t), _spline(ay, by, cy, dy, t)))
    return [*curve, points[-2]]


def _spline(a: float, b: float, c: float, d: float, t: float) -> float:
    return 0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)


def arc(x: float, y: float, rx: float, ry: float, start: float, stop: float, steps: int = 24) -> list[Point]:
    """Points on an arc of an ellipse; angles in units of pi, clockwise from the right."""
    angles = (pi * (start + (stop - start) * step / steps) for step in range(steps + 1))
    return [(x + rx * cos(angle), y + ry * sin(angle)) for angle in angles]
