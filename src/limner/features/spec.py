"""Specification of features: their origin, and the compatibility of two feature tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from limner.bounds import Count, GridSide, Regions
from limner.errors import FeatureError
from limner.features.preprocessing import Preprocessing, encoded_box
from limner.media.modality import ModalityName
from limner.media.video import FrameSampling
from limner.settings import Settings

FeatureKind = Literal["pooled", "grid", "maps"]
FeatureArray = NDArray[np.float16]
_IN_FLOAT32 = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
"""Value of every float16 number, by its 16 bits."""

_NOT_IN_FINGERPRINT = {"name", "modality", "source"}


def in_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Convert features to float32; a lookup table for float16 takes a third of NumPy's time."""
    return _IN_FLOAT32.take(values.view(np.uint16)) if values.dtype == np.float16 else values.astype(np.float32)


class RegionRows(Settings):
    """Layout of a grid of image regions: up to `count` regions, zero rows where there are fewer, the whole image."""

    count: Regions
    """Maximum number of regions per image; the grid has one row more."""
    boxes_sha256: str
    """SHA-256 of the boxes that the regions were chosen from."""


class FeatureSpec(Settings):
    """Specification of the features in one table."""

    name: str
    """Name of the table in its collection; not part of the fingerprint."""
    kind: FeatureKind
    """Kind of features: pooled, grid or maps."""
    shape: tuple[Count, ...]
    """Shape of the features of one item: pooled (D,), grid (L, D), maps (C, H, W); frame by frame a grid (L, D) or maps
    (L, C, H, W)."""
    backbone: str
    """Name of a built-in backbone, base name of the hub id or the folder, or the weight file's architecture."""
    layer: str | None = None
    """Module whose output the features are; None for the last layer. Of k-means filters, the activation; None for the
    triangle activation."""
    grid_size: tuple[GridSide, GridSide] | None = None
    """Height and width of a grid in locations; L is their product, in row-major order."""
    regions: RegionRows | None = None
    """Layout of a grid whose rows are image regions."""
    frames: FrameSampling | None = None
    """Frames of the videos that the features were computed of: one row per frame, zero rows where there are fewer, or
    the mean of pooled features, which is compatible with the features of images. None for images and audio files."""
    preprocessing: dict[str, Any]
    """Preprocessing of the inputs, as plain values."""
    weights_sha256: str
    """SHA-256 of the weight file; empty for backbones without weights."""
    modality: ModalityName = "image"
    """Modality of the inputs; not part of the fingerprint, as it follows from the backbone."""
    source: str | None = None
    """Location of the backbone at extraction, as an argument of `load_backbone`; not part of the fingerprint."""

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        expected = {"pooled": 1, "grid": 2, "maps": 4 if self.frame_by_frame else 3}[self.kind]
        if len(self.shape) != expected:
            what = f"{self.kind} of frames" if self.frame_by_frame else self.kind
            raise ValueError(f"expected {expected} numbers as the shape of {what}, got {len(self.shape)}")
        return self

    @property
    def fingerprint(self) -> str:
        """Digest of all fields that determine the values, sixteen hexadecimal digits."""
        content = self.model_dump(mode="json", exclude=_NOT_IN_FINGERPRINT)
        if self.regions is None:
            del content["regions"]
        if not self.frame_by_frame:
            del content["frames"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def frame_by_frame(self) -> bool:
        """Whether each row of the features is a frame."""
        return self.frames is not None and self.kind != "pooled"

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        layer = f" layer {self.layer}" if self.layer else ""
        kind: str = "frames" if self.frame_by_frame else self.kind
        kind = kind if self.regions is None else "regions"
        return f"{self.backbone}{layer} {kind} {shape} [{self.fingerprint}]"


def grid_of(spec: FeatureSpec, locations: int) -> tuple[int, int] | None:
    """Rows and columns of the image locations that a model attends to; None if the features have another number.

    Frames of videos are not locations. A convnet on feature maps, and the pooling of a grid, keep the aspect ratio.
    """
    sides = spec.shape[1:] if spec.kind == "maps" else spec.grid_size
    if spec.frame_by_frame or sides is None:
        return None
    height, width = sides
    size = round((locations * height / width) ** 0.5), round((locations * width / height) ** 0.5)
    if spec.kind == "grid" and (height % size[0] or locations == 1 < height):
        return None
    return size if size[0] * size[1] == locations else None


class AttendedArea(NamedTuple):
    """The locations that a model attends to."""

    grid: tuple[int, int]
    """Rows and columns."""
    box: tuple[float, float, float, float]
    """Left, top, right and bottom of the part that the locations cover, in image pixels; may exceed the image."""


def attended_area(features: Sequence[FeatureSpec], locations: int, size: tuple[int, int]) -> AttendedArea | None:
    """Return the grid of a number of locations, and the part of an image of this width and height that it covers.

    None if no table of features has these locations; frames of videos are not locations.
    """
    for spec in features:
        if (grid := grid_of(spec, locations)) is not None:
            preprocessing = Preprocessing.parse(spec.preprocessing, f"features '{spec.name}'")
            return AttendedArea(grid, encoded_box(size, preprocessing))
    return None


def require_compatible(
    stored: FeatureSpec,
    expected: FeatureSpec,
    where: str,
    remedy: str = "remove that table and run 'limner features' with the settings of the model's own features",
) -> None:
    """Check that the features in `where` were computed as expected; FeatureError with the differing fields if not."""
    if stored.fingerprint == expected.fingerprint:
        return
    actual, needed = (spec.model_dump(exclude=_NOT_IN_FINGERPRINT) for spec in (stored, expected))
    differences = "; ".join(f"{key}: {actual[key]} / {needed[key]}" for key in actual if actual[key] != needed[key])
    raise FeatureError(f"{where}: expected {expected}, got {stored} ({differences}); {remedy}")
