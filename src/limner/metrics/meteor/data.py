"""Data files of METEOR 1.5: function words, abbreviations, synonyms and paraphrases.

They are read from the archive in pycocoevalcap (extra `coco`), which contains the paraphrase table for English only.
For another language the table of METEOR 1.5, for example paraphrase-de.gz, is used if it is in the same folder.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from limner.metrics.caption import coco_module
from limner.metrics.meteor.parameters import LANGUAGES, PARAPHRASE

ARCHIVE = "meteor-1.5.jar"
NAMES = {"cs": "czech", "de": "german", "en": "english", "es": "spanish", "fr": "french", "ru": "russian"}
"""Names of the languages in the archive."""
NUMERIC_ONLY = "#NUMERIC_ONLY#"
BLOCK = 1 << 24
"""Bytes of the paraphrase table that are searched at once."""


def folder() -> Path:
    """Return the folder of the data files.

    Raises:
        MissingExtraError: the extra `coco` is not installed.
    """
    return Path(coco_module("meteor.meteor", "METEOR").__file__).resolve().parent


def paraphrase_file(lang: str) -> Path:
    """Return the path of the paraphrase table of a language, which need not exist."""
    return folder() / "data" / f"paraphrase-{'cz' if lang == 'cs' else lang}.gz"  # METEOR's code for Czech


def modules(lang: str) -> list[str]:
    """Return the matching modules of a language whose data are available."""
    return [module for module in LANGUAGES[lang].modules if module != PARAPHRASE or paraphrase_file(lang).exists()]


def _lines(place: Path, name: str) -> list[str]:
    with ZipFile(place / ARCHIVE) as archive:
        return archive.read(name).decode().split("\n")


@cache
def function_words(place: Path) -> frozenset[str]:
    """Return the English function words, which the program uses in every language; `place` is the folder of the data.

    The archive has lists of other languages, but METEOR 1.5 does not read them for any value of its option `-l`.
    """
    return frozenset(filter(None, map(str.strip, _lines(place, "function/english.words"))))


@cache
def prefixes(place: Path, lang: str) -> dict[str, bool]:
    """Return the abbreviations of a language; true for those that a full stop belongs to only before digits."""
    lines = _lines(place, f"nonbreaking/{NAMES[lang]}.prefixes")
    return {
        line.partition("#")[0].strip(): NUMERIC_ONLY in line
        for line in lines
        if line.strip() and not line.startswith("#")
    }


class Synonyms(NamedTuple):
    """Synonym sets of WordNet and irregular forms."""

    synsets: dict[str, list[str]]
    """Names of the synonym sets of a word."""
    lemmas: dict[str, list[str]]
    """Lemmas of an irregular form."""


@cache
def synonyms(place: Path) -> Synonyms:
    """Read the synonyms, which are in the archive for English only."""
    lines = _lines(place, "synonym/english.synsets")
    synsets = {word: names.split() for word, names in zip(lines[::2], lines[1::2], strict=False)}
    lemmas = defaultdict(list)
    lines = _lines(place, "synonym/english.exceptions")
    for lemma, forms in zip(lines[::2], lines[1::2], strict=False):
        for form in forms.split():
            lemmas[form].append(lemma)
    return Synonyms(synsets, dict(lemmas))


def paraphrases(path: Path, phrases: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of the paraphrase table whose phrases are both in a collection.

    Args:
        path: the table: for each pair its probability, the phrase and its paraphrase, each on a line.
        phrases: UTF-8 words joined by single spaces.
    """
    with gzip.open(path) as file:
        rest: list[bytes] = [b""]
        while block := file.read(BLOCK):
            lines = (rest[-1] + block).split(b"\n")
            lines = rest[:-1] + lines
            whole = (len(lines) - 1) // 3 * 3
            yield from (
                pair
                for pair in zip(lines[1:whole:3], lines[2:whole:3], strict=True)
                if pair[0] in phrases and pair[1] in phrases
            )
            rest = lines[whole:]
        if len(rest) >= 3 and rest[1] in phrases and rest[2] in phrases:  # no newline at the end of the file
            yield rest[1], rest[2]
