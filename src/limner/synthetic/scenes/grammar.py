"""What is said about a scene, in English, German and French, with the agreement each language asks for.

A form is a template whose braces hold a noun phrase: `{a A}` and `{the A}` are the first thing with its
colour, `{a sized B}` the second with size and colour; German adds the case (`{the B dat}`), the nominative
where none is given. Forms at the same place in the three lists translate each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from limner.data.examples import Sentence
from limner.synthetic.scenes.world import INVERSE, Scene, Thing

LANGUAGES = ("en", "de", "fr")


class Noun(NamedTuple):
    """German and French nouns of a thing, each with its gender."""

    german: str
    german_gender: str
    french: str
    french_gender: str


NOUNS = {
    "ball": Noun("Ball", "m", "balle", "f"),
    "house": Noun("Haus", "n", "maison", "f"),
    "tree": Noun("Baum", "m", "arbre", "m"),
    "car": Noun("Auto", "n", "voiture", "f"),
    "boat": Noun("Boot", "n", "bateau", "m"),
    "flower": Noun("Blume", "f", "fleur", "f"),
    "cup": Noun("Tasse", "f", "tasse", "f"),
    "fish": Noun("Fisch", "m", "poisson", "m"),
    "umbrella": Noun("Regenschirm", "m", "parapluie", "m"),
    "mushroom": Noun("Pilz", "m", "champignon", "m"),
    "star": Noun("Stern", "m", "étoile", "f"),
    "kite": Noun("Drachen", "m", "cerf-volant", "m"),
    "bat:animal": Noun("Fledermaus", "f", "chauve-souris", "f"),
    "bat:club": Noun("Schläger", "m", "batte", "f"),
    "bow:weapon": Noun("Bogen", "m", "arc", "m"),
    "bow:ribbon": Noun("Schleife", "f", "nœud", "m"),
    "crane:bird": Noun("Kranich", "m", "grue", "f"),
    "crane:machine": Noun("Kran", "m", "grue", "f"),
    "letter:mail": Noun("Brief", "m", "lettre", "f"),
    "letter:sign": Noun("Buchstabe", "m", "lettre", "f"),
    "nut:fruit": Noun("Nuss", "f", "noisette", "f"),
    "nut:screw": Noun("Schraubenmutter", "f", "écrou", "m"),
    "seal:animal": Noun("Robbe", "f", "phoque", "m"),
    "seal:wax": Noun("Siegel", "n", "sceau", "m"),
}
WEAK = frozenset({"Buchstabe"})
"""German nouns that take -n outside the nominative."""

GERMAN_ARTICLES = {
    "the": {"nom": {"m": "der", "f": "die", "n": "das"},
            "acc": {"m": "den", "f": "die", "n": "das"},
            "dat": {"m": "dem", "f": "der", "n": "dem"}},
    "a": {"nom": {"m": "ein", "f": "eine", "n": "ein"},
          "acc": {"m": "einen", "f": "eine", "n": "ein"},
          "dat": {"m": "einem", "f": "einer", "n": "einem"}},
}  # fmt: skip
GERMAN_ENDINGS = {
    "the": {"nom": {"m": "e", "f": "e", "n": "e"},
            "acc": {"m": "en", "f": "e", "n": "e"},
            "dat": {"m": "en", "f": "en", "n": "en"}},
    "a": {"nom": {"m": "er", "f": "e", "n": "es"},
          "acc": {"m": "en", "f": "e", "n": "es"},
          "dat": {"m": "en", "f": "en", "n": "en"}},
}  # fmt: skip
GERMAN_ADJECTIVES = {
    "red": "rot", "yellow": "gelb", "green": "grün", "blue": "blau", "purple": "violett", "pink": "rosa",
    "white": "weiß", "black": "schwarz", "big": "groß", "small": "klein",
}  # fmt: skip
FRENCH_ADJECTIVES = {
    "red": ("rouge", "rouge"), "yellow": ("jaune", "jaune"), "green": ("vert", "verte"),
    "blue": ("bleu", "bleue"), "purple": ("violet", "violette"), "pink": ("rose", "rose"),
    "white": ("blanc", "blanche"), "black": ("noir", "noire"), "big": ("grand", "grande"),
    "small": ("petit", "petite"),
}  # fmt: skip

PHRASES = {
    "en": {
        "meadow": "in the meadow", "beach": "on the beach", "snow": "in the snow", "street": "on the street",
        "room": "in the room", "moonlight": "in the moonlight", "mountains": "in the mountains",
        "desert": "in the desert",
        "at left": "on the left of the picture", "at middle": "in the middle of the picture",
        "at right": "on the right of the picture",
        "left": "to the left of", "right": "to the right of", "above": "above", "under": "under",
        "behind": "behind", "front": "in front of", "between": "between",
    },
    "de": {
        "meadow": "auf der Wiese", "beach": "am Strand", "snow": "im Schnee", "street": "auf der Straße",
        "room": "im Zimmer", "moonlight": "im Mondschein", "mountains": "in den Bergen",
        "desert": "in der Wüste",
        "at left": "links im Bild", "at middle": "mitten im Bild", "at right": "rechts im Bild",
        "left": "links von", "right": "rechts von", "above": "über", "under": "unter",
        "behind": "hinter", "front": "vor", "between": "zwischen",
    },
    "fr": {
        "meadow": "dans le pré", "beach": "sur la plage", "snow": "dans la neige", "street": "dans la rue",
        "room": "dans la chambre", "moonlight": "au clair de lune", "mountains": "à la montagne",
        "desert": "dans le désert",
        "at left": "à gauche de l'image", "at middle": "au milieu de l'image",
        "at right": "à droite de l'image",
        "left": "à gauche de", "right": "à droite de", "above": "au-dessus de", "under": "sous",
        "behind": "derrière", "front": "devant", "between": "entre",
    },
}  # fmt: skip

MOVES = {  # verb and its complement
    "en": {"left": ("slides", "to the left"), "right": ("slides", "to the right"), "fall": ("falls", "down"),
           "rise": ("rises", "into the air"), "jump": ("jumps", "up and down")},
    "de": {"left": ("gleitet", "nach links"), "right": ("gleitet", "nach rechts"),
           "fall": ("fällt", "nach unten"), "rise": ("steigt", "in die Luft"),
           "jump": ("springt", "auf und ab")},
    "fr": {"left": ("glisse", "vers la gauche"), "right": ("glisse", "vers la droite"),
           "fall": ("tombe", "vers le bas"), "rise": ("monte", "dans les airs"),
           "jump": ("saute", "de haut en bas")},
}  # fmt: skip

FORMS = {
    "en": {
        "one": (
            "there is {a A} {ground}",
            "{a sized A} {place}",
            "the picture shows {a A} {ground}",
            "{the sized A} is {ground}",
            "{ground} you can see {a sized A}",
        ),
        "pair": (
            "there is {a A} {relation} {a B}",
            "{a sized A} and {a sized B} {ground}",
            "{the A} is {relation} {the B}",
            "{ground} you can see {a A} and {a B}",
            "{inverse} {the A} there is {a sized B}",
        ),
        "row": (
            "there is {a A} {relation} {a B} and {a C}",
            "{a B}, {a A} and {a C} {ground}",
            "{the A} is {relation} {the B} and {the C}",
            "you can see {a B}, {a A} and {a C}",
            "{relation} {the B} and {the C} there is {a A}",
        ),
        "clip": (
            "{a A} {verb} {way}",
            "{a A} {verb} {way} {ground}",
            "{the A} {verb} {way}",
            "{ground} {a A} {verb} {way}",
            "you can see {a A} that {verb} {way}",
        ),
    },
    "de": {
        "one": (
            "es gibt {a A acc} {ground}",
            "{a sized A} {place}",
            "das Bild zeigt {a A acc} {ground}",
            "{the sized A} ist {ground}",
            "{ground} sieht man {a sized A acc}",
        ),
        "pair": (
            "es gibt {a A acc} {relation} {a B dat}",
            "{a sized A} und {a sized B} {ground}",
            "{the A} ist {relation} {the B dat}",
            "{ground} sieht man {a A acc} und {a B acc}",
            "{inverse} {the A dat} ist {a sized B}",
        ),
        "row": (
            "es gibt {a A acc} {relation} {a B dat} und {a C dat}",
            "{a B}, {a A} und {a C} {ground}",
            "{the A} ist {relation} {the B dat} und {the C dat}",
            "man sieht {a B acc}, {a A acc} und {a C acc}",
            "{relation} {the B dat} und {the C dat} ist {a A}",
        ),
        "clip": (
            "{a A} {verb} {way}",
            "{a A} {verb} {ground} {way}",
            "{the A} {verb} {way}",
            "{ground} {verb} {a A} {way}",
            "man sieht {a A acc}, {who A} {way} {verb}",
        ),
    },
    "fr": {
        "one": (
            "il y a {a A} {ground}",
            "{a sized A} {place}",
            "l'image montre {a A} {ground}",
            "{the sized A} est {ground}",
            "{ground}, on voit {a sized A}",
        ),
        "pair": (
            "il y a {a A} {relation} {a B}",
            "{a sized A} et {a sized B} {ground}",
            "{the A} est {relation} {the B}",
            "{ground}, on voit {a A} et {a B}",
            "{inverse} {the A}, il y a {a sized B}",
        ),
        "row": (
            "il y a {a A} {relation} {a B} et {a C}",
            "{a B}, {a A} et {a C} {ground}",
            "{the A} est {relation} {the B} et {the C}",
            "on voit {a B}, {a A} et {a C}",
            "{relation} {the B} et {the C}, il y a {a A}",
        ),
        "clip": (
            "{a A} {verb} {way}",
            "{a A} {verb} {way} {ground}",
            "{the A} {verb} {way}",
            "{ground}, {a A} {verb} {way}",
            "on voit {a A} qui {verb} {way}",
        ),
    },
}


def english(thing: Thing, article: str, sized: bool = False, case: str = "nom") -> str:
    """'a big red ball'. No adjective here begins with a vowel, so 'an' never comes up."""
    size = [_size(thing)] if sized else []
    return " ".join([article, *size, thing.colour, thing.word])


def german(thing: Thing, article: str, sized: bool = False, case: str = "nom") -> str:
    """'ein großer roter Ball' (nom), 'einen großen roten Ball' (acc), 'einem großen roten Ball' (dat).

    Args:
        thing: what is named.
        article: 'a', 'the', or 'who' for the relative pronoun alone, which has the article's form here.
        sized: whether its size is told.
        case: 'nom', 'acc' or 'dat'.
    """
    noun, gender = NOUNS[thing.name][:2]
    if article == "who":
        return GERMAN_ARTICLES["the"][case][gender]
    ending = GERMAN_ENDINGS[article][case][gender]
    stems = [GERMAN_ADJECTIVES[key] for key in ([_size(thing)] if sized else []) + [thing.colour]]
    # 'rosa' is one of the few German adjectives that take no ending at all.
    adjectives = [stem if stem == "rosa" else stem + ending for stem in stems]
    weak = "n" if noun in WEAK and case != "nom" else ""
    return " ".join([GERMAN_ARTICLES[article][case][gender], *adjectives, noun + weak])


def french(thing: Thing, article: str, sized: bool = False, case: str = "nom") -> str:
    """'une grande balle rouge', 'l'arbre vert': size before the noun, colour after it, elision where due."""
    noun, gender = NOUNS[thing.name][2:]
    agree = 0 if gender == "m" else 1
    size = [FRENCH_ADJECTIVES[_size(thing)][agree]] if sized else []
    words = " ".join([*size, noun, FRENCH_ADJECTIVES[thing.colour][agree]])
    if article == "a":
        return f"{('un', 'une')[agree]} {words}"
    return f"l'{words}" if words[0] in "aeiouéèêœ" else f"{('le', 'la')[agree]} {words}"


