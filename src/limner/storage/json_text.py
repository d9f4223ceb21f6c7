"""Values as JSON text, and texts as lines of a terminal or a table: control characters are escaped."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from typing import Any

_RANGES = r"\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""Ranges of a regular expression: control characters above ASCII, separators of lines, marks that reorder text, and
bytes of file names that are not UTF-8. The standard of JSON allows them in strings."""
_UNPRINTABLE = re.compile(f"[{_RANGES}]")
_CONTROLS = re.compile(rf"[\x00-\x1f{_RANGES}]")
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def to_json(value: object, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Write a value as JSON that every reader accepts.

    JSON has no NaN and no infinity: they are written as the strings "NaN", "Infinity" and "-Infinity", as in the
    records of a run, so that a reader distinguishes them from a value that is absent (null). NumPy's numbers and arrays
    are written as numbers and lists, and other objects, such as paths, as text.
    """
    text = json.dumps(_plain(value), ensure_ascii=False, indent=indent, sort_keys=sort_keys, allow_nan=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _plain(value: object) -> Any:  # noqa: ANN401 (any JSON value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key) if isinstance(key, float) else key: _plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if hasattr(value, "tolist"):  # NumPy's and PyTorch's numbers and arrays
        return _plain(value.tolist())
    return str(value)


def printable(value: object, *, keep: str = "") -> str:
    """Return a text in which control characters, except `keep`, and line separators are escaped."""
    return _CONTROLS.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), str(value))


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
        return printable(super().format(record), keep="\n")
