"""Reading of JSON with bounded nesting and size, and one-line messages that the reader of YAML shares.

The text of a file is untrusted data. A few kilobytes of brackets exhaust the stack of a recursive program; they are
refused before values are built. A key that occurs twice in one mapping is refused as well; the libraries would keep its
last value.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from limner.files import open_file

MAX_DEPTH = 64
"""Maximum depth of nested lists and mappings."""
HALF_PAIR = "has one half of a surrogate pair (\\ud800 to \\udfff)"
"""Message for a text with half of a surrogate pair, which UTF-8 cannot encode."""
_HALF = re.compile("[\ud800-\udfff]")
_CONTAINERS = (dict, list)
MAX_JSON_BYTES = 1 << 30
"""Maximum size of a JSON file of a run, a backbone or a feature table; corpora are limited by the memory alone."""


class StructureError(ValueError):
    """A text is not YAML or JSON, or is too large or nested too deeply; the message is one line."""

    def __init__(self, reason: str, line: int | None = None, place: str | None = None) -> None:
        super().__init__(reason)
        self.line = line
        """Number of the line, from 1, if it is known."""
        self.place = place
        """Keys to the value that is wrong, such as `messages.0.content`, if they are known."""


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401  (any JSON value)
    """Read JSON.

    Raises:
        StructureError: the text is not valid, nested deeper than `MAX_DEPTH`, has a key twice in one object, or a text
            with one half of a surrogate pair.
    """
    try:
        text = text.decode(json.detect_encoding(text), "surrogatepass") if isinstance(text, bytes) else text
        value = json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise StructureError(f"not valid JSON: {error.msg}", error.lineno) from None
    except RecursionError:
        raise StructureError(depth_message()) from None
    except StructureError:
        raise
    except ValueError as error:  # bytes that are not UTF-8, integers of 5,000 digits
        raise StructureError(f"not valid JSON: {one_line(str(error))}") from None
    _require_depth(value)
    has_surrogates = "\\ud" in text or "\\uD" in text or (not text.isascii() and _HALF.search(text))
    if has_surrogates and (place := half_pair_in(value)) is not None:
        raise StructureError(f"not valid JSON: {place or 'the text'} {HALF_PAIR}", place=place)
    return value


def _require_depth(value: object) -> None:
    containers: list[Any] = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        containers = [
            child
            for container in containers
            for child in (container.values() if type(container) is dict else container)
            if type(child) in _CONTAINERS
        ]
    if containers:
        raise StructureError(depth_message())


def half_pair_in(value: object, place: str = "") -> str | None:
    """Return the place of the first text with half of a surrogate pair; None without such a text.

    A place has the form `messages.0.content`; for a key with half a pair it is the escaped key.
    """
    if isinstance(value, str):
        return place if _HALF.search(value) else None
    if isinstance(value, dict):
        for key, child in value.items():
            below = f"{place}.{key}" if place else str(key)
            if _HALF.search(below):
                return below.encode("utf-8", "backslashreplace").decode()
            if (half_pair := half_pair_in(child, below)) is not None:
                return half_pair
    if isinstance(value, list):
        for index, child in enumerate(value):
            if (half_pair := half_pair_in(child, f"{place}.{index}" if place else str(index))) is not None:
                return half_pair
    return None


def read_json_file(path: Path) -> Any:  # noqa: ANN401  (any JSON value)
    """Read a JSON file of a run, a backbone or a feature table; OSError, or StructureError as `parse_json`."""
    with open_file(path) as stream:
        if (size := os.fstat(stream.fileno()).st_size) > MAX_JSON_BYTES:
            raise StructureError(f"expected at most {MAX_JSON_BYTES:,} bytes, found {size:,}")
        return parse_json(stream.read())


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise StructureError(repeated_key_message(key))
    return values


def repeated_key_message(key: str) -> str:
    """Return the message for a key that occurs twice."""
    return f"the key '{key}' occurs twice in one mapping; remove one of the two"


def depth_message() -> str:
    """Return the message for a text that is nested too deeply."""
    return f"expected at most {MAX_DEPTH} lists and mappings within each other, found more"


def one_line(text: str) -> str:
    """Return the beginning of a message of a library as one line."""
    return re.sub(r"\s+", " ", text).strip()[:300]
