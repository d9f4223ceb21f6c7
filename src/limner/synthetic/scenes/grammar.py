"""Sentences about scenes in English, German and French, with grammatical agreement.

The fields of a template are noun phrases: `{a A}` and `{the A}` are the first object with its colour, `{a sized B}` the
second with size and colour; German fields have a case (`{the B dat}`), by default the nominative. Templates at the same
position of the three lists are translations of each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from limner.data.examples import Sentence
from limner.synthetic.scenes.scene import INVERSE, Scene, SceneObject

LANGUAGES = ("en", "de", "fr")


class Noun(NamedTuple):
    """German and French noun of an object, each with its gender."""

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
WEAK_NOUNS = frozenset({"Buchstabe"})
"""German nouns with the ending -n in the accusative and dative."""

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

MOTION_PHRASES = {  # verb and its complement
    "en": {"left": ("moves", "to the left"), "right": ("moves", "to the right"), "fall": ("falls", "down"),
           "rise": ("rises", "into the air"), "jump": ("jumps", "up and down"),
           "swing": ("swings", "from side to side"), "grow": ("grows", "bigger and bigger"),
           "shrink": ("shrinks", "smaller and smaller")},
    "de": {"left": ("gleitet", "nach links"), "right": ("gleitet", "nach rechts"),
           "fall": ("fällt", "nach unten"), "rise": ("steigt", "in die Luft"),
           "jump": ("springt", "auf und ab"), "swing": ("pendelt", "hin und her"),
           "grow": ("wächst", "immer weiter"), "shrink": ("schrumpft", "immer weiter")},
    "fr": {"left": ("glisse", "vers la gauche"), "right": ("glisse", "vers la droite"),
           "fall": ("tombe", "vers le bas"), "rise": ("monte", "dans les airs"),
           "jump": ("saute", "de haut en bas"), "swing": ("oscille", "d'un côté à l'autre"),
           "grow": ("grandit", "de plus en plus"), "shrink": ("rétrécit", "de plus en plus")},
}  # fmt: skip

TEMPLATES = {
    "en": {
        "one": (
            "there is {a A} {background}",
            "{a sized A} {position}",
            "the picture shows {a A} {background}",
            "{the sized A} is {background}",
            "{background} you can see {a sized A}",
        ),
        "pair": (
            "there is {a A} {relation} {a B}",
            "{a sized A} and {a sized B} {background}",
            "{the A} is {relation} {the B}",
            "{background} you can see {a A} and {a B}",
            "{inverse} {the A} there is {a sized B}",
        ),
        "row": (
            "there is {a A} {relation} {a B} and {a C}",
            "{a B}, {a A} and {a C} {background}",
            "{the A} is {relation} {the B} and {the C}",
            "you can see {a B}, {a A} and {a C}",
            "{relation} {the B} and {the C} there is {a A}",
        ),
        "clip": (
            "{a A} {verb} {way}",
            "{a A} {verb} {way} {background}",
            "{the A} {verb} {way}",
            "{background} {a A} {verb} {way}",
            "you can see {a A} that {verb} {way}",
        ),
    },
    "de": {
        "one": (
            "es gibt {a A acc} {background}",
            "{a sized A} {position}",
            "das Bild zeigt {a A acc} {background}",
            "{the sized A} ist {background}",
            "{background} sieht man {a sized A acc}",
        ),
        "pair": (
            "es gibt {a A acc} {relation} {a B dat}",
            "{a sized A} und {a sized B} {background}",
            "{the A} ist {relation} {the B dat}",
            "{background} sieht man {a A acc} und {a B acc}",
            "{inverse} {the A dat} ist {a sized B}",
        ),
        "row": (
            "es gibt {a A acc} {relation} {a B dat} und {a C dat}",
            "{a B}, {a A} und {a C} {background}",
            "{the A} ist {relation} {the B dat} und {the C dat}",
            "man sieht {a B acc}, {a A acc} und {a C acc}",
            "{relation} {the B dat} und {the C dat} ist {a A}",
        ),
        "clip": (
            "{a A} {verb} {way}",
            "{a A} {verb} {background} {way}",
            "{the A} {verb} {way}",
            "{background} {verb} {a A} {way}",
            "man sieht {a A acc}, {who A} {way} {verb}",
        ),
    },
    "fr": {
        "one": (
            "il y a {a A} {background}",
            "{a sized A} {position}",
            "l'image montre {a A} {background}",
            "{the sized A} est {background}",
            "{background}, on voit {a sized A}",
        ),
        "pair": (
            "il y a {a A} {relation} {a B}",
            "{a sized A} et {a sized B} {background}",
            "{the A} est {relation} {the B}",
            "{background}, on voit {a A} et {a B}",
            "{inverse} {the A}, il y a {a sized B}",
        ),
        "row": (
            "il y a {a A} {relation} {a B} et {a C}",
            "{a B}, {a A} et {a C} {background}",
            "{the A} est {relation} {the B} et {the C}",
            "on voit {a B}, {a A} et {a C}",
            "{relation} {the B} et {the C}, il y a {a A}",
        ),
        "clip": (
            "{a A} {verb} {way}",
            "{a A} {verb} {way} {background}",
            "{the A} {verb} {way}",
            "{background}, {a A} {verb} {way}",
            "on voit {a A} qui {verb} {way}",
        ),
    },
}


def english_phrase(obj: SceneObject, article: str, sized: bool = False, case: str = "nom") -> str:
    """English noun phrase such as 'a big red ball'; no adjective begins with a vowel, so that 'an' does not occur.

    Args:
        obj: object of the noun phrase.
        article: 'a' or 'the'.
        sized: whether the size is included.
        case: ignored, for the signature of `NOUN_PHRASES`.
    """
    size = [_size(obj)] if sized else []
    return " ".join([article, *size, obj.colour, obj.word])


def german_phrase(obj: SceneObject, article: str, sized: bool = False, case: str = "nom") -> str:
    """German noun phrase such as 'ein großer roter Ball' (nom), 'einen großen roten Ball' (acc).

    Args:
        obj: object of the noun phrase.
        article: 'a', 'the', or 'who' for the relative pronoun alone, which has the form of the article.
        sized: whether the size is included.
        case: 'nom', 'acc' or 'dat'.
    """
    noun, gender = NOUNS[obj.name][:2]
    if article == "who":
        return GERMAN_ARTICLES["the"][case][gender]
    ending = GERMAN_ENDINGS[article][case][gender]
    stems = [GERMAN_ADJECTIVES[key] for key in ([_size(obj)] if sized else []) + [obj.colour]]
    # 'rosa' has no ending.
    adjectives = [stem if stem == "rosa" else stem + ending for stem in stems]
    weak = "n" if noun in WEAK_NOUNS and case != "nom" else ""
    return " ".join([GERMAN_ARTICLES[article][case][gender], *adjectives, noun + weak])


def french_phrase(obj: SceneObject, article: str, sized: bool = False, case: str = "nom") -> str:
    """French noun phrase such as 'une grande balle rouge' or 'l'arbre vert', with elision of the article.

    Args:
        obj: object of the noun phrase.
        article: 'a' or 'the'.
        sized: whether the size is included.
        case: ignored, for the signature of `NOUN_PHRASES`.
    """
    noun, gender = NOUNS[obj.name][2:]
    agree = 0 if gender == "m" else 1
    size = [FRENCH_ADJECTIVES[_size(obj)][agree]] if sized else []
    words = " ".join([*size, noun, FRENCH_ADJECTIVES[obj.colour][agree]])
    if article == "a":
        return f"{('un', 'une')[agree]} {words}"
    return f"l'{words}" if words[0] in "aeiouéèêœ" else f"{('le', 'la')[agree]} {words}"


NOUN_PHRASES: dict[str, Callable[[SceneObject, str, bool, str], str]] = {
    "en": english_phrase,
    "de": german_phrase,
    "fr": french_phrase,
}


def contract_prepositions(text: str) -> str:
    """Contract German 'von dem' to 'vom', French 'de le' to 'du', and French 'de' before 'un' and 'une'."""
    text = re.sub(r"\bvon dem\b", "vom", text)
    text = re.sub(r"\bde le\b", "du", text)
    return re.sub(r"\bde (?=une?\b)", "d'", text)


class _TemplateFields(dict[str, str]):
    """Values of the fields of a template; noun phrases are generated on access."""

    def __init__(self, scene: Scene, lang: str) -> None:
        phrases = PHRASES[lang]
        super().__init__(background=phrases[scene.background])
        if len(scene.objects) == 1:
            self["position"] = phrases[f"at {scene.relation}"]
        else:
            self["relation"] = phrases[scene.relation]
        if len(scene.objects) == 2:
            self["inverse"] = phrases[INVERSE[scene.relation]]
        if scene.motion:
            self["verb"], self["way"] = MOTION_PHRASES[lang][scene.motion]
        self._objects = dict(zip("ABC", scene.objects, strict=False))
        self._noun_phrase = NOUN_PHRASES[lang]

    def __missing__(self, key: str) -> str:
        article, *words = key.split()
        name, case = (words[-1], "nom") if words[-1] in self._objects else (words[-2], words[-1])
        return self._noun_phrase(self._objects[name], article, "sized" in words, case)


def describe_scene(scene: Scene) -> tuple[Sentence, ...]:
    """Five sentences about a scene in each language; sentences of the same group are translations of each other."""
    kind = "clip" if scene.motion else ("one", "pair", "row")[len(scene.objects) - 1]
    sentences = []
    for lang in LANGUAGES:
        values = _TemplateFields(scene, lang)
        for group, template in enumerate(TEMPLATES[lang][kind]):
            text = contract_prepositions(template.format_map(values))
            sentences.append(Sentence(lang, f"{text[0].upper()}{text[1:]}.", group))
    return tuple(sentences)


def _size(obj: SceneObject) -> str:
    return "big" if obj.big else "small"
