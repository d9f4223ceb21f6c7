"""METEOR 1.5 (Denkowski and Lavie, 2014) through the Java program in pycocoevalcap (extra `coco`).

The program only counts: one run reads every segment and writes its statistics. The score is computed here
from their sum, so that resampling needs no Java; a parity test holds it to the program's own.

pycocoevalcap's Python wrapper is not used. It talks with the program sentence by sentence through pipes,
which block when the error pipe fills, lose step at a newline inside a sentence, and leave the program running
after an error.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from limner.metrics.base import Metric, MetricUnavailable, References, Statistics
from limner.metrics.caption import coco_module

logger = logging.getLogger(__name__)

# English parameters of METEOR 1.5, as `-l en` chooses them.
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
MODULE_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])  # exact, stem, synonym, paraphrase
FIELDS = 23
START_SECONDS, SECONDS_PER_SEGMENT = 120.0, 0.5


def meteor_statistics(hypotheses: Sequence[str], references: References) -> Statistics:
    """Align every hypothesis with its best reference.

    Returns:
        (N, 23), in the program's order: lengths, function words, matches of four modules (content words and
        function words, of hypothesis and reference), chunks, matched words.

    Raises:
        MissingExtraError: the extra `coco` is not installed.
        MetricUnavailable: there is no Java, or the program failed; says how.
    """
    package = Path(coco_module("meteor.meteor", "METEOR").__file__).resolve().parent
    java = shutil.which("java")
    if java is None:
        raise MetricUnavailable("METEOR needs Java, and there is no 'java' on the PATH: install a Java runtime")
    lines = [_line(hypothesis, own) for hypothesis, own in zip(hypotheses, references, strict=True)]
    # Java before 18 reads and writes in the locale's encoding unless told.
    command = [java, "-Dfile.encoding=UTF-8", "-Duser.language=en", "-Xmx2G"]
    command += ["-jar", str(package / "meteor-1.5.jar"), "-", "-", "-stdio", "-l", "en", "-norm"]
    # Left to itself it looks for this file beside the program, and fails where a blank is in the path.
    command += ["-a", str(package / "data" / "paraphrase-en.gz")]
    limit = START_SECONDS + SECONDS_PER_SEGMENT * len(lines)
    try:
        answer = subprocess.run(command, input="".join(lines).encode(), capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise MetricUnavailable(f"METEOR's Java program gave no answer in {limit:.0f} s") from None
    except OSError as error:
        raise MetricUnavailable(f"METEOR's Java program cannot be started: {error}") from None
    return _parse(answer, len(lines))


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


def meteor_value(totals: Statistics) -> float:
    """METEOR from summed statistics, times 100: a weighted F-mean lowered by how broken the match is.

    Args:
        totals: (23,).
    """
    hypothesis_length, reference_length, hypothesis_function, reference_function = totals[:4]
    chunks, hypothesis_matches, reference_matches = totals[20:]
    # One row a module: content words of hypothesis and reference, then function words of both.
    content_hypothesis, content_reference, function_hypothesis, function_reference = (
        float(matches) for matches in MODULE_WEIGHTS @ totals[4:20].reshape(4, 4)
    )

    def weigh(content: float, function: float) -> float:
        return DELTA * content + (1 - DELTA) * function

    matched_hypothesis = weigh(content_hypothesis, function_hypothesis)
    matched_reference = weigh(content_reference, function_reference)
    if matched_hypothesis == 0 or matched_reference == 0:
        return 0.0
    precision = matched_hypothesis / weigh(hypothesis_length - hypothesis_function, hypothesis_function)
    recall = matched_reference / weigh(reference_length - reference_function, reference_function)
    f_mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
    fragments = chunks / ((hypothesis_matches + reference_matches) / 2)
    return float(100 * f_mean * (1 - GAMMA * fragments**BETA))


def _settings() -> str:
    return f"meteor:1.5|lang:en|norm:yes|tok:given|scale:x100|pycocoevalcap:{version('pycocoevalcap')}"


METEOR = Metric("meteor", meteor_statistics, meteor_value, _settings)
