"""Log-probability of a sentence as a concave function of the image term z, with upper bounds.

For logits W (l_t + z) + b, where l_t is the term of the prefix at position t and w_t the token there,

    f(z) = log P(w | z) = sum_t [ W[w_t] (l_t + z) + b[w_t] - A_t(z) ],   A_t(z) = log sum_v exp(W[v] (l_t + z) + b[v])

is concave, because log-sum-exp is convex. With the softmax p_t at a point c, h = z - c and Jensen's inequality within
groups of tokens,

    A_t(z) = A_t(c) + log sum_v p_t(v) exp(W[v] h) >= A_t(c) + log sum_G p_t(G) exp(E_t[W | G] h).

One group of all tokens gives the tangent, f(z) <= f(c) + grad f(c) h with grad f(c) = sum_t (W[w_t] - E_t[W]); groups
of one token give f itself. `JensenBound` has a group for each of the most probable tokens and one for the others.

Shapes: T positions, V vocabulary, D size of z, N images, C points, M tokens with separate groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.errors import RunError

Floats = NDArray[np.float64]
_SMALLEST = 1e-250
"""Sum of exponentials below which the sum is recomputed relative to its maximum, as terms may have underflowed."""
UNIT = 2.0**-22
"""Bound of the relative error of an operation in float32, four times the unit of rounding: with it, (n + 4) operations
have a relative error of at most (n + 4) UNIT, second-order terms included, for the n < 10^5 that occur."""
_LARGEST_EXPONENT = 60.0
"""Exponents above it are lowered, which keeps a bound valid and float32 from overflowing."""
_MIN_SHARE = 2.0**-126
"""Probability below which a group is left out, which keeps a bound valid: the next smaller numbers of float32 have
absolute, not relative errors, which a large exponent would amplify."""
_MIN_SUM = np.float32(2.0**-100)
"""Sum of a position below which it counts as 0, so that the bound is infinite: below it, absolute errors of up to
2^-149 for each exponential would not be small relative to the sum."""


class Points(NamedTuple):
    """Image terms z with exp(W z) relative to the largest logit, which do not depend on the sentence."""

    terms: Floats  # (N, D)
    maximum: Floats  # (N,): largest logit of the image term
    exps: Floats  # (N, V): exponentials of the logits less the largest

    @classmethod
    def from_terms(cls, terms: NDArray[np.floating], weight: Floats) -> Points:
        """Compute the logits W z of N image terms, (N, D)."""
        exact = terms.astype(np.float64, copy=False)
        logits = exact @ weight.T
        maximum = logits.max(1)
        return cls(exact, maximum, np.exp(logits - maximum[:, None]))


class ConcaveScore:
    """f(z) of one sentence, in float64."""

    def __init__(self, weight: Floats, prefixes: Floats, bias: Floats, targets: Sequence[int]) -> None:
        """Prepare a sentence by W (V, D), l_t (T, D), b (V,) and w_t (T,)."""
        self.weight = weight
        self.logits = prefixes @ weight.T + bias  # (T, V): logits for z = 0
        self._maximum = self.logits.max(1)
        self._exp = np.exp(self.logits - self._maximum[:, None])
        self.linear = weight[targets].sum(0)  # (D,)
        self.constant = float(self.logits[np.arange(len(targets)), targets].sum())

    def scores(self, terms: NDArray[np.floating]) -> Floats:
        """Compute f at N image terms, (N, D) to (N,); RunError for NaN."""
        points = Points.from_terms(terms, self.weight)
        scores: Floats = self.constant + points.terms @ self.linear - self._normalise(points)[0].sum(1)
        _require_numbers(scores)
        return scores

    def tangents(self, points: Points) -> tuple[Floats, Floats]:
        """Compute f and its gradient at C points, (C,) and (C, D); RunError for NaN."""
        normalisers, underflows = self._normalise(points)
        values: Floats = self.constant + points.terms @ self.linear - normalisers.sum(1)
        # sum_t P_t(v) = exp(image_v) sum_t exp(logits_tv - normaliser_t)
        scales = points.maximum[:, None] + self._maximum - normalisers
        scales[tuple(underflows.T)] = -np.inf  # these follow one by one
        expected = (points.exps * (np.exp(scales) @ self._exp)) @ self.weight  # (C, D)
        for row, position in underflows:
            logits = self.weight @ points.terms[row] + self.logits[position]
            expected[row] += np.exp(logits - normalisers[row, position]) @ self.weight
        gradients: Floats = self.linear - expected
        _require_numbers(values, gradients)
        return values, gradients

    def _normalise(self, points: Points) -> tuple[Floats, NDArray[np.int64]]:
        """Compute the log-normalisers of all positions at N points, (N, T).

        Returns:
            Log-normalisers, and the (point, position) of the log-normalisers whose sum underflows in the product, (U,
            2).
        """
        sums = points.exps @ self._exp.T
        with np.errstate(divide="ignore"):
            normalisers: Floats = np.log(sums) + points.maximum[:, None] + self._maximum
        underflows = np.argwhere(sums < _SMALLEST)
        for row, position in underflows:
            logits = self.weight @ points.terms[row] + self.logits[position]
            normalisers[row, position] = logits.max() + np.log(np.exp(logits - logits.max()).sum())
        return normalisers, underflows


def _require_numbers(*values: Floats) -> None:
    if any(np.isnan(array).any() for array in values):
        raise RunError("the model computes scores that are not numbers (NaN); restore the run from a copy")


class JensenBound:
    """Upper bound of f by Jensen's inequality at one point, in float32 with a margin for its rounding."""

    def __init__(self, score: ConcaveScore, point: NDArray[np.float32], tokens: int) -> None:
        """Prepare the bound, which is tight near c (D,), with separate groups for M tokens."""
        self._point = point
        centre = point.astype(np.float64)
        logits = score.logits + score.weight @ centre  # (T, V)
        maximum = logits.max(1, keepdims=True)
        probs = np.exp(logits - maximum)
        sums = probs.sum(1, keepdims=True)
        probs /= sums
        self._value = score.constant + centre @ score.linear - float((maximum + np.log(sums)).sum())
        chosen = np.argsort(-probs.sum(0))[:tokens]
        shares = probs[:, chosen]  # (T, M)
        probs[:, chosen] = 0
        rest = probs.sum(1)  # (T,): not 1 - sum of the shares, whose error a large exponent would amplify
        means = (probs @ score.weight) / np.maximum(rest[:, None], 1e-300)  # (T, D)
        self._shares, self._rest = (
            np.where(share < _MIN_SHARE, 0, share).astype(np.float32) for share in (shares.T, rest)
        )
        self._vectors = np.concatenate([score.weight[chosen], means, score.linear[None]]).T.astype(np.float32)
        self._longest = float(np.linalg.norm(self._vectors[:, :-1], axis=0).max())

    def __call__(self, terms: NDArray[np.float32]) -> Floats:
        """Compute the bounds at N image terms, (N, D) to (N,)."""
        shift = terms - self._point
        products = shift @ self._vectors  # (N, M + T + 1)
        exps = np.exp(np.minimum(products[:, :-1], _LARGEST_EXPONENT))
        num_tokens, positions = len(self._shares), len(self._rest)
        sums = exps[:, :num_tokens] @ self._shares + exps[:, num_tokens:] * self._rest  # (N, T)
        sums[sums < _MIN_SUM] = 0
        with np.errstate(divide="ignore"):
            logs = np.log(sums).astype(np.float64)
        margins = self._margin(np.linalg.norm(shift.astype(np.float64), axis=1), logs, num_tokens, positions)
        bounds: Floats = self._value + products[:, -1] - logs.sum(1) + margins
        return bounds

    def _margin(self, distances: Floats, logs: Floats, num_tokens: int, positions: int) -> Floats:
        """Bound the error of rounding: of the exponents, of the sums of exponentials, and of the logarithms."""
        dim = len(self._vectors)
        linear = float(np.linalg.norm(self._vectors[:, -1]))
        exponents = (dim + 4) * (positions * self._longest + linear) * distances
        sums = positions * (num_tokens + 16) + np.abs(logs).sum(1)
        margin: Floats = UNIT * (exponents + sums + abs(self._value))
        return margin
