"""Fuzz every reader for FUZZ_MINUTES (five by default): `make fuzz`, or `python tests/fuzz/run.py TARGET...`.

Mutated files are read in forked processes with limits of time and memory. A case is a target and a number:
`python tests/fuzz/run.py image --case 17` repeats it. Inputs that fail are saved in `fuzz-failures/TARGET-NUMBER` with
the traceback; of failures at one place only the first is saved.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from random import Random

from mutation import mutate_folder
from targets import TARGETS

SECONDS = 20
"""Time limit of an input; a loaded machine needs several times what an idle one does."""
MEMORY = 3 << 30
"""Memory that a process may map besides what it has mapped when it starts."""
CASES = 40
"""Inputs that are read in one process."""


def prepare(folder: Path, names: list[str]) -> None:
    """Write the valid examples in a process of its own, because Lance starts threads that a fork would lose."""
    child = os.fork()
    if not child:
        status = 1
        try:
            _silence(folder / "prepare.log")
            for name in names:
                target, example = TARGETS[name], folder / "examples" / name
                example.parent.mkdir(exist_ok=True)
                target.make(example)
                copy = Path(shutil.copytree(example, folder / "check"))
                target.read(copy)  # a valid example is read
                shutil.rmtree(copy)
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    if os.waitpid(child, 0)[1]:
        sys.exit((folder / "prepare.log").read_text(errors="replace"))


def _silence(log: Path) -> None:
    """Write what is printed, also by libraries, to a file."""
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    warnings.filterwarnings("ignore")
    os.environ["RUST_BACKTRACE"] = "0"


class Fuzzer:
    """Reads mutated inputs, and counts and saves failures."""

    def __init__(self, folder: Path, failures: Path) -> None:
        self.folder, self.failures = folder, failures
        self.inputs: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.places: Counter[tuple[str, ...]] = Counter()

    def run(self, name: str, first: int, count: int) -> int:
        """Read inputs of a target in one process; return the number of those that were read."""
        log, current = self.folder / "log", self.folder / "current"
        current.write_text(str(first))
        child = os.fork()
        if not child:
            self._child(name, first, count, log, current)
        last, since = first, time.monotonic()
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            time.sleep(0.005)
            now = int(current.read_text() or last)
            if now != last:
                last, since = now, time.monotonic()
            if time.monotonic() - since > SECONDS:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                self._save(name, last, f"more than {SECONDS} seconds", log.read_text(errors="replace"))
                return last - first + 1
        last = int(current.read_text())
        if ended[1] == 0:
            return last - first
        text = log.read_text(errors="replace")
        kind = "exception" if os.WIFEXITED(ended[1]) else f"signal {os.WTERMSIG(ended[1])}"
        self._save(name, last, kind, text)
        return last - first + 1

    def _child(self, name: str, first: int, count: int, log: Path, current: Path) -> None:
        """Read inputs in this process until one fails; the number of the current one is in a file."""
        _silence(log)
        faulthandler.enable()
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
        for number in range(first, first + count):
            current.write_text(str(number))
            try:
                read_case(name, number, self.folder)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        current.write_text(str(first + count))
        os._exit(0)

    def _save(self, name: str, number: int, kind: str, text: str) -> None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        frames = [line for line in lines if line.startswith("File ") and "/limner/" in line]
        frame, last = frames[-1] if frames else "", lines[-1] if lines else ""
        self.failed[name] += 1
        self.places[place := (name, kind, frame, last.partition(":")[0])] += 1
        if self.places[place] > 1:
            return
        kept = self.failures / f"{name}-{number}"
        shutil.rmtree(kept, ignore_errors=True)
        mutated_example(name, number, self.folder, kept)
        (kept / "traceback.txt").write_text(f"{kind}\n{text[-20_000:]}")
        print(f"FAILED {name} ({kind}): {frame}: {last[:150]}\n  {kept}", flush=True)


def mutated_example(name: str, number: int, folder: Path, copy: Path) -> Path:
    """Write a mutated example of a target."""
    shutil.copytree(folder / "examples" / name, copy)
    mutate_folder(copy, Random(f"{name} {number}"))
    return copy


def read_case(name: str, number: int, folder: Path) -> None:
    """Read a mutated example; raises what is neither a result nor a `LimnerError` of one line."""
    from limner.errors import LimnerError

    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        copy = mutated_example(name, number, folder, Path(temporary) / "input")
        try:
            TARGETS[name].read(copy)
        except LimnerError as error:
            assert str(error) and "\n" not in str(error), f"more than one line: {error}"


warnings.filterwarnings("ignore", message="lance is not fork-safe")  # no thread of it runs before a fork


def main() -> int:
    """Fuzz until the time is over; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: {' '.join(TARGETS)}")
    parser.add_argument("--case", type=int, help="number of a single case to read in this process")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="number of the first case")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="folder of inputs that fail")
    arguments = parser.parse_args()
    names = arguments.targets or list(TARGETS)
    end = time.monotonic() + 60 * float(os.environ.get("FUZZ_MINUTES", "5"))
    import limner.features.repair
    import torch

    import limner.data.readers
    import limner.evaluation.evaluate
    import limner.features.encoders.load
    import limner.runs.records
    import limner.text.embeddings
    import limner.training.loop  # noqa: F401  (so that the forked processes need not)

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="limner-fuzz-") as temporary:
        fuzzer = Fuzzer(Path(temporary), arguments.failures)
        prepare(fuzzer.folder, names)
        if arguments.case is not None:
            read_case(names[0], arguments.case, fuzzer.folder)
            return 0
        following = dict.fromkeys(names, arguments.seed)
        while time.monotonic() < end:
            for name in names:
                done = fuzzer.run(name, following[name], CASES)
                following[name] += done
                fuzzer.inputs[name] += done
                if time.monotonic() >= end:
                    break
    for name in names:
        print(f"{name:28} {fuzzer.inputs[name]:8,} inputs {fuzzer.failed[name]:6,} failures")
    print(f"fuzz: {fuzzer.inputs.total():,} inputs from case {arguments.seed}, {fuzzer.failed.total():,} failures")
    return 1 if fuzzer.failed else 0


if __name__ == "__main__":
    sys.exit(main())
