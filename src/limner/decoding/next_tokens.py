"""Log-probabilities of the next tokens of every hypothesis, and the operations on them that a search needs.

The search handles small NumPy arrays. Arrays of the size of the vocabulary stay in the library that computes them:
NumPy here, torch in `limner.decoding.torch_models`.

Shapes: N examples, K hypotheses of each, V vocabulary, G groups of hypotheses, C tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from limner.decoding.settings import SampleSettings

Floats = NDArray[np.floating[Any]]
Tokens = NDArray[np.int64]
BLOCK = 8
"""Tokens of a set whose maximum is compared in place of their values."""


class Best(NamedTuple):
    """The greatest log-probabilities of groups of hypotheses, the greatest first."""

    total: Floats  # (N, G, C)
    parent: Tokens  # (N, G, C): index of the hypothesis in its group
    token: Tokens  # (N, G, C)


class NextTokens(Protocol):
    """Log-probabilities (N, K, V), which the methods modify in place."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (N, K, V)."""

    def split(self, sizes: Sequence[int]) -> Sequence[NextTokens]:
        """Split the log-probabilities into parts of `sizes` consecutive examples."""

    def gather(self, tokens: Tokens) -> Floats:
        """Return the values of some tokens (N, K, C)."""

    def exclude(self, tokens: Tokens) -> None:
        """Set the values of tokens (C,) to -inf."""

    def exclude_at(self, n: Tokens, k: Tokens, tokens: Tokens) -> None:
        """Set the value of a token (R,) of each hypothesis k (R,) of example n (R,) to -inf."""

    def force(self, rows: Tokens, tokens: Tokens, values: Floats) -> None:
        """Set the values of examples `rows` (R,) to -inf, except for `tokens` (R,), which get `values` (R, K)."""

    def add(self, totals: Floats) -> None:
        """Add the log-probabilities (N, K) of the hypotheses."""

    def add_bonus(self, bonus: Floats, used: Tokens) -> None:
        """Add a bonus (N, V) to each token that a hypothesis does not contain yet; `used` are its tokens, (N, K, T)."""

    def best(self, count: int, groups: int = 1, among: Tokens | None = None) -> Best:
        """Return the `count` greatest values of each group of hypotheses, of all tokens or of tokens `among` (C,)."""

    def draw(self, sample: SampleSettings, uniform: Floats) -> Tokens:
        """Draw a token of each of the last L hypotheses of an example by numbers (N, L) between 0 and 1.

        `temperature` divides the log-probabilities; of the `top_k` most probable tokens, the smallest set with a total
        probability of `top_p` is kept.
        """


@dataclass(eq=False)
class NumpyNextTokens:
    """Log-probabilities as an array of NumPy, which the methods modify."""

    values: Floats

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def split(self, sizes: Sequence[int]) -> list[NumpyNextTokens]:
        return [NumpyNextTokens(part) for part in np.split(self.values, np.cumsum(sizes)[:-1])]

    def gather(self, tokens: Tokens) -> Floats:
        return np.take_along_axis(self.values, tokens, 2)

    def exclude(self, tokens: Tokens) -> None:
        self.values[:, :, tokens] = -math.inf

    def exclude_at(self, n: Tokens, k: Tokens, tokens: Tokens) -> None:
        self.values[n, k, tokens] = -math.inf

    def force(self, rows: Tokens, tokens: Tokens, values: Floats) -> None:
        self.values[rows] = -math.inf
        self.values[rows, :, tokens] = values

    def add(self, totals: Floats) -> None:
        self.values += totals[:, :, None]

    def add_bonus(self, bonus: Floats, used: Tokens) -> None:
        kept = np.take_along_axis(self.values, used, 2)
        self.values += bonus[:, None]
        np.put_along_axis(self.values, used, kept, 2)

    def best(self, count: int, groups: int = 1, among: Tokens | None = None) -> Best:
        """Return the greatest values of each group; of equal values the first."""
        values = self.values if among is None else self.values[:, :, among]
        rows = values.reshape(len(values) * groups, -1, values.shape[2])
        columns = first_best(rows, min(count, rows[0].size)).reshape(len(values), groups, -1)
        total = np.take_along_axis(values.reshape(len(values), groups, -1), columns, 2)
        parent, token = np.divmod(columns, values.shape[2])
        return Best(total, parent, token if among is None else among[token])

    def draw(self, sample: SampleSettings, uniform: Floats) -> Tokens:
        values, tokens = self.values[:, self.shape[1] - uniform.shape[1] :], None
        if sample.top_k is not None or sample.top_p is not None:
            count = min(sample.top_k or values.shape[2], values.shape[2])
            tokens = first_best(values.reshape(-1, 1, values.shape[2]), count).reshape(*values.shape[:2], -1)
            values = np.take_along_axis(values, tokens, 2)
        weights = np.exp((values - values.max(2, keepdims=True)) / sample.temperature)
        if sample.top_p is not None:
            before = weights.cumsum(2) - weights
            beyond = before >= sample.top_p * weights.sum(2, keepdims=True)
            beyond[:, :, 0] = False  # the most probable token stays, however small top_p is
            weights[beyond] = 0
        cumulative = weights.cumsum(2)
        drawn = np.minimum(uniform, 1 - np.finfo(weights.dtype).eps)[:, :, None] * cumulative[:, :, -1:]
        chosen = np.minimum((cumulative <= drawn).sum(2, keepdims=True), weights.shape[2] - 1)
        return np.asarray(chosen if tokens is None else np.take_along_axis(tokens, chosen, 2))[:, :, 0]


def first_best(values: Floats, count: int) -> Tokens:
    """Return the places of the `count` greatest values of each group, the greatest first, of equal values the first.

    Args:
        values: values of the groups, (G, P, V) for P hypotheses of each.
        count: number of places, at most P V.

    Returns:
        Places among the P V values of a group, (G, count).
    """
    rows = values.reshape(len(values), -1)
    if count == 1:
        return np.asarray(rows.argmax(1))[:, None]
    # Maxima of disjoint sets of values are fewer than the values, and as many values as maxima are at least as great.
    maxima = values.max(1) if count <= values.shape[2] else rows
    if count <= (size := maxima.shape[1] // BLOCK):
        maxima = maxima[:, : BLOCK * size].reshape(len(maxima), BLOCK, size).max(1)
    least = np.partition(maxima, -count, axis=1)[:, -count]
    places = []
    for row, low in zip(rows, least, strict=True):
        candidates = np.flatnonzero(row >= low)
        places.append(candidates[np.argsort(-row[candidates], kind="stable")][:count])
    return np.stack(places)
