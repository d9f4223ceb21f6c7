"""Raw pixels as features, for models that learn their own image encoder."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from limner.features.preprocessing import Resize, raw_pixels, read_image
from limner.features.spec import FeatureArray, FeatureKind, FeatureSpec
from limner.media.image import ImageInput, Pixels
from limner.media.modality import IMAGE


class PixelBackbone:
    """A backbone without a network: the resized image as maps (3, size, size), with values 0..255 (exact in float16).

    Args:
        size: side of the image in pixels.
        resize: resizing mode.
    """

    modality = IMAGE

    def __init__(self, size: int, resize: Resize) -> None:
        self.preprocessing = raw_pixels(size, resize)
        spec = FeatureSpec(
            name=f"pixels{size}",
            kind="maps",
            shape=(3, size, size),
            backbone="pixels",
            preprocessing=self.preprocessing.model_dump(mode="json"),
            weights_sha256="",
        )
        self.specs: tuple[FeatureSpec, ...] = (spec,)

    def read(self, source: ImageInput) -> Pixels:
        return read_image(source, self.preprocessing)

    def __call__(self, pixels: Pixels) -> dict[FeatureKind, FeatureArray]:
        return {"maps": pixels[:, 0].transpose(0, 3, 1, 2).astype(np.float16)}

    @property
    def module(self) -> nn.Module:
        """A module without weights."""
        return nn.Identity()

    def compute(self, pixels: Tensor) -> dict[FeatureKind, Tensor]:
        """Compute the maps (B, 3, H, W) of pixels (B, 1, H, W, 3)."""
        return {"maps": pixels[:, 0].permute(0, 3, 1, 2).float()}
