"""Feature maps of filters learned by k-means: Kiros et al. (2014), section 5, after Coates and Ng (2011).

An image is encoded as one coarse map per filter. The paper's "soft activation encoding" has no equation; there are two
readings. The triangle activation max(0, mean(z) - z_k) is from Coates, Lee and Ng (2011), with k-means. The soft
threshold max(0, D_k x - alpha) is from the paper's reference [22], Coates and Ng (2011), where -D_k x is encoded as
well: Kiros et al. have as many maps as filters, so these maps are left out.

Shapes: D is the size of a patch, 3 * patch * patch (channel-major, then row-major); K is the number of filters.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from limner.features.encoders.base import EncoderInput
from limner.features.kmeans import load_filters, normalise, read_pixels
from limner.features.spec import FeatureArray, FeatureKind, FeatureSpec
from limner.files import read_bytes
from limner.media.image import ImageInput, Pixels
from limner.media.modality import IMAGE
from limner.process import map_in_threads


class KMeansBackbone:
    """Feature maps (K, G, G) of a dictionary learned by `limner kmeans`; BackboneError for any other file."""

    modality = IMAGE

    def __init__(self, path: Path) -> None:
        self._filters = load_filters(path)
        settings = self._filters.settings
        self.preprocessing = settings.preprocessing
        # One matrix product computes the whitened patch (D,) and its products with the centroids (K,).
        self._weights = torch.cat([self._filters.whitening, self._filters.whitening @ self._filters.centroids.T], 1).T
        self._offset = (self._weights @ self._filters.mean)[:, None]
        self._lengths = self._filters.centroids.square().sum(1)[:, None]
        spec = FeatureSpec(
            name="kmeans",
            kind="maps",
            shape=(settings.filters, settings.grid, settings.grid),
            backbone="kmeans",
            layer=settings.activation_name,
            preprocessing=self.preprocessing.model_dump(mode="json"),
            weights_sha256=hashlib.sha256(read_bytes(path)).hexdigest(),
            source=f"kmeans:{path.resolve()}",
        )
        self.specs: tuple[FeatureSpec, ...] = (spec,)

    def read(self, source: ImageInput) -> EncoderInput:
        return read_pixels(source, self._filters.settings)

    def __call__(self, pixels: EncoderInput) -> dict[FeatureKind, FeatureArray]:
        # The activations of one image fit into the processor's cache, so each thread encodes one image.
        images = pixels[:, 0]
        encoded = map_in_threads(self._encode, images) if len(images) > 1 else [self._encode(images[0])]
        return {"maps": np.stack(encoded)}

    @torch.inference_mode()
    def _encode(self, image: Pixels) -> FeatureArray:
        """Compute the max-pooled activations of an image (H, W, 3)."""
        settings = self._filters.settings
        channels = torch.from_numpy(image.transpose(2, 0, 1).astype(np.float32))
        patches = F.unfold(channels[None], settings.patch)[0]  # (D, n * n)
        outputs = self._weights @ normalise(patches.T).T - self._offset
        whitened, products = outputs[: len(patches)], outputs[len(patches) :]
        activations = self._activate(whitened, products)  # (K, n * n)
        maps = activations.view(settings.filters, settings.positions, settings.positions)
        # max(0, .) commutes with max-pooling, so it is applied to the smaller result.
        pooled = F.adaptive_max_pool2d(maps, settings.grid).clamp(min=0)
        values: FeatureArray = pooled.numpy().astype(np.float16)
        return values

    def _activate(self, whitened: Tensor, products: Tensor) -> Tensor:
        """Compute the activations f_k of patches x (D, n * n) before the maximum with zero, from D_k x, (K, n * n).

        Triangle: mean(z) - z_k, where z_k is the Euclidean distance of the patch to centroid k (Coates, Lee and Ng,
        2011). Soft threshold: D_k x - alpha (Coates and Ng, 2011).
        """
        settings = self._filters.settings
        if settings.activation == "soft-threshold":
            return products - settings.alpha
        distances = (whitened.square().sum(0) - 2 * products + self._lengths).clamp(min=0).sqrt()
        return distances.mean(0) - distances
