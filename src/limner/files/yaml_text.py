"""Reading of YAML with bounded nesting, size and references, and one-line messages.

A few kilobytes of YAML can describe gigabytes (references to references). The module is separate from the reader of
JSON, because the import of the library is slow.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

from limner.files import read_bytes
from limner.files.structured import MAX_DEPTH, StructureError, depth_message, one_line, repeated_key_message

MAX_YAML_BYTES = 256 * 1024
"""Maximum size of a YAML text: the recipes of Limner have at most a few kilobytes."""
MAX_YAML_NODES = 50_000
"""Maximum number of values of a YAML text, each reference (`*name`) counted as the values that it refers to."""

_MERGE = "tag:yaml.org,2002:merge"


class _BoundedLoader(yaml.SafeLoader):
    """Loader of plain values that stops at the maximum depth, before the stack of the composer is exhausted.

    A key may occur once in a mapping; values merged with `<<` may be overridden.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH + 1:
            raise StructureError(depth_message())
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
                    raise StructureError(f"line {line}: {repeated_key_message(key.value)}", line)
                keys.add((key.tag, key.value))
        return node


def parse_yaml(text: str) -> Any:  # noqa: ANN401  (any YAML value)
    """Read YAML with plain values only; StructureError if it is invalid, too large or deep, or has a key twice."""
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
        raise StructureError(f"{where}{one_line(error.problem or str(error))}", line) from None
    except RecursionError:
        raise StructureError(depth_message()) from None
    except (yaml.YAMLError, ValueError, OverflowError, AttributeError, TypeError) as error:
        # dates such as 2024-99-99 and integers of 5,000 digits are ValueErrors of their types
        raise StructureError(one_line(str(error))) from None


def read_resource(package: str, name: str) -> Any:  # noqa: ANN401  (any YAML value)
    """Read a YAML file that is a part of a package."""
    return parse_yaml(read_bytes(str(files(package).joinpath(name))).decode())


def _bound_nodes(root: yaml.Node) -> None:
    """Refuse nodes that are nested too deeply, or too many nodes; a reference counts as the nodes that it refers to."""
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
    raise StructureError(depth_message())
