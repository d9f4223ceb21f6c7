"""Memories and states as named tensors, and back: nested tuples of tensors of any model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def flatten(tree: Any, name: str) -> dict[str, Tensor]:  # noqa: ANN401
    """Return the tensors of a memory or state by their paths, such as `state.lstm.hidden`; parts of None have none."""
    if isinstance(tree, Tensor):
        return {name: tree}
    return {
        path: tensor
        for part, value in _parts(tree)
        for path, tensor in flatten(value, f"{name}.{part}".lstrip(".")).items()
    }


def rebuild(tree: Any, name: str, tensors: Mapping[str, Tensor]) -> Any:  # noqa: ANN401
    """Return a memory or state of the structure of `tree`, whose tensors are those of their paths in `tensors`."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return tensors[name]
    parts = [rebuild(value, f"{name}.{part}".lstrip("."), tensors) for part, value in _parts(tree)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def _parts(tree: Any) -> list[tuple[str, Any]]:  # noqa: ANN401
    if tree is None:
        return []
    assert isinstance(tree, tuple | list), f"a memory or state holds a {type(tree).__name__}"
    names = getattr(tree, "_fields", map(str, range(len(tree))))
    return list(zip(names, tree, strict=True))
