"""Run commands through `server.py`, and compare folders before and after."""

from __future__ import annotations

import hashlib
import json
import stat
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

SECONDS = 30.0
"""Time limit of a command; a loaded machine needs several times what an idle one does."""
PEAK = 2 << 30
"""Limit of the resident memory of a command in bytes; that of an idle process with torch is a quarter of it."""


class Outcome(NamedTuple):
    """What a command did."""

    status: int | None
    """Exit status, negative for a signal; None if the command was stopped at the time limit."""
    stdout: str
    stderr: str
    seconds: float
    peak: int
    """Largest resident memory in bytes."""


@cache
def _server() -> subprocess.Popen[str]:
    """Start the server, which ends with this process because its standard input does."""
    command = [sys.executable, str(Path(__file__).with_name("server.py"))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def close() -> None:
    """End the server."""
    if _server.cache_info().currsize:
        with _server() as server:
            server.stdin.close()
        _server.cache_clear()


def run(
    arguments: Sequence[str],
    folder: Path,
    *,
    stdin: bytes = b"",
    streams: Path | None = None,
    seconds: float = SECONDS,
    file_size: int | None = None,
    uid: int | None = None,
    count_events: Path | None = None,
    kill_at: int | None = None,
    kill_after: float | None = None,
) -> Outcome:
    """Run `limner ARGUMENTS` in a folder.

    Args:
        arguments: arguments of the command.
        folder: current folder of the command.
        stdin: contents of standard input.
        streams: folder of the files of its streams and of temporary files; by default beside the folder.
        seconds: time limit.
        file_size: largest size of a written file in bytes; writes beyond it fail as on a full disk.
        uid: user that the command runs as; only the administrator can choose one.
        count_events: file that the number of operations that change files is written to.
        kill_at: number of the operation before which the command is killed.
        kill_after: seconds after which the command is killed.
    """
    streams = streams or folder.with_name(f"{folder.name}-streams")
    streams.mkdir(exist_ok=True)
    for name, data in (("stdin", stdin), ("stdout", b""), ("stderr", b"")):
        (streams / name).write_bytes(data)
    request = {
        "arguments": [str(argument) for argument in arguments],
        "folder": str(folder),
        "streams": str(streams),
        "seconds": seconds,
        "file_size": file_size,
        "uid": uid,
        "count_events": None if count_events is None else str(count_events),
        "kill_at": kill_at,
        "kill_after": kill_after,
    }
    server = _server()
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    status, took, peak = json.loads(server.stdout.readline())
    stdout, stderr = (
        (streams / name).read_bytes().decode("utf-8", "backslashreplace") for name in ("stdout", "stderr")
    )
    return Outcome(status, stdout, stderr, took, peak)


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


def valid_json(text: str) -> bool:
    """Whether a text is JSON as the standard defines it, without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True
