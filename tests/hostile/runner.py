"""Run commands in processes that are forked from one that has already imported Limner, and compare folders."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import resource
import stat
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SECONDS = 60.0
"""Time limit of a command; a loaded machine needs several times what an idle one does."""
PEAK = 2 << 30
"""Limit of the resident memory of a command in bytes; that of an idle process with torch is a quarter of it."""
PRELOADED = ("torch", "limner.cli", "limner.inference.load", "limner.evaluation.evaluate", "limner.training.loop")


class Outcome(NamedTuple):
    """What a command did."""

    status: int | None
    """Exit status; None if the command was stopped at the time limit."""
    stdout: bytes
    stderr: bytes
    seconds: float
    peak: int
    """Resident memory in bytes."""

    @property
    def error_lines(self) -> list[str]:
        """Lines of standard error."""
        return self.stderr.decode("utf-8", "backslashreplace").splitlines()


def run(arguments: Sequence[str], folder: Path, *, stdin: bytes = b"", seconds: float = SECONDS) -> Outcome:
    """Run `limner ARGUMENTS` in a folder, with its files outside of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    scratch = folder.with_name(f"{folder.name}-output")
    scratch.mkdir(exist_ok=True)
    (scratch / "stdin").write_bytes(stdin)
    process = context.Process(target=_command, args=([*map(str, arguments)], str(folder), str(scratch)))
    began = time.monotonic()
    process.start()
    process.join(seconds)
    stopped = process.is_alive()
    if stopped:
        process.kill()
        process.join()
    peak = scratch / "peak"
    return Outcome(
        None if stopped else process.exitcode,
        (scratch / "stdout").read_bytes(),
        (scratch / "stderr").read_bytes(),
        time.monotonic() - began,
        int(peak.read_text()) if peak.exists() else 0,
    )


def _command(arguments: list[str], folder: str, scratch: str) -> None:
    """Run a command in this process, with the standard streams in files, and exit."""
    for descriptor, name, flags in ((0, "stdin", os.O_RDONLY), (1, "stdout", None), (2, "stderr", None)):
        opened = os.open(f"{scratch}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC if flags is None else flags)
        os.dup2(opened, descriptor)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    sys.argv = ["limner", *arguments]
    from limner.cli import main

    status = 1
    try:
        main()
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    Path(scratch, "peak").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    os._exit(status)


def contents(folder: Path) -> dict[str, str]:
    """Return what identifies each file below a folder: its kind, and the digest of its contents or its target."""
    return {str(path.relative_to(folder)): _identity(path) for path in sorted(folder.rglob("*"))}


def _identity(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"link to {path.readlink()}"
    if stat.S_ISREG(mode):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return "folder" if stat.S_ISDIR(mode) else f"special {stat.S_IFMT(mode):o}"


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Describe every file that was changed, removed or created."""
    found = [f"removed {name}" for name in before.keys() - after.keys()]
    found += [f"changed {name}" for name in before.keys() & after.keys() if before[name] != after[name]]
    return sorted(found + [f"created {name}" for name in after.keys() - before.keys()])


def valid_json(data: bytes) -> bool:
    """Whether the data are JSON as the standard defines it, without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(data, parse_constant=refuse)
    except ValueError:
        return False
    return True
