"""The interface of backbones and the options that select their output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from limner.bounds import ImageSide
from limner.errors import BackboneError
from limner.features.preprocessing import Preprocessing, Resize
from limner.features.spec import FeatureArray, FeatureKind, FeatureSpec
from limner.media.image import ImageInput, describe_input
from limner.media.modality import IMAGE, Modality
from limner.settings import Settings
from limner.storage.hashes import infinite_rows

if TYPE_CHECKING:
    from torch import Tensor, nn

EncoderInput = NDArray[Any]
"""A preprocessed input: pixels (crops, H, W, 3) of an image, or an encoder's own representation."""


class Backbone(Protocol):
    """A frozen encoder that computes features of images, or of files of another modality."""

    @property
    def modality(self) -> Modality:
        """Modality of the inputs."""

    @property
    def specs(self) -> tuple[FeatureSpec, ...]:
        """Specification of each kind of features that is computed."""

    def read(self, source: ImageInput) -> EncoderInput:
        """Open and preprocess a file, or an image in memory; may be called from several threads.

        Raises:
            MediaError: the file is missing, damaged, or of another modality.
        """

    def __call__(self, inputs: EncoderInput, /) -> dict[FeatureKind, FeatureArray]:
        """Compute the features of stacked results of `read`, (B, ...), by kind, each (B, *shape)."""


@runtime_checkable
class RecordableBackbone(Backbone, Protocol):
    """A backbone whose features are computed from pixels by tensors alone, so that they can be recorded as a graph."""

    @property
    def preprocessing(self) -> Preprocessing:
        """Transform from an image to the pixels that `read` returns."""

    @property
    def module(self) -> nn.Module:
        """Module with the weights that `compute` uses."""

    def compute(self, pixels: Tensor) -> dict[FeatureKind, Tensor]:
        """Compute the features of pixels 0 to 255, (B, crops, H, W, 3), each (B, *shape)."""


AnyBackbone = str | Backbone | None
"""A backbone, or the location of its network; None for the location recorded with the stored features."""


class BackboneOptions(Settings):
    """Options of `load_backbone`."""

    layer: str | None = None
    """Module whose output is returned, by its path (`encoder.stages.2`) or its name in papers (`res4f`, `conv5_4`,
    `fc7`); default: the last layer, and the network's own pooling."""
    kind: Literal["pooled", "grid", "both"] = "pooled"
    """Kind of features: one vector per image, one per location, or both."""
    size: ImageSide | None = None
    """Side of the input in pixels; default: as the network was trained."""
    resize: Resize | None = None
    """Resizing mode: `crop` or `squash`; default: as the network was trained (`squash` for pixels)."""
    views: Literal[1, 2, 10] = 1
    """Number of views averaged: 1, 2 (with the mirror image) or 10 (centre, corners and mirror images)."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Precision of matrix products: bf16, fp32, or auto (bf16 where the hardware computes it natively)."""
    device: str = "cpu"
    """Device: cpu or cuda."""


class CombinedBackbone:
    """Several backbones with the same preprocessing and different kinds of features."""

    def __init__(self, backbones: Sequence[Backbone]) -> None:
        self._backbones = tuple(backbones)
        self.modality = self._backbones[0].modality
        self.specs = tuple(spec for backbone in backbones for spec in backbone.specs)

    def read(self, source: ImageInput) -> EncoderInput:
        return self._backbones[0].read(source)

    def __call__(self, inputs: EncoderInput) -> dict[FeatureKind, FeatureArray]:
        return {kind: values for backbone in self._backbones for kind, values in backbone(inputs).items()}


class FunctionBackbone:
    """A user-defined backbone: a function that computes or looks up the features of an image."""

    modality = IMAGE

    def __init__(
        self, name: str, function: Callable[[ImageInput], ArrayLike], shape: tuple[int, ...], version: str = ""
    ) -> None:
        """Wrap a function.

        Args:
            name: name of the features, which with the shape and the version identifies them in trained models.
            function: returns the features of an image as NumPy's `asarray` reads them; several threads call it.
            shape: shape of the features, pooled (D,), grid (L, D) or maps (C, H, W), which decides their kind.
            version: version of the function, such as a digest of its weights.

        Raises:
            SettingsError: the shape is of another kind.
        """
        kinds: dict[int, FeatureKind] = {1: "pooled", 2: "grid", 3: "maps"}
        self._function, self._kind = function, kinds.get(len(shape), "maps")
        values = {"name": name, "kind": self._kind, "shape": shape, "backbone": name, "weights_sha256": version}
        self.specs = (FeatureSpec.parse({**values, "preprocessing": {}}, f"features '{name}'"),)

    def read(self, source: ImageInput) -> EncoderInput:
        """Compute the features of an image; BackboneError if they have another shape."""
        values = np.asarray(self._function(source), np.float16)
        if values.shape != self.specs[0].shape:
            raise BackboneError(f"{describe_input(source)}: expected {self.specs[0]}, got the shape {values.shape}")
        return values

    def __call__(self, inputs: EncoderInput) -> dict[FeatureKind, FeatureArray]:
        return {self._kind: inputs}


def encode(backbone: Backbone, inputs: EncoderInput, names: Sequence[str]) -> dict[FeatureKind, FeatureArray]:
    """Compute the features of inputs (B, ...), and check that the features of the named, first inputs are finite.

    Raises:
        BackboneError: a feature is NaN or infinite; names the file.
    """
    features = backbone(inputs)
    for spec in backbone.specs:
        if rows := infinite_rows(features[spec.kind][: len(names)]):
            raise BackboneError(
                f"{names[rows[0]]}: the {spec.kind} features of backbone '{spec.backbone}' are not finite (NaN or "
                "infinity); compute them with precision 'fp32', or use other weights"
            )
    return features
