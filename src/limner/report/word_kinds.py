"""Kinds of words: objects, colours, counts and relations, in English, German and French.

Colours, counts, relations and function words are listed. Objects are the nouns of the grammar in a generated
collection. In other collections they are the words that often begin and often end a noun phrase of the references.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from limner.report.word_lists import (
    COLOUR_FORMS,
    COLOURS,
    COUNTS,
    DETERMINERS,
    DIGITS,
    ENDINGS,
    FUNCTION_WORDS,
    IRREGULAR,
    RELATIONS,
)
from limner.report.word_marks import words_of
from limner.synthetic.scenes.grammar import NOUNS, WEAK_NOUNS
from limner.synthetic.scenes.scene import BACKGROUNDS

Kind = Literal["object", "colour", "count", "relation", "other"]

MIN_GENERATED = 0.95
"""Share of the references with a noun of the grammar from which a collection counts as generated."""
MIN_FIRST, MIN_LAST = 1 / 5, 1 / 3
"""Shares of the occurrences of a noun in which it begins and in which it ends a noun phrase."""


class Lexicon(NamedTuple):
    """Kinds of the words of a language."""

    colours: Mapping[str, str]
    """Basic form of every form of a colour."""
    counts: Mapping[str, str]
    """Basic form of every word or digit of a number."""
    relations: frozenset[str]
    function_words: frozenset[str]
    nouns: frozenset[str]
    """Names of objects and places, in the singular."""
    lang: str
    is_generated: bool = False
    """Whether the nouns are those of the grammar of generated scenes."""

    def kind(self, word: str) -> Kind | None:
        """Return the kind of a word in lower case; None for a function word."""
        if word in self.colours:
            return "colour"
        if word in self.counts or word.isdecimal():
            return "count"
        if word in self.relations:
            return "relation"
        if word in self.function_words:
            return None
        return "object" if singular(word, self.lang) in self.nouns else "other"

    def basic_form(self, word: str) -> str:
        """Return the basic form of a colour, a number or an English or French plural; other words are unchanged."""
        if word in self.colours:
            return self.colours[word]
        if word in self.counts:
            return self.counts[word]
        return singular(word, self.lang)


def singular(word: str, lang: str) -> str:
    """Return the singular of an English or French noun by its ending; words of other languages are unchanged."""
    if lang == "en" and word in IRREGULAR:
        return IRREGULAR[word]
    if lang not in ("en", "fr") or len(word) < 4 or word[-1] not in "sx" or word.endswith(("ss", "us", "is")):
        return word
    if lang == "fr":
        return word[:-1]
    if word.endswith("x"):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("ches", "shes", "xes", "sses")) else word[:-1]


def read_lexicon(lang: str, references: Sequence[str]) -> Lexicon | None:
    """Build the lexicon of a language for the references of a split; None if the language has no word lists."""
    if lang not in COLOURS:
        return None
    colours = {stem + ending: stem for stem in COLOURS[lang].split() for ending in ENDINGS[lang]} | COLOUR_FORMS[lang]
    counts = {word: word for word in COUNTS[lang].split()}
    counts |= {str(number): word for number, word in enumerate(DIGITS[lang].split(), start=1)}
    plain = Lexicon(
        colours,
        counts,
        frozenset(RELATIONS[lang].split()),
        frozenset(FUNCTION_WORDS[lang].split()),
        frozenset(),
        lang,
    )
    sentences = [words_of(reference) for reference in references]
    generated = _nouns_of_grammar(lang)
    if sentences and sum(not generated.isdisjoint(words) for words in sentences) >= MIN_GENERATED * len(sentences):
        return plain._replace(nouns=generated, is_generated=True)
    return plain._replace(nouns=nouns_of(sentences, plain))


def nouns_of(sentences: Sequence[Sequence[str]], lexicon: Lexicon) -> frozenset[str]:
    """Find the words, in the singular, that often begin and often end a noun phrase after its article.

    A noun phrase is a run of words that are on no list, after an article, a possessive, a number or a colour.
    Adjectives seldom end one ("a small dog"), and verbs seldom begin one ("two dogs run").
    """
    determiners = {*DETERMINERS[lexicon.lang].split(), *lexicon.counts, *lexicon.colours}
    total, first, last = Counter[str](), Counter[str](), Counter[str]()
    for words in sentences:
        unlisted = [lexicon.kind(word) == "other" for word in words]
        begin = 0
        for position, word in enumerate(words):
            if not unlisted[position]:
                begin = position + 1
                continue
            noun = singular(word, lexicon.lang)
            total[noun] += 1
            if begin and words[begin - 1] in determiners:
                first[noun] += position == begin
                last[noun] += position == len(words) - 1 or not unlisted[position + 1]
    return frozenset(
        noun for noun, count in total.items() if first[noun] >= MIN_FIRST * count and last[noun] >= MIN_LAST * count
    )


def _nouns_of_grammar(lang: str) -> frozenset[str]:
    """Nouns of generated scenes: objects, and in English backgrounds."""
    if lang == "en":
        return frozenset((*(name.partition(":")[0] for name in NOUNS), *(singular(one, "en") for one in BACKGROUNDS)))
    if lang == "de":
        german = [noun.german for noun in NOUNS.values()] + [f"{noun}n" for noun in WEAK_NOUNS]
        places = ["Wiese", "Strand", "Schnee", "Straße", "Zimmer", "Mondschein", "Bergen", "Wüste"]
        return frozenset(word.casefold() for word in (*german, *places))
    places = ["pré", "plage", "neige", "rue", "chambre", "clair", "montagne", "désert"]
    return frozenset((*(noun.french for noun in NOUNS.values()), *places))
