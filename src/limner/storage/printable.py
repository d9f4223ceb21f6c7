"""Texts as lines of a terminal or of a table: what would control a terminal or divide a line is escaped."""

from __future__ import annotations

import logging
import re

from limner.storage.json_text import UNPRINTABLE

_UNPRINTABLE = re.compile(rf"[\x00-\x1f{UNPRINTABLE}]")
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def printable(value: object, *, keep: str = "") -> str:
    r"""Return a name or a text with escapes such as `\x1b` for what would control a terminal or divide a line.

    Args:
        value: path, caption or other text, which may come from anywhere.
        keep: control characters that are kept.
    """
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), str(value))


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return _ESCAPES.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def tab_separated(*fields: object) -> str:
    """Return a line of fields that are separated by tabs; tabs and line feeds in a field are escaped."""
    return "\t".join(map(printable, fields))


class LineFormatter(logging.Formatter):
    """Format of messages without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return printable(super().format(record), keep="\n")
