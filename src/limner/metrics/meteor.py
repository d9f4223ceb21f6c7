"""METEOR 1.5 (Denkowski and Lavie, 2014) through the Java program in pycocoevalcap (extra `coco`).

The program only counts: one run reads every segment and writes its statistics. The score is computed here
from their sum, so that resampling needs no Java; a parity test holds it to the program's own.

Its parameters, stemmers and lists of function words are there for the languages in `LANGUAGES`. Of the tables of
paraphrases, pycocoevalcap brings the English one only: for the other languages that module is left out, and the
signature says which modules ran, unless METEOR 1.5's own paraphrase-de.gz, say, lies beside the English one.

pycocoevalcap's Python wrapper is not used. It talks with the program sentence by sentence through pipes,
which block when the error pipe fills, lose step at a newline inside a sentence, and leave the program running
after an error.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.metrics.base import Metric, MetricUnavailable, References, Statistics
from limner.metrics.caption import coco_module

logger = logging.getLogger(__name__)


class Tuning(NamedTuple):
    """How METEOR 1.5 was tuned to a language, as `-l` chooses it."""

    alpha: float
    beta: float
    gamma: float
    delta: float
    modules: Mapping[str, float]
    """The weight of a match by each module, in the order in which they are tried; the paraphrases come last."""

    @property
    def weights(self) -> NDArray[np.float64]:
        """Of the program's slots for modules, (4,); a slot that is not used has no matches."""
        return np.array([*self.modules.values(), 0.0, 0.0, 0.0])[:SLOTS]


LANGUAGES = {
    "cs": Tuning(0.95, 0.2, 0.6, 0.8, {"exact": 1.0, "paraphrase": 0.4}),
    "de": Tuning(0.95, 1.0, 0.55, 0.55, {"exact": 1.0, "stem": 0.8, "paraphrase": 0.2}),
    "en": Tuning(0.85, 0.2, 0.6, 0.75, {"exact": 1.0, "stem": 0.6, "synonym": 0.8, "paraphrase": 0.6}),
    "es": Tuning(0.65, 1.3, 0.5, 0.8, {"exact": 1.0, "stem": 0.8, "paraphrase": 0.6}),
    "fr": Tuning(0.9, 1.4, 0.6, 0.65, {"exact": 1.0, "stem": 0.2, "paraphrase": 0.4}),
    "ru": Tuning(0.75, 1.4, 0.7, 0.5, {"exact": 1.0, "stem": 0.5, "paraphrase": 0.5}),
}
SLOTS = 4
FIELDS = 23
PARAPHRASE = "paraphrase"
START_SECONDS, SECONDS_PER_SEGMENT = 120.0, 0.5


def meteor_in(lang: str) -> Metric:
    """METEOR of sentences in a language; one that it does not know is found out when it counts."""
    return Metric("meteor", partial(meteor_statistics, lang), partial(meteor_value, lang), partial(_settings, lang))


