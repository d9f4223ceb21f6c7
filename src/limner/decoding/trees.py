"""Memories and states: nested tuples, lists and dictionaries of arrays or tensors with a row for each example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

Tree = Any
"""An array or tensor, None, or a tuple, list or dictionary of trees."""


def map_leaves(function: Callable[[list[Any]], Any], trees: Sequence[Tree]) -> Tree:
    """Apply a function to the arrays at each place of trees of one structure."""
    first = trees[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {key: map_leaves(function, [tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple | list):
        parts = [map_leaves(function, [tree[place] for tree in trees]) for place in range(len(first))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return function(list(trees))


def split(tree: Tree, sizes: Sequence[int]) -> list[Tree]:
    """Split the rows of a tree into trees with `sizes` rows."""
    ends = list(accumulate(sizes))
    return [select_rows(tree, slice(end - size, end)) for end, size in zip(ends, sizes, strict=True)]


def select_rows(tree: Tree, rows: Any) -> Tree:  # noqa: ANN401
    """Select rows of the arrays of a tree, by indices or a slice."""
    return map_leaves(lambda leaves: leaves[0][rows], [tree])


def signature(tree: Tree) -> Any:  # noqa: ANN401
    """Return the structure of a tree, with the shapes of its arrays except for the number of rows."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return tuple((key, signature(part)) for key, part in tree.items())
    if isinstance(tree, tuple | list):
        return type(tree), tuple(signature(part) for part in tree)
    return tuple(tree.shape[1:]), str(tree.dtype)


def flatten(tree: Tree, name: str) -> dict[str, Any]:
    """Return the tensors of a memory or state by their paths, such as `state.hidden`; parts of None have none."""
    if tree is None:
        return {}
    if not isinstance(tree, tuple | list):
        return {name: tree}
    return {path: leaf for place, part in _named_parts(tree, name) for path, leaf in flatten(part, place).items()}


def rebuild(tree: Tree, name: str, tensors: Mapping[str, Any]) -> Tree:
    """Return a memory or state of the structure of `tree`, with each tensor looked up in `tensors` by its path."""
    if tree is None:
        return None
    if not isinstance(tree, tuple | list):
        return tensors[name]
    parts = [rebuild(part, place, tensors) for place, part in _named_parts(tree, name)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def _named_parts(tree: tuple[Tree, ...] | list[Tree], name: str) -> list[tuple[str, Tree]]:
    """Return the parts of a tree with their paths: the names of the fields of a NamedTuple, else numbers."""
    names = getattr(tree, "_fields", map(str, range(len(tree))))
    return [(f"{name}.{field}".lstrip("."), part) for field, part in zip(names, tree, strict=True)]
