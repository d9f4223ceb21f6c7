"""The one reader of YAML and JSON: nesting, size and references are bounded, and every fault is one line.

The text of a file is untrusted data. A few kilobytes of YAML can describe gigabytes (references to references),
and a few kilobytes of brackets exhaust the stack of a recursive program; both are refused before values are built. So
is a key that occurs twice in one mapping, of which the parsers of the libraries keep the last value.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from limner.files import open_file

MAX_DEPTH = 64
"""Maximum number of lists and mappings within each other."""
MAX_YAML_BYTES = 256 * 1024
"""Maximum size of a YAML text: the recipes of Limner have at most a few kilobytes."""
MAX_YAML_NODES = 50_000
"""Maximum number of values of a YAML text, each reference (`*name`) counted as what it refers to."""
MAX_JSON_BYTES = 1 << 30
"""Maximum size of a JSON file of a run, a backbone or a feature table; corpora are limited by the memory alone."""


_MERGE = "tag:yaml.org,2002:merge"


class StructureError(ValueError):
    """A text is not YAML or JSON, or is too large or nested too deeply; the message is one line."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line
        """Number of the line, from 1, if it is known."""


class _BoundedLoader(yaml.SafeLoader):
    """Loader of plain values that stops at the maximum depth, before the stack of the composer is exhausted.

    A key may occur once in a mapping; values merged with `<<` may be overridden.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node with its children."""
        self.depth += 1
        if self.depth > MAX_DEPTH + 1:
            raise StructureError(_too_deep())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:  # noqa: ANN401  (the library has no types)
        """Compose a mapping, and refuse keys that occur twice."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if (key.tag, key.value) in keys:
                    line = key.start_mark.line + 1
                    raise StructureError(f"line {line}: {_repeated(key.value)}", line)
                keys.add((key.tag, key.value))
        return node


def parse_yaml(text: str) -> Any:  # noqa: ANN401  (any YAML value)
    """Read YAML with plain values only.

    Raises:
        StructureError: the text is not valid, larger than `MAX_YAML_BYTES`, nested deeper than `MAX_DEPTH`, has a key
            twice in one mapping, or has more than `MAX_YAML_NODES` values.
    """
    if (size := len(text.encode(errors="surrogatepass"))) > MAX_YAML_BYTES:
        raise StructureError(f"expected at most {MAX_YAML_BYTES:,} bytes, found {size:,}")
    try:
        loader = _BoundedLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _bound_nodes(node)
        return loader.construct_document(node)
    except StructureError:
        raise
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        where = f"line {line}: " if line and "\n" in text.strip() else ""
        raise StructureError(f"{where}{_one_line(error.problem or str(error))}", line) from None
    except RecursionError:
        raise StructureError(_too_deep()) from None
    except (yaml.YAMLError, ValueError, OverflowError, AttributeError, TypeError) as error:
        # dates such as 2024-99-99 and integers of 5,000 digits are ValueErrors of their types
        raise StructureError(_one_line(str(error))) from None


def _bound_nodes(root: yaml.Node) -> None:
    """Refuse nodes that are nested too deeply or are too many where each reference counts as what it refers to."""
    level, count = [root], 1
    for _ in range(MAX_DEPTH + 1):
        below = []
        for node in level:
            if isinstance(node.value, list):
                children = [part for child in node.value for part in (child if isinstance(child, tuple) else (child,))]
                count += len(children)
                if count > MAX_YAML_NODES:
                    raise StructureError(f"expected at most {MAX_YAML_NODES:,} values, references (*) included")
                below += children
        level = below
        if not level:
            return
    raise StructureError(_too_deep())


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401  (any JSON value)
    """Read JSON.

    Raises:
        StructureError: the text is not valid, nested deeper than `MAX_DEPTH`, or has a key twice in one object.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise StructureError(f"not valid JSON: {error.msg}", error.lineno) from None
    except RecursionError:
        raise StructureError(_too_deep()) from None
    except StructureError:
        raise
    except ValueError as error:  # bytes that are not UTF-8, integers of 5,000 digits
        raise StructureError(f"not valid JSON: {_one_line(str(error))}") from None
    if _mentions_surrogates(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise StructureError(
                "not valid JSON: a text has one half of a surrogate pair (\\ud800 to \\udfff)"
            ) from None
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [one for one in level if isinstance(one, dict | list)]
        if not containers:
            return value
        level = [
            child
            for one in containers
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, dict | list)
        ]
    raise StructureError(_too_deep())


def _mentions_surrogates(text: str | bytes) -> bool:
    return b"\\ud" in text.lower() if isinstance(text, bytes) else "\\ud" in text.lower()


def read_json_file(path: Path) -> Any:  # noqa: ANN401  (any JSON value)
    """Read a JSON file of a run, a backbone or a feature table.

    Raises:
        OSError: the file cannot be read.
        StructureError: see `parse_json`; or the file is larger than `MAX_JSON_BYTES`.
    """
    with open_file(path) as stream:
        if (size := os.fstat(stream.fileno()).st_size) > MAX_JSON_BYTES:
            raise StructureError(f"expected at most {MAX_JSON_BYTES:,} bytes, found {size:,}")
        return parse_json(stream.read())


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise StructureError(_repeated(key))
    return values


def _repeated(key: str) -> str:
    return f"the key '{key}' occurs twice in one mapping; remove one of the two"


def _too_deep() -> str:
    return f"expected at most {MAX_DEPTH} lists and mappings within each other, found more"


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()[:300]