def meteor_statistics(lang: str, hypotheses: Sequence[str], references: References) -> Statistics:
    """Align every hypothesis with its best reference.

    Args:
        lang: a key of `LANGUAGES`.
        hypotheses: tokens joined by blanks, N of them.
        references: N lists of sentences in the same form.

    Returns:
        (N, 23), in the program's order: lengths, function words, matches of four modules (content words and
        function words, of hypothesis and reference), chunks, matched words.

    Raises:
        MissingExtraError: the extra `coco` is not installed.
        MetricUnavailable: METEOR does not know the language, there is no Java, or the program failed; says how.
    """
    if lang not in LANGUAGES:
        raise MetricUnavailable(f"METEOR does not know the language '{lang}'; it knows {', '.join(LANGUAGES)}")
    package = _package()
    java = shutil.which("java")
    if java is None:
        raise MetricUnavailable("METEOR needs Java, and there is no 'java' on the PATH: install a Java runtime")
    lines = [_line(hypothesis, own) for hypothesis, own in zip(hypotheses, references, strict=True)]
    # Java before 18 reads and writes in the locale's encoding unless told.
    command = [java, "-Dfile.encoding=UTF-8", "-Duser.language=en", "-Xmx2G"]
    command += ["-jar", str(package / "meteor-1.5.jar"), "-", "-", "-stdio", "-l", lang, "-norm"]
    modules = _modules(lang)
    command += ["-m", " ".join(modules)]
    if PARAPHRASE in modules:
        # Left to itself it looks for this file beside the program, and fails where a blank is in the path.
        command += ["-a", str(_paraphrases(lang))]
    limit = START_SECONDS + SECONDS_PER_SEGMENT * len(lines)
    try:
        answer = subprocess.run(command, input="".join(lines).encode(), capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise MetricUnavailable(f"METEOR's Java program gave no answer in {limit:.0f} s") from None
    except OSError as error:
        raise MetricUnavailable(f"METEOR's Java program cannot be started: {error}") from None
    return _parse(answer, len(lines))


def _package() -> Path:
    return Path(coco_module("meteor.meteor", "METEOR").__file__).resolve().parent


def _paraphrases(lang: str) -> Path:
    return _package() / "data" / f"paraphrase-{'cz' if lang == 'cs' else lang}.gz"  # the program's name of Czech


def _modules(lang: str) -> list[str]:
    """The modules that can run here."""
    return [module for module in LANGUAGES[lang].modules if module != PARAPHRASE or _paraphrases(lang).exists()]


def _line(hypothesis: str, references: Sequence[str]) -> str:
    """One segment in the program's protocol, where a line ends a segment and '|||' a sentence."""
    clean = (" ".join(text.replace("|||", " ").split()) for text in (*references, hypothesis))
    return " ||| ".join(["SCORE", *clean]) + "\n"


def _parse(answer: subprocess.CompletedProcess[bytes], segments: int) -> Statistics:
    try:
        rows = [[float(field) for field in line.split()] for line in answer.stdout.decode().splitlines()]
        statistics = np.array(rows, dtype=np.float64).reshape(segments, FIELDS)
    except ValueError:
        said = answer.stderr.decode(errors="replace").strip().splitlines()
        why = said[0] if said else "it said nothing"
        raise MetricUnavailable(f"METEOR's Java program failed (exit status {answer.returncode}): {why}") from None
    lengths, matches, chunks = statistics[:, :2], statistics[:, 21:], statistics[:, 20]
    # A segment matched whole is in one piece and is not to be punished for it; the program sums it so too.
    whole = (lengths == matches).all(axis=1) & (chunks == 1)
    statistics[whole, 20] = 0
    return statistics


def meteor_value(lang: str, totals: Statistics) -> float:
    """METEOR from summed statistics, times 100: a weighted F-mean lowered by how broken the match is.

    Args:
        lang: a key of `LANGUAGES`.
        totals: (23,).
    """
    tuned = LANGUAGES[lang]
    hypothesis_length, reference_length, hypothesis_function, reference_function = totals[:4]
    chunks, hypothesis_matches, reference_matches = totals[20:]
    # One row a module: content words of hypothesis and reference, then function words of both.
    content_hypothesis, content_reference, function_hypothesis, function_reference = (
        float(matches) for matches in tuned.weights @ totals[4:20].reshape(SLOTS, 4)
    )

    def weigh(content: float, function: float) -> float:
        return tuned.delta * content + (1 - tuned.delta) * function

    matched_hypothesis = weigh(content_hypothesis, function_hypothesis)
    matched_reference = weigh(content_reference, function_reference)
    if matched_hypothesis == 0 or matched_reference == 0:
        return 0.0
    precision = matched_hypothesis / weigh(hypothesis_length - hypothesis_function, hypothesis_function)
    recall = matched_reference / weigh(reference_length - reference_function, reference_function)
    f_mean = 1 / ((1 - tuned.alpha) / precision + tuned.alpha / recall)
    fragments = chunks / ((hypothesis_matches + reference_matches) / 2)
    return float(100 * f_mean * (1 - tuned.gamma * fragments**tuned.beta))


def _settings(lang: str) -> str:
    modules = ",".join(_modules(lang))
    return (
        f"meteor:1.5|lang:{lang}|modules:{modules}|norm:yes|tok:given|scale:x100|"
        f"pycocoevalcap:{version('pycocoevalcap')}"
    )


METEOR = meteor_in("en")
