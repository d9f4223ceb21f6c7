"""Sentences about scenes in English, German and French, with grammatical agreement.

The fields of a template are noun phrases: `{a A}` and `{the A}` are the first object with its colour, `{a sized B}` the
second with size and colour; German fields have a case (`{the B dat}`), by default the nominative. `grammar.tsv` has
the templates by the number of objects, the phrases of places and relations, the verbs of motions with their
complements, the nouns with their genders, the adjectives (of French, masculine and feminine), and the German articles
and endings of adjectives by article, case and gender; a row is a text and its translations.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from importlib.resources import files
from typing import NamedTuple

from limner.data.examples import ItemSentence
from limner.synthetic.scenes.scene import INVERSE, Scene, SceneObject

LANGUAGES = ("en", "de", "fr")


class Noun(NamedTuple):
    """German and French noun of an object, each with its gender."""

    german: str
    german_gender: str
    french: str
    french_gender: str


with files("limner.synthetic.scenes").joinpath("grammar.tsv").open(encoding="utf-8") as _lines:
    _ROWS = list(csv.DictReader(_lines, delimiter="\t"))


def texts_of(kind: str, lang: str) -> dict[str, str]:
    """Texts of a kind in a language by their keys."""
    return {row["key"]: row[lang] for row in _ROWS if row["kind"] == kind}


NOUNS = {
    key: Noun(*german.split(), *french.split())
    for (key, german), french in zip(texts_of("noun", "de").items(), texts_of("noun", "fr").values(), strict=True)
}
"""Nouns by the name of an object."""
WEAK_NOUNS = frozenset({"Buchstabe"})
"""German nouns with the ending -n in the accusative and dative."""
_GERMAN_ADJECTIVES = texts_of("adjective", "de")
_ARTICLES, _ENDINGS = texts_of("article", "de"), texts_of("ending", "de")  # by article, case and gender
_FRENCH_ADJECTIVES = {key: texts.split() for key, texts in texts_of("adjective", "fr").items()}  # masculine, feminine


def english_phrase(obj: SceneObject, article: str, sized: bool = False, case: str = "nom") -> str:
    """English noun phrase such as 'a big red ball'; no adjective begins with a vowel, so that 'an' does not occur."""
    size = [_size(obj)] if sized else []
    return " ".join([article, *size, obj.colour, obj.word])


def german_phrase(obj: SceneObject, article: str, sized: bool = False, case: str = "nom") -> str:
    """German noun phrase such as 'ein großer roter Ball' (nom), 'einen großen roten Ball' (acc).

    The article is 'a', 'the', or 'who' for the relative pronoun alone, which has the form of the article; the case
    'nom', 'acc' or 'dat'.
    """
    noun, gender = NOUNS[obj.name][:2]
    if article == "who":
        return _ARTICLES[f"the {case} {gender}"]
    form = f"{article} {case} {gender}"
    stems = [_GERMAN_ADJECTIVES[key] for key in ([_size(obj)] if sized else []) + [obj.colour]]
    # 'rosa' has no ending.
    adjectives = [stem if stem == "rosa" else stem + _ENDINGS[form] for stem in stems]
    weak = "n" if noun in WEAK_NOUNS and case != "nom" else ""
    return " ".join([_ARTICLES[form], *adjectives, noun + weak])


def french_phrase(obj: SceneObject, article: str, sized: bool = False, case: str = "nom") -> str:
    """French noun phrase such as 'une grande balle rouge' or 'l'arbre vert', with elision of the article."""
    noun, gender = NOUNS[obj.name][2:]
    agree = 0 if gender == "m" else 1
    size = [_FRENCH_ADJECTIVES[_size(obj)][agree]] if sized else []
    words = " ".join([*size, noun, _FRENCH_ADJECTIVES[obj.colour][agree]])
    if article == "a":
        return f"{('un', 'une')[agree]} {words}"
    return f"l'{words}" if words[0] in "aeiouéèêœ" else f"{('le', 'la')[agree]} {words}"


NOUN_PHRASES: dict[str, Callable[[SceneObject, str, bool, str], str]] = {
    "en": english_phrase,
    "de": german_phrase,
    "fr": french_phrase,
}
"""Functions of an object, an article ('a' or 'the'), whether the size is included, and a case, which German has."""


def contract_prepositions(text: str) -> str:
    """Contract German 'von dem' to 'vom', French 'de le' to 'du', and French 'de' before 'un' and 'une'."""
    text = re.sub(r"\bvon dem\b", "vom", text)
    text = re.sub(r"\bde le\b", "du", text)
    return re.sub(r"\bde (?=une?\b)", "d'", text)


class _TemplateFields(dict[str, str]):
    """Values of the fields of a template; noun phrases are generated on access."""

    def __init__(self, scene: Scene, lang: str) -> None:
        phrases = texts_of("phrase", lang)
        super().__init__(background=phrases[scene.background])
        if len(scene.objects) == 1:
            self["position"] = phrases[f"at {scene.relation}"]
        else:
            self["relation"] = phrases[scene.relation]
        if len(scene.objects) == 2:
            self["inverse"] = phrases[INVERSE[scene.relation]]
        if scene.motion:
            self["verb"], self["way"] = (texts_of(kind, lang)[scene.motion] for kind in ("verb", "way"))
        self._objects = dict(zip("ABC", scene.objects, strict=False))
        self._noun_phrase = NOUN_PHRASES[lang]

    def __missing__(self, key: str) -> str:
        article, *words = key.split()
        name, case = (words[-1], "nom") if words[-1] in self._objects else (words[-2], words[-1])
        return self._noun_phrase(self._objects[name], article, "sized" in words, case)


def describe_scene(scene: Scene) -> tuple[ItemSentence, ...]:
    """Five sentences about a scene in each language; sentences of the same group are translations of each other."""
    kind = "clip" if scene.motion else ("one", "pair", "row")[len(scene.objects) - 1]
    sentences = []
    for lang in LANGUAGES:
        values = _TemplateFields(scene, lang)
        for group, template in enumerate(texts_of(kind, lang).values()):
            text = contract_prepositions(template.format_map(values))
            sentences.append(ItemSentence(lang, f"{text[0].upper()}{text[1:]}.", group))
    return tuple(sentences)


def _size(obj: SceneObject) -> str:
    return "big" if obj.big else "small"
