"""Features of the images of requests: encoded in batches, and kept for images that are sent again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from limner.data.examples import StoredFeatures
from limner.features.encoders.base import Backbone, EncoderInput, encode
from limner.generation.request import Request

if TYPE_CHECKING:
    from limner.apps.server.jobs import Job


class FeatureCache:
    """Features of the latest images, by backbone and content, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.bytes = max_bytes, 0
        self._stored: OrderedDict[tuple[int, str], StoredFeatures] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, backbone: Backbone, key: str) -> StoredFeatures | None:
        """Return the features of an image, which are then the last to be removed; None where they are not stored."""
        with self._lock:
            features = self._stored.get((id(backbone), key))
            if features is not None:
                self._stored.move_to_end((id(backbone), key))
            return features

    def put(self, backbone: Backbone, key: str, features: StoredFeatures) -> None:
        """Store the features of an image, and remove the oldest ones."""
        with self._lock:
            old = self._stored.pop((id(backbone), key), {})
            self.bytes += _bytes(features) - _bytes(old)
            self._stored[id(backbone), key] = features
            while self.bytes > self.max_bytes:
                self.bytes -= _bytes(self._stored.popitem(last=False)[1])


def _bytes(features: StoredFeatures) -> int:
    return sum(values.nbytes for values in features.values() if values is not None)


class RequestFeatures:
    """The features port of the service: computes the features of the images that were read with the requests."""

    def __init__(self, cache: FeatureCache) -> None:
        self.cache = cache

    def __call__(self, requests: Sequence[Request]) -> list[StoredFeatures | None]:
        """Return the features of the image of each job; those of equal shape are computed together.

        Raises:
            BackboneError: a feature is not finite.
        """
        jobs = cast("Sequence[Job]", requests)
        batches: dict[tuple[Backbone, tuple[int, ...]], dict[str, EncoderInput]] = {}
        for job in jobs:
            if job.pixels is not None and job.image_key is not None and job.generator.backbone is not None:
                batches.setdefault((job.generator.backbone, job.pixels.shape), {})[job.image_key] = job.pixels
        computed: dict[tuple[Backbone | None, str | None], StoredFeatures] = {}
        for (backbone, _), images in batches.items():
            features = encode(backbone, np.stack([*images.values()]), [*images])
            for row, key in enumerate(images):
                stored: StoredFeatures = {kind: values[row].copy() for kind, values in features.items()}
                computed[backbone, key] = stored
                self.cache.put(backbone, key, stored)
        for job in jobs:
            job.features = computed.get((job.generator.backbone, job.image_key), job.features)
            job.pixels = None
        return [job.features for job in jobs]
