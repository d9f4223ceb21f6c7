"""Normalisers of a softmax for many images: probable tokens are summed, the rest is estimated from a sample of images.

After a prefix, a small part of the vocabulary has nearly all the probability, whatever the image. The whole softmax of
each prefix is computed for a few images that differ much. It gives the tokens to sum for all images, the head, and the
sum over all other tokens for these few images, from which a linear regression predicts this sum for the other images.
The regression is not used where its predictions for the other images are inaccurate.

Shapes: n prefixes of the regression, p prefixes, i images, k sampled images, M hidden units, V vocabulary, H tokens of
a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from limner.process import map_in_threads

TAIL = 0.15
"""Default of the largest estimated share of the probability, given any sampled image."""
SAMPLED_IMAGES = 64
"""Number k of images whose whole softmax is computed."""
FITTED_PREFIXES, CHECKED_PREFIXES = 64, 16
"""Numbers of prefixes whose whole softmax is computed for all images: n to fit the regression, others to check it."""
MAX_ERROR = 0.05
"""Largest root mean square error that a regression in use has for the binary logarithms of checked prefixes."""
LEAST_IMAGES, LEAST_PREFIXES = 4 * SAMPLED_IMAGES, 8 * FITTED_PREFIXES
"""Numbers of images and prefixes below which the sample costs more than it saves."""
RIDGE = 0.015
"""Regularisation of the regression, relative to the mean square of its inputs."""
BLOCK = 64
"""Sizes of heads are multiples of this, so that matrix products have few different shapes."""


class Heads(NamedTuple):
    """Tokens of the softmax after each of p prefixes."""

    tokens: list[Tensor]  # (H,) of each prefix: tokens by their largest probability given any sampled image, best first
    rest: Tensor  # (p, k): binary logarithm of the sum over all tokens divided by the sum over the head


class HeadFinder:
    """The sampled images, and the regression from them to all images."""

    def __init__(
        self,
        language: Tensor,
        image: Tensor,
        weight_2: Tensor,
        bias_2: Tensor,
        combine: Callable[[Tensor, Tensor], Tensor],
        tail: float,
    ) -> None:
        """Sample images (i, M), and fit and check the regression, for the terms of P prefixes (P, M).

        Args:
            language: term of each prefix, (P, M).
            image: term of each image, (i, M).
            weight_2: softmax weights times log2(e), (V, M).
            bias_2: softmax biases times log2(e), (V,).
            combine: computes the hidden units of pairs, (p, i, M).
            tail: largest share of the probability outside a head, given any sampled image.
        """
        self.weight_2, self.bias_2, self.combine, self._tail = weight_2, bias_2, combine, tail
        self._positions = distant_rows(image, SAMPLED_IMAGES)
        self._sample = image[self._positions]
        rows = torch.linspace(0, len(language) - 1, FITTED_PREFIXES + CHECKED_PREFIXES).long()
        rests = torch.stack(map_in_threads(lambda row: self._rest(language[row], image), rows.tolist()))
        checked = torch.arange(len(rows)) % (len(rows) // CHECKED_PREFIXES) == 0
        self._weights = _interpolation(rests[~checked], self._positions)
        errors = self._predict(rests[checked][:, self._positions]) - rests[checked]
        self.is_close = bool(errors.square().mean().sqrt() <= MAX_ERROR)
        """Whether the regression is accurate on prefixes that it was not fitted on."""

    def heads(self, language: Tensor) -> Heads:
        """Find the head of the softmax after each of p prefixes, from their terms (p, M)."""
        probs = self._probs(language, self._sample)  # (p, k, V)
        order = probs.amax(1).argsort(descending=True)
        ordered = probs.gather(2, order.unsqueeze(1).expand_as(probs))
        blocks = pad(ordered, (0, -order.shape[1] % BLOCK)).view(*ordered.shape[:2], -1, BLOCK).sum(3)  # (p, k, blocks)
        outside = (blocks.flip(2).cumsum(2).flip(2) - blocks).clamp_(min=0)  # share of the tokens after each block
        last = (outside.amax(1) > self._tail).sum(1)  # last block of each head
        share = outside.gather(2, last.view(-1, 1, 1).expand(-1, outside.shape[1], 1)).squeeze(2)  # (p, k)
        tokens = [row[: BLOCK * (block + 1)] for row, block in zip(order, last.tolist(), strict=True)]
        return Heads(tokens, -torch.log2(1 - share))

    def rest(self, heads: Heads, images: slice) -> Tensor:
        """Predict the binary logarithm of the sum over all tokens divided by the sum over the head, (p, i)."""
        return self._predict(heads.rest, images)

    def _predict(self, sampled: Tensor, images: slice = slice(None)) -> Tensor:
        return (sampled @ self._weights[images].t()).clamp_(min=0)

    @torch.inference_mode()
    def _rest(self, language: Tensor, image: Tensor) -> Tensor:
        """Compute the values that `rest` predicts, for one prefix (M,) and all images, (i,)."""
        head = self.heads(language.unsqueeze(0)).tokens[0]
        parts = (
            self._probs(language.unsqueeze(0), part)[0][:, head].sum(1) for part in torch.split(image, SAMPLED_IMAGES)
        )
        return -torch.log2(torch.cat(list(parts)))

    def _probs(self, language: Tensor, image: Tensor) -> Tensor:
        """Compute the whole softmax of p prefixes and i images in float32, (p, i, V)."""
        hidden = self.combine(language, image).to(self.weight_2.dtype)
        logits = torch.addmm(self.bias_2, hidden.flatten(0, 1), self.weight_2.t()).float()
        return logits.mul_(math.log(2)).softmax(-1).view(*hidden.shape[:2], -1)


def distant_rows(values: Tensor, count: int) -> Tensor:
    """Choose rows that are far from each other (Gonzalez, 1985); return their positions.

    The first is the row farthest from the mean, each further row the farthest from the rows before.
    """
    distance = (values - values.mean(0)).norm(dim=1)
    chosen = [distance.argmax()]
    distance.fill_(math.inf)
    while len(chosen) < count:
        distance = torch.minimum(distance, (values - values[chosen[-1]]).norm(dim=1))
        chosen.append(distance.argmax())
    return torch.stack(chosen)


def _interpolation(values: Tensor, positions: Tensor) -> Tensor:
    """Fit by ridge regression how values (n, i) of all images follow from the k images at `positions`; weights (i, k).

    The values of an image are proportional to the mean of the inputs; the differences from both are regressed.
    """
    inputs = values[:, positions]
    mean = inputs.mean(1, keepdim=True)
    factor = (values * mean).sum(0) / mean.square().sum().clamp(min=1e-12)  # (i,)
    centred = inputs - mean
    ridge = RIDGE * inputs.square().sum() / inputs.shape[1] + 1e-12
    gram = centred.t() @ centred + ridge * torch.eye(inputs.shape[1])
    slopes = torch.linalg.solve(gram, centred.t() @ (values - mean * factor)).t()  # (i, k)
    weights: Tensor = slopes - slopes.mean(1, keepdim=True) + factor.unsqueeze(1) / inputs.shape[1]
    return weights
