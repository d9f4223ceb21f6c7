"""Scenes of objects with a colour, a size and a position on a background, and their random generation.

A scene is a function of (seed, split, index) only, so that images can be drawn in any order and by any number of
threads. Coordinates are fractions of the side of the image, with the origin at the top left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

UNAMBIGUOUS = (
    "ball", "house", "tree", "car", "boat", "flower", "cup", "fish", "umbrella", "mushroom", "star", "kite",
)  # fmt: skip
SENSES = {
    "bat": ("animal", "club"),
    "bow": ("weapon", "ribbon"),
    "crane": ("bird", "machine"),
    "letter": ("mail", "sign"),
    "nut": ("fruit", "screw"),
    "seal": ("animal", "wax"),
}
"""English words with two meanings, which only the image disambiguates."""
COLOURS = ("red", "yellow", "green", "blue", "purple", "pink", "white", "black")
BACKGROUNDS = ("meadow", "beach", "snow", "street", "room", "moonlight", "mountains", "desert")
MOTIONS = ("left", "right", "fall", "rise", "jump", "swing", "grow", "shrink")
ONE_DIRECTION = frozenset({"left", "right", "fall", "rise"})
FLYING_OBJECTS = frozenset({"star", "kite"})
INVERSE = {"left": "right", "right": "left", "above": "under", "under": "above", "behind": "front"}
POSITIONS = {"left": 0.30, "middle": 0.50, "right": 0.70}


@dataclass(frozen=True, slots=True)
class SceneObject:
    """One object of a scene."""

    word: str
    colour: str
    sense: str | None = None  # of an ambiguous noun
    big: bool = False  # whether sentences call the object big
    x: float = 0.5  # horizontal centre
    y: float = 0.9  # lower edge
    span: float = 0.5  # longer side
    flip: bool = False  # whether the drawing is mirrored
    stretch: float = 1.0  # ratio of the width to the width of the drawing
    variant: int = 0  # selects a variant of the drawing

    @property
    def name(self) -> str:
        """Unambiguous name: 'ball' or 'bat:animal'."""
        return f"{self.word}:{self.sense}" if self.sense else self.word


@dataclass(frozen=True, slots=True)
class Scene:
    """Objects on a background."""

    background: str
    objects: tuple[SceneObject, ...]
    """In the order of mention, the most salient object first; of three objects, the object in the middle."""
    relation: str
    """Position of the first object relative to the others; of a single object, its position in the image."""
    background_seed: int = 0
    motion: str | None = None  # of the object in a clip

    @property
    def label(self) -> str | None:
        """Ambiguous word with its sense, such as 'bat:animal'; None for scenes without one."""
        return next((obj.name for obj in self.objects if obj.sense), None)


def make_scene(seed: int, split: str, index: int, ambiguous: float, max_objects: int = 3) -> Scene:
    """Sample a scene.

    The split and the number of the scene in it are part of the seed. The sense of an ambiguous word is sampled by a
    generator of its own, so that the rest of the scene does not depend on it.
    """
    rng = Random(f"{seed}/{split}/{index}")
    count = min(max_objects, rng.choices((1, 2, 3), (50, 35, 15))[0])
    words = rng.sample(UNAMBIGUOUS, count)
    if rng.random() < ambiguous:
        words[rng.randrange(count)] = rng.choice(tuple(SENSES))
    objects = [
        SceneObject(word, colour, flip=rng.random() < 0.5, stretch=rng.uniform(0.92, 1.08), variant=rng.randrange(60))
        for word, colour in zip(words, rng.sample(COLOURS, count), strict=True)
    ]
    arrange = (_arrange_one, _arrange_pair, _arrange_row)[count - 1]
    relation, placed = arrange(objects, rng)
    scene = Scene(rng.choice(BACKGROUNDS), tuple(placed), relation, background_seed=rng.randrange(2**32))
    return sample_senses(scene, Random(f"{seed}/{split}/{index}/sense"))


def sample_senses(scene: Scene, rng: Random) -> Scene:
    """Sample the sense of each ambiguous word of a scene, with equal probabilities."""
    objects = tuple(
        replace(obj, sense=rng.choice(SENSES[obj.word])) if obj.word in SENSES else obj for obj in scene.objects
    )
    return replace(scene, objects=objects)


def _arrange_one(objects: list[SceneObject], rng: Random) -> tuple[str, list[SceneObject]]:
    (obj,) = objects
    big = rng.random() < 0.5
    span = rng.uniform(0.50, 0.56) if big else rng.uniform(0.29, 0.33)
    position = rng.choice(tuple(POSITIONS))
    x = POSITIONS[position] + rng.uniform(-0.03, 0.03)
    y = rng.uniform(0.50, 0.58) + span / 3 if obj.word in FLYING_OBJECTS else rng.uniform(0.84, 0.92)
    return position, [replace(obj, big=big, span=span, x=x, y=y - 0.06 * (not big))]


def _arrange_pair(objects: list[SceneObject], rng: Random) -> tuple[str, list[SceneObject]]:
    first, second = objects
    flying = first.word in FLYING_OBJECTS, second.word in FLYING_OBJECTS
    relation = rng.choice(("left", "right", "behind"))
    if flying[0] != flying[1]:
        relation = "above" if flying[0] else "under"
    elif flying[0] and relation == "behind":
        relation = "left"
    jitter = rng.uniform(-0.03, 0.03)
    side = rng.choice((-1, 1))
    spots = {  # (x, y, span) of the big object, then of the small one
        "left": ((0.28, 0.86, 0.46), (0.77, 0.84, 0.31)),
        "right": ((0.72, 0.86, 0.46), (0.23, 0.84, 0.31)),
        "behind": ((0.50 - 0.08 * side, 0.76, 0.50), (0.50 + 0.15 * side, 0.95, 0.30)),
        "above": ((0.50, 0.49, 0.42), (0.50, 0.93, 0.31)),
        "under": ((0.50, 0.93, 0.47), (0.50, 0.36, 0.30)),
    }[relation]
    lift = 0.3 if all(flying) else 0.0
    placed = [
        replace(obj, big=span > 0.4, x=x + jitter, y=y + rng.uniform(-0.02, 0.02) - lift, span=span)
        for obj, (x, y, span) in zip(objects, spots, strict=True)
    ]
    return relation, placed


def _arrange_row(objects: list[SceneObject], rng: Random) -> tuple[str, list[SceneObject]]:
    placed = []
    for obj, x in zip(objects, (0.50, 0.18, 0.82), strict=True):
        lift = 0.15 if obj.word in FLYING_OBJECTS else 0.0
        y = rng.uniform(0.78, 0.90) - lift
        placed.append(replace(obj, x=x + rng.uniform(-0.02, 0.02), y=y, span=rng.uniform(0.29, 0.32)))
    return "between", placed
