"""What a scene is: things with a colour, a size and a place on a ground, and how one is thrown together.

A scene is a pure function of (seed, split, index): pictures can be drawn in any order and by any number of
workers. Everything is measured in fractions of the picture's side, with the origin at the top left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

ORDINARY = (
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
"""English words with two meanings: only the picture tells which one is meant."""
COLOURS = ("red", "yellow", "green", "blue", "purple", "pink", "white", "black")
GROUNDS = ("meadow", "beach", "snow", "street", "room", "moonlight", "mountains", "desert")
MOTIONS = ("left", "right", "fall", "rise", "jump")
FLYING = frozenset({"star", "kite"})
INVERSE = {"left": "right", "right": "left", "above": "under", "under": "above", "behind": "front"}
PLACES = {"left": 0.30, "middle": 0.50, "right": 0.70}


@dataclass(frozen=True, slots=True)
class Thing:
    """One object of a scene.

    `x` is its centre, `y` the line it stands on, `span` its longer side.
    """

    word: str
    colour: str
    sense: str | None = None
    big: bool = False
    x: float = 0.5
    y: float = 0.9
    span: float = 0.5
    flip: bool = False
    stretch: float = 1.0
    variant: int = 0

    @property
    def name(self) -> str:
        """What it is, beyond doubt: 'ball' or 'bat:animal'."""
        return f"{self.word}:{self.sense}" if self.sense else self.word


@dataclass(frozen=True, slots=True)
class Scene:
    """Things in the order they are told: the salient one first, for three the one in the middle.

    `relation` says where the first stands as seen from the others; for one thing it is where in the picture.
    """

    ground: str
    things: tuple[Thing, ...]
    relation: str
    backdrop: int = 0
    motion: str | None = None

    @property
    def label(self) -> str | None:
        """The ambiguous word with its sense ('bat:animal'), where the scene has one."""
        return next((thing.name for thing in self.things if thing.sense), None)


def make_scene(seed: int, split: str, index: int, ambiguous: float) -> Scene:
    """Throw a scene together.

    Args:
        seed: of the whole collection.
        split: name of the split; part of the scene's own seed, as is `index`.
        index: number of the scene in its split.
        ambiguous: share of scenes with a word of `SENSES`. The sense is thrown last, from a generator of its
            own, so that nothing else in the scene knows it.
    """
    rng = Random(f"{seed}/{split}/{index}")
    count = rng.choices((1, 2, 3), (50, 35, 15))[0]
    words = rng.sample(ORDINARY, count)
    if rng.random() < ambiguous:
        words[rng.randrange(count)] = rng.choice(tuple(SENSES))
    things = [
        Thing(word, colour, flip=rng.random() < 0.5, stretch=rng.uniform(0.92, 1.08), variant=rng.randrange(60))
        for word, colour in zip(words, rng.sample(COLOURS, count), strict=True)
    ]
    place = (_place_one, _place_pair, _place_row)[count - 1]
    relation, placed = place(things, rng)
    scene = Scene(rng.choice(GROUNDS), tuple(placed), relation, backdrop=rng.randrange(2**32))
    return with_senses(scene, Random(f"{seed}/{split}/{index}/sense"))


def make_clip(seed: int, split: str, index: int) -> Scene:
    """Throw a scene with one thing that will move."""
    rng = Random(f"{seed}/{split}/clip/{index}")
    thing = Thing(rng.choice(ORDINARY), rng.choice(COLOURS), x=rng.uniform(0.3, 0.7), span=rng.uniform(0.36, 0.42))
    scene = Scene(rng.choice(GROUNDS), (thing,), "middle", backdrop=rng.randrange(2**32))
    return replace(scene, motion=rng.choice(MOTIONS))


def with_senses(scene: Scene, rng: Random) -> Scene:
    """Give each ambiguous word of the scene one of its two senses, both equally likely."""
    things = tuple(
        replace(thing, sense=rng.choice(SENSES[thing.word])) if thing.word in SENSES else thing
        for thing in scene.things
    )
    return replace(scene, things=things)


def _place_one(things: list[Thing], rng: Random) -> tuple[str, list[Thing]]:
    (thing,) = things
    big = rng.random() < 0.5
    span = rng.uniform(0.50, 0.56) if big else rng.uniform(0.29, 0.33)
    place = rng.choice(tuple(PLACES))
    x = PLACES[place] + rng.uniform(-0.03, 0.03)
    y = rng.uniform(0.50, 0.58) + span / 3 if thing.word in FLYING else rng.uniform(0.84, 0.92)
    return place, [replace(thing, big=big, span=span, x=x, y=y - 0.06 * (not big))]


def _place_pair(things: list[Thing], rng: Random) -> tuple[str, list[Thing]]:
    first, second = things
    flying = first.word in FLYING, second.word in FLYING
    relation = rng.choice(("left", "right", "behind"))
    if flying[0] != flying[1]:
        relation = "above" if flying[0] else "under"
    elif flying[0] and relation == "behind":
        relation = "left"
    wobble = rng.uniform(-0.03, 0.03)
    side = rng.choice((-1, 1))
    spots = {  # (x, y, span) of the big one, then of the small one
        "left": ((0.28, 0.86, 0.46), (0.77, 0.84, 0.31)),
        "right": ((0.72, 0.86, 0.46), (0.23, 0.84, 0.31)),
        "behind": ((0.50 - 0.08 * side, 0.76, 0.50), (0.50 + 0.15 * side, 0.95, 0.30)),
        "above": ((0.50, 0.49, 0.42), (0.50, 0.93, 0.31)),
        "under": ((0.50, 0.93, 0.47), (0.50, 0.36, 0.30)),
    }[relation]
    lift = 0.3 if all(flying) else 0.0
    placed = [
        replace(thing, big=span > 0.4, x=x + wobble, y=y + rng.uniform(-0.02, 0.02) - lift, span=span)
        for thing, (x, y, span) in zip(things, spots, strict=True)
    ]
    return relation, placed


def _place_row(things: list[Thing], rng: Random) -> tuple[str, list[Thing]]:
    placed = []
    for thing, x in zip(things, (0.50, 0.18, 0.82), strict=True):
        lift = 0.15 if thing.word in FLYING else 0.0
        y = rng.uniform(0.78, 0.90) - lift
        placed.append(replace(thing, x=x + rng.uniform(-0.02, 0.02), y=y, span=rng.uniform(0.29, 0.32)))
    return "between", placed
