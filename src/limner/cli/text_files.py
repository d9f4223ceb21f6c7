"""Text files with one sentence per line, and standard input in their place."""

from __future__ import annotations

import sys
from pathlib import Path

from limner.errors import SettingsError
from limner.files import decode_utf8, read_bytes

STANDARD_INPUT = Path("-")


def read_lines(file: Path) -> list[str]:
    """Read lines of UTF-8 text; only line feeds separate lines, as other separators occur within sentences.

    Args:
        file: text file; `STANDARD_INPUT` for standard input.

    Raises:
        SettingsError: the file cannot be read or is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if file == STANDARD_INPUT else read_bytes(file)
    except OSError as error:
        raise SettingsError(
            f"{file}: cannot be read ({error.strerror}); expected a text file, one line per sentence"
        ) from None
    lines = decode_utf8(data, SettingsError, lambda line: f"{file}, line {line}").split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
