"""Cases: a command, the files it meets, and what it must say; and the check that all of them share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import runner

Contents = bytes | str | Callable[[Path], object]
"""Contents of a file, or a function that creates or damages the file of a path."""
PROGRESS = re.compile(r".*(: \d+ s|\(\d+ %\))$")
"""Lines of progress of a command that takes more than ten seconds, as on a loaded machine."""
UNCLEAR = re.compile(r"Traceback|\b[A-Z]\w*(Error|Exception)\b|<class |object at 0x|Errno")
REMEDY = re.compile(
    r"\b(add|change|check|choose|convert|copy|correct|create|delete|did you mean|download|expected|free|give|import|"
    r"install|leave|list|lower|make|names?|put|raise|remove|rename|repeat|replace|restore|run|save|see|set|should be|"
    r"specify|store|train|use|write)\b"
)
LONGEST = 1200
"""Characters of a line that can still be read."""


class Case(NamedTuple):
    """A command and what is expected of it."""

    command: str
    """Arguments of limner, as in a shell."""
    names: tuple[str, ...]
    """What the error names: the thing, the value, and words of the remedy; of a command that succeeds, its output."""
    files: Mapping[str, Contents]
    """Files that are written before, by their paths."""
    status: int
    """Exit status."""
    creates: tuple[str, ...]
    """Files and folders that may be created or changed, with what is in them."""
    stdin: bytes
    """Contents of standard input."""


def case(
    command: str,
    *names: str,
    files: Mapping[str, Contents] | None = None,
    status: int = 1,
    creates: str | tuple[str, ...] = (),
    stdin: bytes = b"",
) -> Case:
    """Return a case; see the fields of `Case`."""
    return Case(command, names, files or {}, status, (creates,) if isinstance(creates, str) else creates, stdin)


def for_all(*cases: Case) -> pytest.MarkDecorator:
    """Parametrize a test by cases."""
    return pytest.mark.parametrize("case", [pytest.param(one, id=name_of(one)) for one in cases])


def check_all(*cases: Case) -> Callable[[Case, Path], None]:
    """Return a test of what all commands have in common, for cases."""

    @for_all(*cases)
    def test(case: Case, work: Path) -> None:
        check(case, work)

    return test


def name_of(one: Case) -> str:
    """Return the name of a case in the output of the tests."""
    files = " ".join(one.files)
    command = one.command if len(one.command) < 90 else f"{one.command[:60]} ... {one.command[-25:]}"
    return re.sub(r"[^ -~]", "?", f"{command} | {files[:40]}" if files else command)


def check(one: Case, work: Path) -> runner.Outcome:
    """Run the command of a case in a folder and check everything that holds for all commands."""
    for name, contents in one.files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(contents):
            contents(path)
        else:
            path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    before = runner.contents(work)
    outcome = runner.run(shlex.split(one.command), work, stdin=one.stdin)
    changed = runner.changes(before, runner.contents(work))
    check_outcome(outcome, one)
    unexpected = [change for change in changed if not _allowed(change, one.creates)]
    assert not unexpected, "files have changed"
    if "--json" in one.command and (outcome.stdout or one.status == 0):
        assert runner.valid_json(outcome.stdout), outcome.stdout[:500]
    return outcome


def _allowed(change: str, creates: tuple[str, ...]) -> bool:
    _, _, path = change.partition(" ")
    return any(path == one or path.startswith(f"{one}/") for one in creates)


def check_outcome(outcome: runner.Outcome, one: Case) -> None:
    """Check the exit status, the streams, the time and the memory of a command."""
    assert outcome.status == one.status, (outcome.stdout[-500:], outcome.stderr[-2000:])
    assert outcome.seconds < runner.SECONDS
    assert outcome.peak < runner.PEAK, f"{outcome.peak >> 20} MiB"
    assert "Traceback" not in outcome.stdout + outcome.stderr
    assert "\x1b" not in outcome.stdout + outcome.stderr, "control characters reach the terminal"
    if one.status == 0:
        missing = [name for name in one.names if name not in " ".join((outcome.stdout + outcome.stderr).split())]
        assert not missing, (missing, outcome.stdout, outcome.stderr)
        return
    line = error_line(outcome)
    missing = [name for name in one.names if name not in line]
    assert not missing, (missing, line)


def error_line(outcome: runner.Outcome) -> str:
    """Return the only line of standard error, which is clear."""
    lines = [line for line in outcome.stderr.splitlines() if not PROGRESS.fullmatch(line)]
    if outcome.stdout:  # warnings about the inputs that could be read
        lines = [line for line in lines if not line.startswith("WARNING")]
    assert len(lines) == 1, lines
    line = lines[0]
    assert line.startswith("error: "), line
    assert len(line) < LONGEST, line
    assert not UNCLEAR.search(line), line
    assert REMEDY.search(line), f"no remedy: {line}"
    return line
