"""Check of a graph before ONNX Runtime reads it: it contains no names of files, and no operator that reads a file.

ONNX Runtime resolves external data against the current folder when a graph is loaded from memory. Therefore each graph
is examined before: its messages are followed in the wire format of protobuf, without the package `onnx`.
"""

from __future__ import annotations

from collections.abc import Container

from limner.errors import RunError
from limner.runtime.manifest import EXPORT_AGAIN

_MESSAGES = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""Messages of ONNX that can contain a tensor or a node: number of each field, and message that the field contains."""
_DOMAIN = ("node", 7)
_NAME, _EXTERNAL_DATA, _DATA_LOCATION = 8, 13, 14
"""Numbers of the fields of a tensor."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
STANDARD_DOMAINS = (b"", b"ai.onnx")
"""Domains of operators of ONNX that read no file, unlike operators of contexts and of custom libraries."""


def require_self_contained(name: str, data: bytes, weights: Container[str] = ()) -> set[str]:
    """Check that a graph, its nested graphs, functions and attributes included, contains all of its data.

    Args:
        name: name of the graph, for errors.
        data: content of its file.
        weights: names of the tensors that are given beside the file.

    Returns:
        Names of the weights that the graph does not contain.

    Raises:
        RunError: a tensor is stored in another file, an operator is not one of ONNX, or the file is damaged.
    """
    pending, named = [("model", 0, len(data))], set[str]()
    while pending:
        kind, begin, end = pending.pop()
        tensor, external = "", False
        try:
            for field, value, start in _read_fields(data, begin, end):
                if kind == "tensor":
                    tensor = data[start : start + value].decode() if field == _NAME and start >= 0 else tensor
                    external |= field == _EXTERNAL_DATA or (field == _DATA_LOCATION and value > 0)
                elif start < 0:
                    continue
                elif (kind, field) == _DOMAIN and data[start : start + value] not in STANDARD_DOMAINS:
                    domain = data[start : start + value][:40].decode(errors="replace")
                    raise RunError(f"{name}: expected operators of ONNX, found one of '{domain}'; {EXPORT_AGAIN}")
                elif field in _MESSAGES[kind]:
                    pending.append((_MESSAGES[kind][field], start, start + value))
        except (IndexError, ValueError):
            raise RunError(f"{name}: cannot be loaded: not a graph of ONNX; {EXPORT_AGAIN}") from None
        if external and tensor not in weights:
            raise RunError(
                f"{name}: expected a graph with all of its data, found a tensor that is stored in another file "
                f"(external data); {EXPORT_AGAIN}"
            )
        if external:
            named.add(tensor)
    return named


def _read_fields(data: bytes, position: int, end: int) -> list[tuple[int, int, int]]:
    """Return the number of each field, and its value or its size and begin; the begin is -1 for a number.

    Raises:
        ValueError, IndexError: the bytes are no message.
    """
    fields = []
    while position < end:
        tag, value, start = 0, 0, -1
        for shift in range(0, 70, 7):
            byte = data[position]
            position, tag = position + 1, tag | (byte & 0x7F) << shift
            if byte < 0x80:
                break
        field, kind = tag >> 3, tag & 7
        for shift in range(0, 70, 7) if kind in (_VARINT, _BYTES) else ():
            byte = data[position]
            position, value = position + 1, value | (byte & 0x7F) << shift
            if byte < 0x80:
                break
        if kind == _BYTES:
            start, position = position, position + value
        elif kind in (_FIXED32, _FIXED64):
            position += 4 if kind == _FIXED32 else 8
        if position > end or not 0 < field < 2**29 or kind not in (_VARINT, _BYTES, _FIXED32, _FIXED64):
            raise ValueError(field)
        fields.append((field, value, start))
    return fields
