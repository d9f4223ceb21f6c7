"""METEOR against the Java program in pycocoevalcap: parity by language and processor time, loading included."""

from __future__ import annotations

import gzip
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from limner.metrics.meteor import data, meteor_value, meteor_values
from measuring import real_data, report

PAIRS = int(os.environ.get("METEOR_PAIRS", "20000"))
"""Pairs of each language."""
OURS = """
import sys
import numpy as np
from limner.metrics.meteor import meteor_statistics
lines = [line.rstrip("\\n").split("\\t") for line in open(sys.argv[2], encoding="utf-8")]
np.save(sys.argv[3], meteor_statistics(sys.argv[1], [one for one, _ in lines], [[other] for _, other in lines]))
"""


def pairs(folder: Path, lang: str) -> list[tuple[str, str]]:
    """Pair sentences of one image (en, de) or of two (fr, cs), six of ten replaced by changed copies of the other."""

    def read(name: str) -> list[str]:
        with gzip.open(folder / "multi30k" / name, "rt", encoding="utf-8") as file:
            return [" ".join(line.split()) for line in file]

    if lang in ("en", "de"):
        one, other = (read(f"task2/train.{number}.{lang}.gz")[:PAIRS] for number in (1, 2))
    else:
        one = read(f"task1/train.{lang}.gz")[:PAIRS]
        other = [*one[1:], one[0]]
    changed = [_changed(a, b, n % 10) for n, (a, b) in enumerate(zip(one, other, strict=True))]
    return list(zip(changed, other, strict=True))


def _changed(own: str, other: str, kind: int) -> str:
    """Return the sentence, or the other one reversed, doubled, with words missing, in another order or from both."""
    words = other.split()
    copies = {
        0: words[::-1],
        1: words + words,
        2: [word for n, word in enumerate(words) if n % 4],
        3: words[len(words) // 2 :] + words[: len(words) // 2],
        4: own.split()[::2] + words[1::2],
        5: words[1::2] + words[::2],
    }
    return " ".join(copies.get(kind, own.split()))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file with a sentence on each line."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def java_command(java: str, lang: str, hypotheses: Path, references: Path) -> list[str]:
    """Return the command that scores a file of hypotheses with the parameters and modules of the program.

    Its modules are restricted to ours where there is no paraphrase table.
    """
    command = [java, "-Dfile.encoding=UTF-8", "-Xmx2G", "-jar", str(data.folder() / data.ARCHIVE)]
    command += [str(hypotheses), str(references), "-l", lang, "-norm"]
    table = data.paraphrase_file(lang)
    return [*command, "-a", str(table)] if table.exists() else [*command, "-m", " ".join(data.modules(lang))]


def printed_scores(printed: str) -> tuple[NDArray[np.float64], float]:
    """Read the scores of the segments, (N,), and of the corpus from what the program prints, times 100."""
    segments = re.findall(r"^Segment \d+ score:\s+(\S+)$", printed, re.MULTILINE)
    (final,) = re.findall(r"^Final score:\s+(\S+)$", printed, re.MULTILINE)
    return 100 * np.array(segments, dtype=float), 100 * float(final)


def _cpu(command: list[str]) -> tuple[float, str]:
    """Run a command; return the processor seconds of it and what it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, printed


def _ours(work: Path, lang: str) -> float:
    """Score the pairs of a folder in a process of its own; return its processor seconds."""
    return _cpu([sys.executable, "-c", OURS, lang, str(work / "pairs"), str(work / "ours.npy")])[0]


def meteor() -> None:
    """Compare METEOR with the Java program; without Java or the real data nothing is measured."""
    folder, java = real_data(), shutil.which("java")
    if folder is None or java is None:
        return
    work = Path(os.environ.get("TMPDIR", "/tmp")) / f"meteor-{os.getpid()}"
    work.mkdir()
    (work / "pairs").write_text("a dog\tthe dogs\n", encoding="utf-8")
    _ours(work, "en")  # compiles the search, which numba stores
    for lang in ("en", "de", "fr", "cs"):
        sample = pairs(folder, lang)
        hypotheses, references = work / "hypotheses", work / "references"
        write_lines(hypotheses, (one for one, _ in sample))
        write_lines(references, (other for _, other in sample))
        theirs_cpu, printed = _cpu(java_command(java, lang, hypotheses, references))
        theirs, theirs_corpus = printed_scores(printed)
        write_lines(work / "pairs", ("\t".join(pair) for pair in sample))
        ours_cpu = _ours(work, lang)
        ours = np.load(work / "ours.npy")
        equal = np.abs(meteor_values(lang, ours) - theirs) < 1e-2
        difference = meteor_value(lang, ours.sum(axis=0)) - theirs_corpus
        report(f"meteor_{lang}_equal", 100 * equal.mean(), "% of segments within 1e-4", ">= 99.9", pairs=len(sample))
        report(f"meteor_{lang}_corpus", difference, "points of the Java program", "within 0.01")
        report(f"meteor_{lang}_speed", theirs_cpu / ours_cpu, "processor time of Java / ours", ">= 1")
    shutil.rmtree(work)
