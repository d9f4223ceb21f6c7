"""Drawings of the objects, one function each, on a canvas of 100 x 100 units with y pointing down.

Objects are drawn larger than needed; `draw_object` crops, scales and shades the result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import cos, pi, sin

from PIL import Image

from limner.synthetic.scenes.pen import CREAM, HUSK, LEAF, NIGHT, STEEL, WOOD, Pen, Point, arc, ink_of, smooth
from limner.synthetic.scenes.scene import SceneObject

OVERSAMPLING = 3


def _draw_ball(pen: Pen, variant: int) -> None:
    pen.oval(50, 50, 45, 45)
    pen.poly(arc(50, 50, 44, 44, 0.08, 0.92) + arc(50, 50, 44, 15, 0.92, 0.08), pen.ink.accent, edge=False)
    pen.poly(arc(50, 50, 44, 44, 0.25, 0.75) + arc(50, 60, 34, 12, 0.8, 0.2), pen.ink.base, edge=False)
    pen.line(arc(50, 50, 44, 44, 0, 2), 1.9)
    pen.oval(34, 26, 9, 6, pen.ink.light, edge=False)


def _draw_house(pen: Pen, variant: int) -> None:
    if variant % 2:
        pen.box(66, 12, 78, 40, pen.ink.dark)
    pen.box(14, 44, 86, 95)
    pen.poly([(50, 6), (96, 46), (4, 46)], pen.ink.dark)
    pen.box(40, 64, 60, 95, WOOD)
    for left in (20, 66):
        pen.box(left, 56, left + 14, 71, (255, 236, 160))
    pen.oval(50, 31, 6, 6, (255, 236, 160))


def _draw_tree(pen: Pen, variant: int) -> None:
    pen.poly([(43, 96), (45, 55), (55, 55), (57, 96)], WOOD)
    if variant % 2:
        for x, y, r in ((27, 48, 21), (73, 48, 21), (50, 28, 24)):
            pen.oval(x, y, r, r)
        pen.oval(50, 44, 24, 22, edge=False)
        pen.oval(41, 24, 9, 7, pen.ink.light, edge=False)
    else:
        for top, half in ((44, 40), (24, 32), (4, 23)):
            pen.poly([(50, top), (50 + half, top + 36), (50 - half, top + 36)])


def _draw_car(pen: Pen, variant: int) -> None:
    pen.blob([(4, 66), (7, 53), (24, 49), (34, 33), (62, 32), (76, 49), (93, 54), (96, 68), (90, 72), (8, 72)])
    pen.poly([(31, 49), (38, 38), (48, 38), (48, 49)], (206, 234, 250))
    pen.poly([(53, 49), (53, 38), (61, 38), (69, 49)], (206, 234, 250))
    for x in (27, 74):
        pen.oval(x, 71, 12, 12, NIGHT)
        pen.oval(x, 71, 5, 5, (214, 218, 226), edge=False)
    pen.oval(91, 58, 3, 4, (255, 240, 170), edge=False)


def _draw_boat(pen: Pen, variant: int) -> None:
    pen.line([(50, 8), (50, 70)], 3.4, WOOD)
    pen.blob([(54, 12), (66, 30), (82, 56), (68, 60), (54, 60)], CREAM)
    pen.poly([(46, 20), (46, 60), (20, 60)], pen.ink.light)
    pen.poly([*smooth([(0, 60), (4, 68), (50, 71), (96, 68), (100, 60)]), (84, 92), (78, 94), (22, 94), (16, 92)])
    pen.poly([(9, 77), (91, 77), (89, 83), (12, 83)], pen.ink.accent, edge=False)


def _draw_flower(pen: Pen, variant: int) -> None:
    pen.curve([(50, 96), (53, 74), (50, 50)], 4.5, LEAF, edge=True)
    pen.blob([(52, 88), (62, 74), (80, 70), (72, 86)], LEAF)
    pen.blob([(51, 92), (40, 80), (22, 78), (32, 92)], LEAF)
    for turn in range(6):
        pen.oval(50 + 21 * cos(turn * pi / 3), 35 + 21 * sin(turn * pi / 3), 15, 15)
    pen.oval(50, 35, 11, 11, (255, 214, 92) if pen.ink is not ink_of("yellow") else WOOD)


def _draw_cup(pen: Pen, variant: int) -> None:
    pen.line(arc(76, 56, 15, 15, -0.5, 0.5), 6, pen.ink.base, edge=True)
    pen.poly([(14, 32), (78, 32), (73, 80), (62, 90), (30, 90), (19, 80)])
    pen.oval(46, 32, 32, 9, pen.ink.light)
    pen.oval(46, 34, 25, 5.5, (120, 74, 46), edge=False)
    for x in (36, 54):
        pen.curve([(x, 20), (x - 4, 14), (x + 3, 9), (x, 3)], 2.4, (236, 236, 240))


def _draw_fish(pen: Pen, variant: int) -> None:
    pen.blob([(66, 50), (80, 34), (96, 26), (90, 50), (96, 74), (80, 66)], pen.ink.dark)
    pen.blob([(34, 36), (44, 16), (62, 20), (62, 36)], pen.ink.dark)
    pen.blob([(4, 50), (22, 32), (48, 28), (74, 46), (74, 54), (48, 72), (22, 68)])
    pen.curve([(28, 34), (34, 50), (28, 66)], 1.8)
    for x, y in ((46, 42), (46, 58), (58, 50)):
        pen.line(arc(x, y, 6, 6, -0.4, 0.4), 1.6, pen.ink.dark)
    pen.eye(17, 45, 4.6)


def _draw_umbrella(pen: Pen, variant: int) -> None:
    pen.curve([(50, 10), (50, 70), (50, 86), (58, 94), (66, 88), (65, 82)], 3.6, WOOD, edge=True)
    scallops = [p for x in (80, 50, 20) for p in arc(x, 54, 16, 8, 0, -1, steps=8)]
    pen.poly([*arc(50, 54, 46, 42, -1, 0, steps=30), *scallops])
    for lean in (-16, 16):
        pen.curve([(50, 12), (50 + lean * 0.75, 28), (50 + lean, 48)], 1.7)
    pen.line([(50, 12), (50, 6)], 3)


def _draw_mushroom(pen: Pen, variant: int) -> None:
    pen.blob([(40, 50), (60, 50), (63, 78), (68, 92), (50, 95), (32, 92), (37, 78)], CREAM)
    pen.poly([*arc(50, 54, 45, 44, -1, 0, steps=30), *arc(50, 54, 45, 10, 0, 1)])
    for x, y, r in ((32, 36, 8), (56, 26, 9), (74, 44, 7)):
        pen.oval(x, y, r, r * 0.9, pen.ink.accent, edge=False)


def _draw_star(pen: Pen, variant: int) -> None:
    tips = [
        (50 + r * sin(turn * pi / 5), 52 - r * cos(turn * pi / 5))
        for turn, r in enumerate((47, 21) * 5)
    ]  # fmt: skip
    pen.poly(tips)
    pen.line([(50, 24), (44, 42)], 3, pen.ink.light)
    for x in (42, 58):
        pen.oval(x, 50, 2.6, 3.4, NIGHT if pen.ink is not ink_of("black") else CREAM, edge=False)


def _draw_kite(pen: Pen, variant: int) -> None:
    pen.curve([(50, 70), (58, 79), (42, 86), (54, 97)], 2)
    for x, y in ((55, 80), (46, 90)):
        for end in (-11, 11):
            pen.poly([(x + end, y - 5), (x, y), (x + end, y + 5)], pen.ink.light)
    for tip, side, fill in ((3, 14, None), (3, 86, pen.ink.light), (72, 14, pen.ink.light), (72, 86, None)):
        pen.poly([(50, tip), (side, 32), (50, 32)], fill)


def _draw_bat_animal(pen: Pen, variant: int) -> None:
    for side in (-1, 1):
        wing = [(8, 44), (20, 24), (36, 22), (48, 34), (44, 52), (38, 58), (32, 52), (24, 62), (18, 54), (8, 64)]
        pen.poly([(50 + side * x, y) for x, y in wing])
        for tip in ((44, 50), (24, 60)):
            pen.line([(50 + side * 12, 44), (50 + side * tip[0], tip[1])], 1.5)
        pen.poly([(50 + side * 2, 28), (50 + side * 11, 14), (50 + side * 13, 34)], pen.ink.dark)
    pen.oval(50, 56, 12, 20, pen.ink.dark)
    pen.oval(50, 36, 13, 12, pen.ink.dark)
    for x in (45, 55):
        pen.eye(x, 35, 3.6)
    pen.poly([(46, 42), (48, 46), (49, 42)], (255, 255, 255), edge=False)
    pen.poly([(51, 42), (52, 46), (54, 42)], (255, 255, 255), edge=False)


def _draw_bat_club(pen: Pen, variant: int) -> None:
    pen.blob([(12, 95), (24, 74), (50, 44), (74, 9), (86, 5), (95, 13), (91, 26), (58, 52), (28, 80), (17, 97)])
    for x, y in ((23, 82), (28, 76), (33, 70)):
        pen.line([(x - 4.5, y - 3), (x + 3.5, y + 4)], 2.8)
    pen.oval(13, 92, 7, 7, pen.ink.dark)
    pen.line([(74, 22), (84, 13)], 3, pen.ink.light)


def _draw_bow_weapon(pen: Pen, variant: int) -> None:
    pen.line([(34, 5), (34, 95)], 1.5, (240, 236, 224))
    pen.curve([(32, 5), (56, 16), (71, 50), (56, 84), (32, 95)], 6.5, pen.ink.base, edge=True)
    pen.line([(70, 42), (70, 58)], 8, pen.ink.dark, edge=True)
    pen.line([(10, 50), (86, 50)], 3, WOOD, edge=True)
    pen.poly([(98, 50), (84, 42), (84, 58)], STEEL)
    pen.poly([(2, 42), (16, 42), (22, 50), (16, 58), (2, 58), (8, 50)], pen.ink.base)


def _draw_bow_ribbon(pen: Pen, variant: int) -> None:
    for side in (-1, 1):
        tail = [(2, 52), (12, 50), (30, 88), (18, 84), (14, 94)]
        pen.poly([(50 + side * x, y) for x, y in tail], pen.ink.dark)
        loop = [(6, 42), (22, 22), (44, 18), (47, 42), (44, 64), (22, 58)]
        pen.blob([(50 + side * x, y) for x, y in loop])
        pen.curve([(50 + side * x, y) for x, y in ((10, 42), (24, 36), (34, 38))], 2)
    pen.box(40, 30, 60, 54, radius=7)


def _draw_crane_bird(pen: Pen, variant: int) -> None:
    for x in (44, 52):
        pen.line([(x, 60), (x + 1, 94), (x + 8, 95)], 2.2, NIGHT)
    pen.curve([(60, 50), (74, 40), (68, 24), (76, 13)], 7, pen.ink.base, edge=True)
    pen.blob([(66, 46), (62, 60), (44, 66), (20, 60), (4, 70), (10, 52), (34, 40), (56, 38)])
    pen.blob([(52, 46), (44, 58), (24, 60), (6, 70), (22, 50)], pen.ink.dark)
    pen.poly([(80, 9), (99, 15), (80, 18)], (246, 166, 60))
    pen.oval(77, 13, 7, 7)
    pen.eye(78, 12, 2.6)


def _draw_crane_machine(pen: Pen, variant: int) -> None:
    pen.box(28, 90, 58, 97, STEEL)
    pen.line([(43, 4), (10, 22)], 1.8)
    pen.line([(43, 4), (90, 22)], 1.8)
    pen.poly([(37, 91), (37, 20), (43, 4), (49, 20), (49, 91)])
    for y in range(30, 90, 12):
        pen.line([(38, y), (48, y + 11)], 2, pen.ink.light)
    pen.box(4, 20, 97, 29)
    for x in range(10, 94, 12):
        pen.line([(x, 27), (x + 6, 22)], 1.6, pen.ink.light)
    pen.box(5, 27, 19, 42, STEEL)
    pen.box(48, 29, 62, 44, (206, 234, 250))
    pen.line([(86, 28), (86, 58)], 1.6)
    pen.box(76, 58, 96, 73, WOOD)


def _draw_letter_mail(pen: Pen, variant: int) -> None:
    pen.box(4, 20, 96, 82, radius=4)
    pen.line([(5, 80), (38, 50)], 2)
    pen.line([(95, 80), (62, 50)], 2)
    pen.poly([(5, 21), (95, 21), (54, 57), (46, 57)], pen.ink.light)
    heart = [(50, 60), (40, 50), (41, 42), (47, 42), (50, 46), (53, 42), (59, 42), (60, 50)]
    pen.poly(heart, (226, 52, 48) if pen.ink is not ink_of("red") else CREAM)


def _draw_letter_sign(pen: Pen, variant: int) -> None:
    strokes: tuple[tuple[Point, ...], ...] = (((20, 88), (50, 12), (80, 88)), ((33, 62), (67, 62)))
    if variant % 3 == 1:
        strokes = (((24, 12), (24, 88)), ((76, 12), (26, 54)), ((42, 44), (78, 88)))
    elif variant % 3 == 2:
        strokes = (((18, 88), (18, 12), (50, 56), (82, 12), (82, 88)),)
    for dx, dy, fill, edge in ((4, 3, pen.ink.dark, True), (-1, -1, pen.ink.edge, True), (-1, -1, None, False)):
        for stroke in strokes:
            points = [(x + dx, y + dy) for x, y in stroke]
            pen.line(points, 15, fill or pen.ink.base, edge=edge)


def _draw_nut_fruit(pen: Pen, variant: int) -> None:
    pen.blob([(50, 4), (60, 13), (80, 26), (89, 50), (76, 80), (24, 80), (11, 50), (20, 26), (40, 13)])
    for bend in (-20, 20):
        pen.curve([(50 + bend * 0.5, 22), (50 + bend, 38), (50 + bend * 1.2, 56)], 1.8, pen.ink.dark)
    pen.oval(30, 32, 7, 9, pen.ink.light, edge=False)
    husk = [(4, 58), (22, 72), (28, 60), (40, 75), (50, 62), (60, 75), (72, 60), (78, 72), (96, 58)]
    pen.poly([*husk, (87, 80), (66, 96), (34, 96), (13, 80)], HUSK)


def _draw_nut_screw(pen: Pen, variant: int) -> None:
    def hexagon(dy: float) -> list[Point]:
        return [(50 + 46 * cos(turn * pi / 3), 46 + dy + 36 * sin(turn * pi / 3)) for turn in range(6)]

    pen.poly([hexagon(0)[3], *(hexagon(14)[turn] for turn in (3, 2, 1, 0)), hexagon(0)[0]], pen.ink.dark)
    for x in (27, 73):
        pen.line([(x, 78), (x, 90)], 2)
    pen.poly(hexagon(0))
    pen.oval(50, 46, 32, 26, pen.ink.light)
    pen.oval(50, 46, 21, 17, NIGHT if pen.ink is not ink_of("black") else STEEL)
    pen.line(arc(50, 50, 17, 13, 0.1, 0.9), 1.8, STEEL)


def _draw_seal_animal(pen: Pen, variant: int) -> None:
    pen.blob([(10, 84), (2, 66), (10, 62), (16, 76), (24, 66), (28, 80)], pen.ink.dark)
    pen.blob([(12, 84), (30, 66), (50, 52), (58, 24), (74, 12), (88, 22), (88, 42), (84, 66), (76, 88), (40, 92)])
    pen.blob([(62, 68), (66, 92), (52, 97), (46, 93), (56, 84)], pen.ink.dark)
    pen.oval(86, 35, 9, 7, pen.ink.light)
    pen.oval(92, 32, 3.4, 2.8, NIGHT, edge=False)
    pen.eye(76, 27, 4)
    for dy in (-2, 3):
        pen.line([(85, 38 + dy / 2), (70, 40 + 2 * dy)], 1.2)


def _draw_seal_wax(pen: Pen, variant: int) -> None:
    for side in (-1, 1):
        pen.poly([(50 + side * x, y) for x, y in ((4, 56), (24, 52), (34, 94), (22, 88), (14, 97))], CREAM)
    rim = [
        (50 + r * cos(turn * pi / 9), 42 + r * sin(turn * pi / 9))
        for turn, r in enumerate((41, 36) * 9)
    ]  # fmt: skip
    pen.blob(rim)
    pen.oval(50, 42, 27, 27, pen.ink.dark)
    crown = [(34, 54), (32, 32), (42, 42), (50, 26), (58, 42), (68, 32), (66, 54)]
    pen.poly(crown, pen.ink.light)


DRAW_OBJECT: dict[str, Callable[[Pen, int], None]] = {
    "ball": _draw_ball,
    "house": _draw_house,
    "tree": _draw_tree,
    "car": _draw_car,
    "boat": _draw_boat,
    "flower": _draw_flower,
    "cup": _draw_cup,
    "fish": _draw_fish,
    "umbrella": _draw_umbrella,
    "mushroom": _draw_mushroom,
    "star": _draw_star,
    "kite": _draw_kite,
    "bat:animal": _draw_bat_animal,
    "bat:club": _draw_bat_club,
    "bow:weapon": _draw_bow_weapon,
    "bow:ribbon": _draw_bow_ribbon,
    "crane:bird": _draw_crane_bird,
    "crane:machine": _draw_crane_machine,
    "letter:mail": _draw_letter_mail,
    "letter:sign": _draw_letter_sign,
    "nut:fruit": _draw_nut_fruit,
    "nut:screw": _draw_nut_screw,
    "seal:animal": _draw_seal_animal,
    "seal:wax": _draw_seal_wax,
}
MIRRORED_OBJECTS = frozenset(DRAW_OBJECT) - {"letter:sign"}
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
    """Draw one object, cropped to its outline.

    Args:
        obj: object to draw.
        side: side of the whole image in pixels; the longer side of the object becomes `span` times this.

    Returns:
        RGBA image with a transparent background.
    """
    target = max(4, round(obj.span * side))
    pen = Pen(target * OVERSAMPLING, ink_of(obj.colour))
    DRAW_OBJECT[obj.name](pen, obj.variant)
    image = pen.image.crop(pen.image.getchannel("A").getbbox())
    if obj.flip and obj.name in MIRRORED_OBJECTS:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    width, height = image.width * obj.stretch, float(image.height)
    scale = target / max(width, height)
    small = image.resize((max(1, round(width * scale)), max(1, round(height * scale))), Image.Resampling.LANCZOS)
    shaded = Image.alpha_composite(small, _light().resize(small.size, Image.Resampling.BILINEAR))
    shaded.putalpha(small.getchannel("A"))
    return shaded
