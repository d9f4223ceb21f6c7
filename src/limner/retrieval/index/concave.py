"""Log-probability of a sentence as a concave function of the image term z, with its tangents.

For logits W (l_t + z) + b, where l_t is the term of the prefix at position t and w_t the token there,

    f(z) = log P(w | z) = sum_t [ W[w_t] (l_t + z) + b[w_t] - log sum_v exp(W[v] (l_t + z) + b[v]) ]

is concave, because log-sum-exp is convex. Its gradient is sum_t (W[w_t] - E_t[W]), with the expectation under the
softmax at position t, so that for any point c

    f(z) <= f(c) + grad f(c) (z - c).

All is computed in float64. Shapes: T positions, V vocabulary, D size of z, N images, C points.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from limner.data.examples import Example, collate
from limner.errors import RunError
from limner.models.protocols import AffineImageModel

Floats = NDArray[np.float64]
_SMALLEST = 1e-250
"""Sum of exponentials below which it is computed again with its own maximum, as terms may have underflowed."""


class ConcaveScore:
    """f(z) of one sentence."""

    def __init__(self, weight: Floats, prefixes: Floats, bias: Floats, targets: NDArray[np.int64]) -> None:
        """Prepare a sentence.

        Args:
            weight: W, (V, D).
            prefixes: l_t, (T, D).
            bias: b, (V,).
            targets: w_t, (T,).
        """
        self.weight = weight
        self.logits = prefixes @ weight.T + bias  # (T, V): those of z = 0
        self._maximum = self.logits.max(1)
        self._exp = np.exp(self.logits - self._maximum[:, None])
        self._linear = weight[targets].sum(0)  # (D,)
        self._constant = float(self.logits[np.arange(len(targets)), targets].sum())

    @classmethod
    def of(cls, model: AffineImageModel, tokens: Sequence[int]) -> ConcaveScore:
        """Prepare a sentence for a model.

        Args:
            model: model whose logits are affine in the image.
            tokens: token ids, without special tokens.
        """
        batch = collate([Example("", tuple(tokens))])
        with torch.inference_mode():
            device = next(iter(model.state_dict().values())).device  # type: ignore[attr-defined]
            terms = model.affine_terms(batch.target_in[0].to(device))
        weight, prefixes, bias = (
            part.detach().double().cpu().numpy() for part in (terms.weight, terms.prefixes, terms.bias)
        )
        return cls(weight, prefixes, bias, batch.target_out[0].numpy())

    def scores(self, terms: NDArray[np.floating]) -> Floats:
        """Compute f at N image terms, (N, D) to (N,).

        Raises:
            RunError: a score is not a number.
        """
        exact: Floats = terms.astype(np.float64, copy=False)
        _, normalisers = self._normalise(exact)
        scores: Floats = self._constant + exact @ self._linear - normalisers.sum(1)
        if np.isnan(scores).any():
            raise RunError("the model computes scores that are not numbers (NaN); restore the run from a copy")
        return scores

    def tangents(self, points: Floats) -> tuple[Floats, Floats]:
        """Compute f and its gradient at C points, (C, D) to (C,) and (C, D)."""
        image, normalisers = self._normalise(points)
        values: Floats = self._constant + points @ self._linear - normalisers.sum(1)
        # sum_t P_t(v) = exp(image_v) sum_t exp(logits_tv - normaliser_t)
        maximum = image.max(1)
        shares = np.exp(maximum[:, None] + self._maximum - normalisers) @ self._exp  # (C, V)
        expected = (np.exp(image - maximum[:, None]) * shares) @ self.weight
        return values, self._linear - expected

    def _normalise(self, terms: Floats) -> tuple[Floats, Floats]:
        """Compute the logits of the image, (N, V), and the log-normalisers of all positions, (N, T)."""
        image = terms @ self.weight.T
        maximum = image.max(1)
        sums = np.exp(image - maximum[:, None]) @ self._exp.T
        with np.errstate(divide="ignore"):
            normalisers = np.log(sums) + maximum[:, None] + self._maximum
        for row, position in np.argwhere(sums < _SMALLEST):
            logits = image[row] + self.logits[position]
            normalisers[row, position] = logits.max() + np.log(np.exp(logits - logits.max()).sum())
        return image, normalisers
