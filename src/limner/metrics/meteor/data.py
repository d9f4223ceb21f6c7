"""Parameters and data of METEOR 1.5: function words, abbreviations, synonyms and paraphrases; its score of statistics.

The data are read from the archive in pycocoevalcap (extra `coco`), which contains the paraphrase table for English
only. For another language the table of METEOR 1.5, for example paraphrase-de.gz, is used if it is in the same folder.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from limner.errors import extra_module
from limner.metrics.base import Statistics

ARCHIVE = "meteor-1.5.jar"
NAMES = {"cs": "czech", "de": "german", "en": "english", "es": "spanish", "fr": "french", "ru": "russian"}
"""Names of the languages in the archive."""
NUMERIC_ONLY = "#NUMERIC_ONLY#"
BLOCK = 1 << 24  # bytes of the paraphrase table that are searched at once


def folder() -> Path:
    """Return the folder of the data files; MissingExtraError if the extra `coco` is not installed."""
    program = extra_module("pycocoevalcap.meteor.meteor", "METEOR", "coco")
    return Path(str(program.__file__)).resolve().parent


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
    """Return the abbreviations of a language; true if the full stop is part of it only before digits."""
    lines = _lines(place, f"nonbreaking/{NAMES[lang]}.prefixes")
    return {
        line.partition("#")[0].strip(): NUMERIC_ONLY in line
        for line in lines
        if line.strip() and not line.startswith("#")
    }


class Synonyms(NamedTuple):
    """Synonym sets of WordNet and irregular forms."""

    synsets: dict[str, list[str]]  # names of the synonym sets of a word
    lemmas: dict[str, list[str]]  # lemmas of an irregular form


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

    The table has for each pair its probability, the phrase and its paraphrase, each on a line; phrases are UTF-8 words
    joined by single spaces.
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


class MeteorParameters(NamedTuple):
    """Parameters of METEOR 1.5 for a language, tuned on human judgements by its authors."""

    alpha: float
    """Weight of recall in the F-mean; precision has the weight 1 - alpha."""
    beta: float
    """Exponent of the fragmentation."""
    gamma: float
    """Maximum of the fragmentation penalty."""
    delta: float
    """Weight of content words; function words have the weight 1 - delta."""
    modules: Mapping[str, float]
    """Weights of the matching modules in the order of their application; paraphrases are last."""

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weights of the module slots of the statistics, (4,); unused slots have no matches."""
        return np.array([*self.modules.values(), 0.0, 0.0, 0.0])[:SLOTS]


LANGUAGES = {
    "cs": MeteorParameters(0.95, 0.2, 0.6, 0.8, {"exact": 1.0, "paraphrase": 0.4}),
    "de": MeteorParameters(0.95, 1.0, 0.55, 0.55, {"exact": 1.0, "stem": 0.8, "paraphrase": 0.2}),
    "en": MeteorParameters(0.85, 0.2, 0.6, 0.75, {"exact": 1.0, "stem": 0.6, "synonym": 0.8, "paraphrase": 0.6}),
    "es": MeteorParameters(0.65, 1.3, 0.5, 0.8, {"exact": 1.0, "stem": 0.8, "paraphrase": 0.6}),
    "fr": MeteorParameters(0.9, 1.4, 0.6, 0.65, {"exact": 1.0, "stem": 0.2, "paraphrase": 0.4}),
    "ru": MeteorParameters(0.75, 1.4, 0.7, 0.5, {"exact": 1.0, "stem": 0.5, "paraphrase": 0.5}),
}
"""Parameters by language."""
PARAPHRASE = "paraphrase"
SLOTS = 4  # number of matching modules in the statistics
FIELDS = 23  # number of statistics of a segment


def meteor_values(lang: str, rows: Statistics) -> NDArray[np.float64]:
    """Compute METEOR, times 100: the weighted F-mean of precision and recall with a fragmentation penalty.

    Statistics are (N, 23); scores are 0 where nothing matches.
    """
    tuned = LANGUAGES[lang]
    # (N, 4): content words of hypothesis and reference, then function words of both, over the weighted modules.
    matched = np.einsum("m,nmk->nk", tuned.weights, rows[:, 4:20].reshape(-1, SLOTS, 4))
    lengths, function_words = rows[:, :2], rows[:, 2:4]
    weighted = tuned.delta * matched[:, :2] + (1 - tuned.delta) * matched[:, 2:]
    total = tuned.delta * (lengths - function_words) + (1 - tuned.delta) * function_words
    is_positive = (weighted > 0).all(axis=1)
    precision, recall = (weighted[is_positive] / total[is_positive]).T
    f_mean = 1 / ((1 - tuned.alpha) / precision + tuned.alpha / recall)
    fragments = rows[is_positive, 20] / (rows[is_positive, 21:].sum(axis=1) / 2)
    values = np.zeros(len(rows))
    values[is_positive] = 100 * f_mean * (1 - tuned.gamma * fragments**tuned.beta)
    return values


def meteor_value(lang: str, totals: Statistics) -> float:
    """Compute METEOR, times 100, of summed statistics, (23,)."""
    return float(meteor_values(lang, totals[None])[0])
