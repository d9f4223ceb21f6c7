"""METEOR against the Java program in pycocoevalcap: parity by language and processor time, loading included."""

from __future__ import annotations

import gzip
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

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


def _cpu(command: list[str], text: str = "") -> tuple[float, str]:
    """Run a command; return the processor seconds of it and what it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout.decode()
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
        modules = data.modules(lang)
        command = [
            java,
            "-Dfile.encoding=UTF-8",
            "-Xmx2G",
            "-jar",
            str(data.folder() / data.ARCHIVE),
            "-",
            "-",
            "-stdio",
        ]
        command += ["-l", lang, "-norm", "-m", " ".join(modules)]
        if "paraphrase" in modules:
            command += ["-a", str(data.paraphrase_file(lang))]
        theirs_cpu, printed = _cpu(command, "".join(f"SCORE ||| {other} ||| {one}\n" for one, other in sample))
        theirs = np.array([[float(field) for field in line.split()] for line in printed.splitlines()])
        theirs[(theirs[:, :2] == theirs[:, 21:]).all(axis=1) & (theirs[:, 20] == 1), 20] = 0
        (work / "pairs").write_text("".join(f"{one}\t{other}\n" for one, other in sample), encoding="utf-8")
        ours_cpu = _ours(work, lang)
        ours = np.load(work / "ours.npy")
        equal = np.abs(meteor_values(lang, ours) - meteor_values(lang, theirs)) < 1e-2
        difference = meteor_value(lang, ours.sum(axis=0)) - meteor_value(lang, theirs.sum(axis=0))
        report(f"meteor_{lang}_equal", 100 * equal.mean(), "% of segments within 1e-4", ">= 99.9", pairs=len(sample))
        report(f"meteor_{lang}_corpus", difference, "points of the Java program", "within 0.01")
        report(f"meteor_{lang}_speed", theirs_cpu / ours_cpu, "processor time of Java / ours", ">= 1")
    shutil.rmtree(work)
