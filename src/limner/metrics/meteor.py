"""METEOR 1.5 (Denkowski and Lavie, 2014), computed with the Java program in pycocoevalcap (extra `coco`).

One run of the program computes the statistics of all segments. The score is computed here from their sum, so that
resampling needs no Java; a parity test compares it with the score of the program.

METEOR has parameters, stemmers and function words for the languages in `LANGUAGES`. pycocoevalcap contains the
paraphrase table for English only. For other languages the paraphrase module is used if the table of METEOR 1.5, for
example paraphrase-de.gz, is in the same folder; the signature lists the modules.

The Python wrapper of pycocoevalcap is not used: it exchanges single sentences with the program through pipes, which
block when the pipe of standard error is full, get out of step at a newline within a sentence, and leave the program
running after an error.
"""

from __future__ import annotations

import logging
import os
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


class MeteorParameters(NamedTuple):
    """Parameters of METEOR 1.5 for a language, as selected by its option `-l`."""

    alpha: float
    """Weight of precision in the F-mean."""
    beta: float
    """Exponent of the fragmentation."""
    gamma: float
    """Maximum of the fragmentation penalty."""
    delta: float
    """Weight of content words; that of function words is 1 - delta."""
    modules: Mapping[str, float]
    """Weights of the matching modules in the order of their application; paraphrases are last."""

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weights of the module slots of the program, (4,); unused slots have no matches."""
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
SLOTS = 4
"""Number of matching modules in the statistics."""
FIELDS = 23
"""Number of statistics of a segment."""
PARAPHRASE = "paraphrase"
START_SECONDS, SECONDS_PER_SEGMENT = 120.0, 0.5


def meteor_in(lang: str) -> Metric:
    """Return METEOR for a language; `statistics` raises MetricUnavailable if the language is not supported."""
    return Metric("meteor", partial(meteor_statistics, lang), partial(meteor_value, lang), partial(_settings, lang))


def meteor_statistics(lang: str, hypotheses: Sequence[str], references: References) -> Statistics:
    """Compute the METEOR statistics of every segment with its best reference.

    Args:
        lang: a key of `LANGUAGES`.
        hypotheses: N hypotheses as tokens joined by spaces.
        references: N lists of references in the same form.

    Returns:
        (N, 23) in the order of the program: lengths, function words, matches of four modules (content words and
        function words of hypothesis and reference), chunks, matched words.

    Raises:
        MissingExtraError: the extra `coco` is not installed.
        MetricUnavailable: the language is not supported, there is no Java, or the program failed.
    """
    if lang not in LANGUAGES:
        raise MetricUnavailable(f"METEOR does not support language '{lang}': expected one of {', '.join(LANGUAGES)}")
    package = _package()
    java = find_java()
    if java is None:
        place = f"in JAVA_HOME, {os.environ['JAVA_HOME']}" if os.environ.get("JAVA_HOME") else "on the PATH"
        raise MetricUnavailable(f"METEOR needs Java: found no 'java' {place}; install a Java runtime")
    lines = [_line(hypothesis, own) for hypothesis, own in zip(hypotheses, references, strict=True)]
    # Java before version 18 uses the encoding of the locale by default.
    command = [java, "-Dfile.encoding=UTF-8", "-Duser.language=en", "-Xmx2G"]
    command += ["-jar", str(package / "meteor-1.5.jar"), "-", "-", "-stdio", "-l", lang, "-norm"]
    modules = _modules(lang)
    command += ["-m", " ".join(modules)]
    if PARAPHRASE in modules:
        # By default the program searches for the file in its own folder, which fails if the path contains a space.
        command += ["-a", str(_paraphrases(lang))]
    limit = START_SECONDS + SECONDS_PER_SEGMENT * len(lines)
    try:
        process = subprocess.run(
            command, input="".join(lines).encode(), capture_output=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise MetricUnavailable(f"METEOR's Java program did not finish within {limit:.0f} s") from None
    except OSError as error:
        raise MetricUnavailable(f"METEOR's Java program cannot be started: {error}") from None
    return _parse(process, len(lines))


def find_java() -> str | None:
    """Return the path of the Java program: that of JAVA_HOME if this variable is set, or else the first on the PATH."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin") if home else None)


def _package() -> Path:
    return Path(coco_module("meteor.meteor", "METEOR").__file__).resolve().parent


def _paraphrases(lang: str) -> Path:
    return _package() / "data" / f"paraphrase-{'cz' if lang == 'cs' else lang}.gz"  # METEOR's code for Czech


def _modules(lang: str) -> list[str]:
    """Return the modules whose data are available."""
    return [module for module in LANGUAGES[lang].modules if module != PARAPHRASE or _paraphrases(lang).exists()]


def _line(hypothesis: str, references: Sequence[str]) -> str:
    """Format a segment for the program: one line with its sentences separated by '|||'."""
    clean = (" ".join(text.replace("|||", " ").split()) for text in (*references, hypothesis))
    return " ||| ".join(["SCORE", *clean]) + "\n"


def _parse(process: subprocess.CompletedProcess[bytes], segments: int) -> Statistics:
    try:
        rows = [[float(field) for field in line.split()] for line in process.stdout.decode().splitlines()]
        statistics = np.array(rows, dtype=np.float64).reshape(segments, FIELDS)
    except ValueError:
        lines = process.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[0] if lines else "no error message"
        raise MetricUnavailable(f"METEOR's Java program failed (exit status {process.returncode}): {reason}") from None
    lengths, matches, chunks = statistics[:, :2], statistics[:, 21:], statistics[:, 20]
    # A segment that is matched completely in one chunk has no fragmentation; the program aggregates it the same way.
    whole = (lengths == matches).all(axis=1) & (chunks == 1)
    statistics[whole, 20] = 0
    return statistics


def meteor_value(lang: str, totals: Statistics) -> float:
    """Compute METEOR, times 100: the weighted F-mean of precision and recall with a fragmentation penalty.

    Args:
        lang: a key of `LANGUAGES`.
        totals: summed statistics, (23,).
    """
    tuned = LANGUAGES[lang]
    hypothesis_length, reference_length, hypothesis_function, reference_function = totals[:4]
    chunks, hypothesis_matches, reference_matches = totals[20:]
    # One row for each module: content words of hypothesis and reference, then function words of both.
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
