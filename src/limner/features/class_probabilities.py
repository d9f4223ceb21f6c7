"""Probabilities of ImageNet's classes by the classifier of a built-in backbone, from features of its last layer.

The classifier reads the mean of the last maps, which are the `grid` features, so that no second pass of the network is
needed, and features of a collection are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from limner.data.examples import StoredFeatures
from limner.features.encoders.efficientnet import PREFIX, find_weights
from limner.features.encoders.transformers import hash_files
from limner.features.spec import FeatureSpec

_KINDS = ("pooled", "grid")


class ClassProbabilities:
    """The last layer of a built-in backbone: softmax(W x + b) of the pooled features x, over 1,000 classes.

    The published network reads the centre of an image at its own size. Other sizes and whole images work as well: the
    classifier names what is in the image about as often, with lower probabilities (see docs/tags-and-confidence.md).
    """

    def __init__(self, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> None:
        """Create the layer of weights (C, D) and biases (C,)."""
        self.weight, self.bias = weight, bias

    @classmethod
    def of(cls, specs: Sequence[FeatureSpec]) -> Self | None:
        """Read the weights of the backbone that computed some features; None where there is no such classifier.

        Raises:
            BackboneError: the package of the weights is not installed.
        """
        for spec in specs:
            whole = spec.layer is None and spec.regions is None and spec.frames is None
            if not (spec.backbone.startswith(PREFIX) and spec.kind in _KINDS and whole):
                continue
            file = find_weights(spec.backbone)
            if hash_files([file]) == spec.weights_sha256:
                # weights_only: unpickling other objects could run code.
                weights = torch.load(file, map_location="cpu", weights_only=True)
                return cls(weights["_fc.weight"].numpy(), weights["_fc.bias"].numpy())
        return None

    def __call__(self, features: Sequence[StoredFeatures | None]) -> NDArray[np.float32]:
        """Compute the probabilities (B, C) of the classes; zeros for images without features."""
        result = np.zeros((len(features), len(self.bias)), np.float32)
        weight = torch.from_numpy(self.weight)
        for row, stored in enumerate(features):
            if stored is not None:
                # One image at a time, so that no bit depends on the others; a product by NumPy would wake all cores.
                logits = torch.mv(weight, torch.from_numpy(pooled_vector(stored))).numpy() + self.bias
                exponentials = np.exp(logits - logits.max())
                result[row] = exponentials / exponentials.sum()
        return result


def pooled_vector(features: StoredFeatures) -> NDArray[np.float32]:
    """Return the pooled features (D,) of an image, of which the mean of a grid (L, D) is as good."""
    pooled, grid = features.get("pooled"), features.get("grid")
    if pooled is not None:
        return np.asarray(pooled, np.float32)
    assert grid is not None, "features without a vector and a grid"
    mean: NDArray[np.float32] = torch.from_numpy(np.asarray(grid)).float().mean(0).numpy()
    return mean
