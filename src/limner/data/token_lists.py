"""Token ids of many sentences, and their lengths, in a few bytes a token."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import overload


class TokenLists(Sequence[list[int]]):
    """Lists of token ids, in four bytes a token and eight a list."""

    def __init__(self) -> None:
        self._tokens, self._ends = array("i"), array("q", [0])

    def append(self, tokens: Sequence[int]) -> None:
        """Add a list."""
        self._tokens.extend(tokens)
        self._ends.append(len(self._tokens))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        """Return a list of token ids, or those of a slice."""
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        return self._tokens[self._ends[row] : self._ends[row + 1]].tolist()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenLists):
            return (self._tokens, self._ends) == (other._tokens, other._ends)
        return list(self) == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def length(self, row: int) -> int:
        """Return the number of tokens of a list."""
        return self._ends[row + 1] - self._ends[row]

    def count(self, value: object) -> int:
        """Return how often a token occurs in all lists, or a list among the lists."""
        return self._tokens.count(value) if isinstance(value, int) else sum(one == value for one in self)

    @property
    def total(self) -> int:
        """Number of tokens of all lists."""
        return len(self._tokens)


class PairLengths(Sequence[tuple[int, int]]):
    """Number of target tokens and of source tokens of each example, the sort key of batches.

    Args:
        targets: target token ids of the examples.
        sources: their source token ids; None for captioning, whose source lengths are 0.
    """

    def __init__(self, targets: TokenLists, sources: TokenLists | None) -> None:
        self._targets, self._sources = targets, sources

    def __len__(self) -> int:
        return len(self._targets)

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | list[tuple[int, int]]:
        """Return the lengths of an example, or of a slice."""
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        return self._targets.length(row), 0 if self._sources is None else self._sources.length(row)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]
