"""The runtime against torch: from the start of a process to a caption, photographs a second, and equal sentences.

Both sides are measured in one run, alternately, of the built-in captioner and what `limner export` writes of it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from limner.apps.export.folder import export
from limner.features.encoders.load import load_backbone_for
from limner.inference.captioner import Captioner
from limner.runs.pretrained import pretrained_run
from limner.runs.trained_model import load_trained_model
from limner.runtime.generators import ExportedCaptioner, load_captioner
from measuring import random_jpegs, real_data, report

PHOTOGRAPHS = 120
"""Photographs of the validation split of Flickr8k that are captioned."""
STARTS = 7
"""Processes of each command, after one that compiles byte code and reads the files."""
SEARCHES = {"greedy": {"beam_size": 1}, "beam_5": {"beam_size": 5}}


def runtime() -> None:
    """Run all measurements of the runtime."""
    with prepared() as (plain, exported, photographs):
        start_to_caption(exported, photographs[0])
        speed(plain, exported, photographs)
        sentences(plain, exported, photographs)


@contextmanager
def prepared() -> Iterator[tuple[Path, Path, list[Path]]]:
    """Yield the built-in captioner, its export, and photographs."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, data = Path(scratch), real_data()
        plain = pretrained_run()
        exported = export(plain, folder / "exported").folder
        yield plain, exported, random_jpegs(folder, PHOTOGRAPHS) if data is None else validation_photographs(data)


def validation_photographs(data: Path) -> list[Path]:
    """Return the first photographs of the validation split of Flickr8k."""
    from limner.data.readers import read_source

    items = [item for item in read_source("flickr", data / "flickr8k").items if item.split == "val"]
    return [data / "flickr8k" / "images" / Path(item.image or "").name for item in items[:PHOTOGRAPHS]]


def start_to_caption(exported: Path, photograph: Path) -> None:
    """Measure processes that caption one photograph, to their end."""
    limner_command = [sys.executable, "-m", "limner", "describe", str(photograph)]
    commands = {
        "runtime": limner_command,
        "describe_exported": [*limner_command, "--model", str(exported)],
        "describe": [*limner_command, "--backbone", "efficientnet-lite2"],  # which needs the run, and so torch
    }
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as byte_code:
        for _ in range(1 + STARTS):
            for name, command in commands.items():
                measured[name].append(process_times(command, byte_code))
    torch = np.median([wall for wall, _ in measured["describe"][1:]])
    for name, times in measured.items():
        wall, processor = np.array(times[1:]).T
        report(
            f"start_to_caption_{name}", float(np.median(wall)), "s from the start of a process to its end, median",
            "<= 0.8" if name == "runtime" else "-", least=round(float(wall.min()), 3),
            processor_seconds=round(float(np.median(processor)), 3),
            least_processor_seconds=round(float(processor.min()), 3),
            times_faster_than_describe=round(float(torch / np.median(wall)), 1), processes=STARTS,
        )  # fmt: skip


def process_times(command: Sequence[str], byte_code: str) -> tuple[float, float]:
    """Run a command; return its wall time and its processor time in seconds."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = byte_code
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def speed(plain: Path, exported: Path, photographs: Sequence[Path]) -> None:
    """Measure captions of files in batches of eight, in processes that run already."""
    captioners: dict[str, Captioner | ExportedCaptioner] = {
        "runtime": load_captioner(exported),
        "torch": Captioner.load(plain),
    }
    photographs = photographs[:64]
    for search, settings in SEARCHES.items():
        rates = {}
        for name, captioner in captioners.items():
            captioner.describe(photographs[:8], batch_size=8, **settings)
            start = time.perf_counter()
            captioner.describe(photographs, batch_size=8, **settings)
            rates[name] = len(photographs) / (time.perf_counter() - start)
        report(f"runtime_{search}", rates["runtime"], "images/s", "-", torch=round(rates["torch"], 1))


def sentences(plain: Path, exported: Path, photographs: Sequence[Path]) -> None:
    """Count photographs of which the runtime gives the sentences of torch, from files."""
    trained = load_trained_model(plain)
    sides: dict[str, tuple[Captioner, dict[str, Any]]] = {
        "fp32": (Captioner([trained], load_backbone_for(trained.config.features, None, precision="fp32")), {}),
        "default_precision": (Captioner.load(plain), {}),
    }
    runtime_captioner = load_captioner(exported)
    for search, settings in SEARCHES.items():
        found = runtime_captioner.describe(photographs, **settings)
        for name, (captioner, options) in sides.items():
            expected = captioner.describe(photographs, **options, **settings)
            pairs = [(one[0], other[0]) for one, other in zip(found, expected, strict=True)]
            same = [pair for pair in pairs if pair[0].text == pair[1].text]
            differences = [abs(one.log_prob - other.log_prob) for one, other in same]
            report(
                f"runtime_same_sentences_{search}_{name}", len(same), f"of {len(pairs)} photographs",
                str(len(pairs)) if name == "fp32" else "-",
                largest_difference_of_log_prob=float(f"{max(differences, default=0):.2g}"),
                different=[(one.text, other.text) for one, other in pairs if one.text != other.text][:3],
            )  # fmt: skip


if __name__ == "__main__":
    chosen = {"start": lambda a, b, c: start_to_caption(b, c[0]), "speed": speed, "sentences": sentences}
    with prepared() as arguments:
        for part in sys.argv[1:] or chosen:
            chosen[part](*arguments)
