"""The interface of backbones."""

from __future__ import annotations

from typing import Protocol

from limner.features.preprocessing import Preprocessing, preprocess
from limner.features.store import FeatureSpec, Kind, Prepared, Values
from limner.media.image import ImageInput, Pixels, open_image
from limner.media.modality import Modality


class Backbone(Protocol):
    """A frozen encoder that computes features of images, or of files of another modality."""

    @property
    def modality(self) -> Modality:
        """Modality of the inputs."""
        ...

    @property
    def specs(self) -> tuple[FeatureSpec, ...]:
        """Specification of each kind of features that is computed."""
        ...

    def read(self, source: ImageInput) -> Prepared:
        """Open and preprocess one input; may be called from several threads.

        Args:
            source: a file; images also as encoded bytes, a Pillow image or an array.

        Returns:
            An array that `__call__` accepts when stacked; of images, pixels (crops, H, W, 3).

        Raises:
            MediaError: the file is missing, damaged, or of another modality.
        """
        ...

    def __call__(self, inputs: Prepared, /) -> dict[Kind, Values]:
        """Compute the features of a batch.

        Args:
            inputs: results of `read`, stacked, (B, ...).

        Returns:
            Features by kind, each (B, *shape).
        """
        ...


def read_image(source: ImageInput, preprocessing: Preprocessing) -> Pixels:
    """Open and preprocess an image.

    Returns:
        Pixel values 0..255, (crops, H, W, 3).

    Raises:
        MediaError: the image cannot be decoded.
    """
    return preprocess(open_image(source, min_side=preprocessing.short), preprocessing)
