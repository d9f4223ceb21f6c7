"""Image controls: features of other images, the mean, or zeros in place of an item's own.

They measure how much a model uses its images (the random images of Kiros et al., 2014).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from limner.data.dataset import FeatureSource
from limner.data.examples import Item, StoredFeatures
from limner.errors import SettingsError

ImageControl = Literal["right", "shuffled", "mean", "zero"]
"""Features given to the model: the item's own, another item's, the mean of the training split, or zeros."""


class ControlFeatures:
    """A `FeatureSource` that replaces the features of another source. Items without an image keep None."""

    def __init__(
        self, features: FeatureSource, substitutes: Mapping[str, Item], constant: StoredFeatures | None = None
    ) -> None:
        """Use the features of `substitutes`, by item id, or `constant` for all items with an image."""
        self.features, self.substitutes, self.constant = features, substitutes, constant

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Return the substituted features of items."""
        if self.constant is not None:
            return [None if item.media_path is None else self.constant for item in items]
        return self.features.take([self.substitutes.get(item.id, item) for item in items])

    @classmethod
    def shuffled(cls, features: FeatureSource, items: Sequence[Item], seed: int) -> Self:
        """Permute the features of items that have an image, in one random cycle: no item keeps its own.

        Raises:
            SettingsError: only one item has an image.
        """
        with_image = [item for item in items if item.media_path is not None]
        if len(with_image) == 1:
            raise SettingsError(
                f"image control 'shuffled': expected at least two items with an image, got one ('{with_image[0].id}')"
            )
        cycle = np.random.default_rng(seed).permutation(len(with_image)).tolist()
        successors = zip(cycle, [*cycle[1:], *cycle[:1]], strict=True)
        return cls(features, {with_image[item].id: with_image[successor] for item, successor in successors})


def mean_features(features: FeatureSource, items: Sequence[Item], batch_size: int = 1024) -> StoredFeatures:
    """Compute the mean features of the items with an image, by kind, reading `batch_size` items at once.

    Raises:
        SettingsError: no item has an image.
    """
    sums: dict[str, NDArray[np.float64]] = {}
    count = 0
    for start in range(0, len(items), batch_size):
        for by_kind in features.take(items[start : start + batch_size]):
            if by_kind is None:
                continue
            count += 1
            for kind, values in by_kind.items():
                if values is not None:
                    sums[kind] = sums.get(kind, 0) + values.astype(np.float64)
    if not count:
        raise SettingsError("image control 'mean': expected items with an image in the training split, got none")
    return {kind: (total / count).astype(np.float16) for kind, total in sums.items()}
