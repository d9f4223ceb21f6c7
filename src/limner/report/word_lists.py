"""Words of each kind in English, German and French, by the code of the language; separated by spaces."""

from __future__ import annotations

COLOURS = {
    "en": (
        "red yellow green blue purple pink white black brown orange grey gray beige tan golden silver maroon violet "
        "turquoise blond blonde"
    ),
    "de": ("rot gelb grün blau violett rosa weiß schwarz braun orange grau beige lila golden silbern blond türkis"),
    "fr": ("rouge jaune vert bleu violet rose blanc noir marron brun orange gris beige doré argenté blond turquoise"),
}
"""Basic colours, without endings."""
ENDINGS = {
    "en": ("",),
    "de": ("", "e", "er", "es", "en", "em"),
    "fr": ("", "e", "s", "es", "te", "tes"),
}
"""Endings of colours."""
COLOUR_FORMS = {
    "en": {"gray": "grey", "blonde": "blond"},
    "de": {},
    "fr": {"blanche": "blanc", "blanches": "blanc"},
}
"""Basic forms of colours that do not follow from an ending."""
COUNTS = {
    "en": (
        "one two three four five six seven eight nine ten eleven twelve both several many few group crowd pair couple"
    ),
    "de": (
        "zwei drei vier fünf sechs sieben acht neun zehn elf zwölf beide beiden mehrere mehreren viele vielen einige "
        "einigen gruppe paar"
    ),
    "fr": ("deux trois quatre cinq six sept huit neuf dix onze douze plusieurs beaucoup quelques groupe foule paire"),
}
"""Words that tell how many there are."""
DIGITS = {
    "en": ("one two three four five six seven eight nine ten eleven twelve"),
    "de": ("eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf"),
    "fr": "un deux trois quatre cinq six sept huit neuf dix onze douze",
}
"""Numbers from one, as words."""
RELATIONS = {
    "en": (
        "in on at under below above over behind between beside near inside outside into onto through across along "
        "around against atop beneath underneath among off past toward towards up down next left right front back "
        "middle center top bottom"
    ),
    "de": (
        "in im ins an am ans auf aufs unter über überm hinter vor vorm zwischen neben bei beim durch entlang um gegen "
        "links rechts mitten oben unten nahe aus vorne hinten"
    ),
    "fr": (
        "dans sur sous derrière devant entre près contre chez vers hors gauche droite milieu haut bas au-dessus "
        "au-dessous dessus dessous travers autour long"
    ),
}
"""Prepositions and words of position."""
FUNCTION_WORDS = {
    "en": (
        "a an the this that these those some of to for by with from as and or but while is are be been being was were "
        "there it its his her their he she they you can who which what has have having has do does not his him them"
    ),
    "de": (
        "ein eine einer eines einem einen der die das den dem des dieser diese dieses und oder aber während ist sind "
        "war waren wird werden es gibt sich sein seine seiner seinem seinen seines ihr ihre ihrer ihrem ihren man "
        "sieht mit von vom zu zum zur für als wie nicht auch er sie wer welche welcher welches hat haben"
    ),
    "fr": (
        "un une des le la les l d de du au aux à et ou mais pendant est sont était être il elle ils elles on y a voit "
        "qui que qu son sa ses leur leurs ce cet cette ces avec pour par en se s n ne pas c"
    ),
}
"""Words that are not compared: articles, pronouns, auxiliaries, conjunctions and prepositions without a place."""
DETERMINERS = {
    "en": "a an the this that these those some his her their its",
    "de": ("ein eine einer eines einem einen der die das den dem des sein seine seinem seinen ihr ihre ihrem ihren"),
    "fr": ("un une des le la les l du son sa ses leur leurs ce cet cette ces au aux d"),
}
"""Words that begin a noun phrase."""
IRREGULAR = {
    "men": "man",
    "women": "woman",
    "children": "child",
    "people": "person",
    "feet": "foot",
    "mice": "mouse",
    "geese": "goose",
    "teeth": "tooth",
    "wolves": "wolf",
    "leaves": "leaf",
    "knives": "knife",
    "sheep": "sheep",
}
"""Irregular English plurals with their singular."""
