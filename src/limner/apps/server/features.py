"""Features of the images of requests: encoded in batches, and kept for images that are sent again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np

from limner.data.examples import StoredFeatures
from limner.features.encoders.base import Backbone, EncoderInput, encode

CacheKey = tuple[int, str]


class FeatureCache:
    """Features of the latest images, by backbone and content, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.bytes = max_bytes, 0
        self._stored: OrderedDict[CacheKey, StoredFeatures] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, backbone: Backbone, key: str) -> bool:
        """Whether the features of an image are stored; they are then the last to be removed."""
        with self._lock:
            found = (id(backbone), key) in self._stored
            if found:
                self._stored.move_to_end((id(backbone), key))
            return found

    def get(self, backbone: Backbone, key: str) -> StoredFeatures | None:
        """Return the features of an image, or None."""
        with self._lock:
            return self._stored.get((id(backbone), key))

    def put(self, backbone: Backbone, key: str, features: StoredFeatures) -> None:
        """Store the features of an image, and remove the oldest ones."""
        with self._lock:
            old = self._stored.pop((id(backbone), key), None)
            self.bytes += _bytes(features) - (0 if old is None else _bytes(old))
            self._stored[id(backbone), key] = features
            while self.bytes > self.max_bytes:
                _, removed = self._stored.popitem(last=False)
                self.bytes -= _bytes(removed)


def encode_images(backbone: Backbone, images: Mapping[str, EncoderInput]) -> dict[str, StoredFeatures]:
    """Compute the features of preprocessed images by their names, those of one shape together.

    Raises:
        BackboneError: a feature is not finite.
    """
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name, values in images.items():
        by_shape.setdefault(values.shape, []).append(name)
    found: dict[str, StoredFeatures] = {}
    for names in by_shape.values():
        features = encode(backbone, np.stack([images[name] for name in names]), names)
        for row, name in enumerate(names):
            found[name] = {kind: values[row].copy() for kind, values in features.items()}
    return found


def _bytes(features: StoredFeatures) -> int:
    return sum(values.nbytes for values in features.values() if values is not None)