NAMERS: dict[str, Callable[[Thing, str, bool, str], str]] = {"en": english, "de": german, "fr": french}


def contract(text: str) -> str:
    """German 'von dem' is 'vom'; French 'de le' is 'du' and 'de' loses its e before a vowel."""
    text = re.sub(r"\bvon dem\b", "vom", text)
    text = re.sub(r"\bde le\b", "du", text)
    return re.sub(r"\bde (?=une?\b)", "d'", text)


class _Slots(dict[str, str]):
    """Fills a form's braces: fixed phrases by name, noun phrases made when asked for."""

    def __init__(self, scene: Scene, lang: str) -> None:
        phrases = PHRASES[lang]
        super().__init__(ground=phrases[scene.ground])
        if len(scene.things) == 1:
            self["place"] = phrases[f"at {scene.relation}"]
        else:
            self["relation"] = phrases[scene.relation]
        if len(scene.things) == 2:
            self["inverse"] = phrases[INVERSE[scene.relation]]
        if scene.motion:
            self["verb"], self["way"] = MOVES[lang][scene.motion]
        self._things = dict(zip("ABC", scene.things, strict=False))
        self._namer = NAMERS[lang]

    def __missing__(self, key: str) -> str:
        article, *words = key.split()
        name, case = (words[-1], "nom") if words[-1] in self._things else (words[-2], words[-1])
        return self._namer(self._things[name], article, "sized" in words, case)


def tell(scene: Scene) -> tuple[Sentence, ...]:
    """Five sentences about a scene in each language; those of one `group` translate each other."""
    kind = "clip" if scene.motion else ("one", "pair", "row")[len(scene.things) - 1]
    sentences = []
    for lang in LANGUAGES:
        slots = _Slots(scene, lang)
        for group, form in enumerate(FORMS[lang][kind]):
            text = contract(form.format_map(slots))
            sentences.append(Sentence(lang, f"{text[0].upper()}{text[1:]}.", group))
    return tuple(sentences)


def _size(thing: Thing) -> str:
    return "big" if thing.big else "small"
