"""Text files with one sentence per line, and standard input in their place."""

from __future__ import annotations

import sys
from pathlib import Path

from limner.errors import SettingsError
from limner.files import decode_utf8, read_bytes

STANDARD_INPUT = Path("-")
DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")
"""Where a shell passes the output of a command, as in `<(command)`."""


def read_lines(file: Path) -> list[str]:
    """Read lines of UTF-8 text; only line feeds separate lines, as other separators occur within sentences.

    Args:
        file: text file, or a pipe in `DESCRIPTORS`; `STANDARD_INPUT` for standard input.

    Raises:
        SettingsError: the file cannot be read or is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if file == STANDARD_INPUT else _read(file)
    except OSError as error:
        raise SettingsError(
            f"{file}: cannot be read ({error.strerror}); expected a text file, one line per sentence"
        ) from None
    lines = decode_utf8(data, SettingsError, lambda line: f"{file}, line {line}").split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def _read(file: Path) -> bytes:
    """Read a regular file or a pipe that a shell passed; other pipes may have no writer, and are refused."""
    return file.read_bytes() if str(file).startswith(DESCRIPTORS) else read_bytes(file)
