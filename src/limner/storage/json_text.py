"""JSON text: the one place where values are written as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

UNPRINTABLE = r"\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""Ranges of a regular expression: control characters above those of ASCII, separators of lines, marks that reorder
text, and bytes of file names that are not UTF-8. The standard of JSON allows them in strings."""
_UNPRINTABLE = re.compile(f"[{UNPRINTABLE}]")


def to_json(value: object, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Write a value as JSON that every reader accepts.

    JSON has no NaN and no infinity: they are written as the strings "NaN", "Infinity" and "-Infinity", as in the
    records of a run, so that a reader distinguishes them from a value that is absent (null). NumPy's numbers and arrays
    are written as numbers and lists, and other objects, such as paths, as text.

    Args:
        value: value to write.
        indent: number of spaces per level; None for one line.
        sort_keys: whether the keys of objects are sorted.
    """
    text = json.dumps(_plain(value), ensure_ascii=False, indent=indent, sort_keys=sort_keys, allow_nan=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(value: object) -> Any:  # noqa: ANN401 (any JSON value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key) if isinstance(key, float) else key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "tolist"):  # NumPy's and PyTorch's numbers and arrays
        return _plain(value.tolist())
    return str(value)
