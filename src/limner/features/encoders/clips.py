"""Features of videos: any backbone of images, applied to the frames of a clip. An image is a clip of one frame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from limner.features.encoders.base import Backbone, EncoderInput
from limner.features.spec import FeatureArray, FeatureKind, FeatureSpec
from limner.media.image import ImageInput
from limner.media.modality import IMAGE, VIDEO, modality_of
from limner.media.video import FrameSampling, read_frames


class ClipBackbone:
    """Features of clips and images: the mean over the frames, or one row per frame.

    With pooled features (D,) of each frame, kind 'pooled' is the mean over the frames, and 'grid' has a frame in each
    row, (L, D). Maps of a frame (C, H, W), such as its pixels, are stacked to (L, C, H, W). L is the maximum number of
    frames; rows of zeros follow where there are fewer.
    """

    modality = VIDEO

    def __init__(self, backbone: Backbone, sampling: FrameSampling, kinds: Sequence[FeatureKind] = ("grid",)) -> None:
        self._backbone, self._sampling = backbone, sampling
        (spec,) = backbone.specs
        kinds = ("maps",) if spec.kind == "maps" else kinds
        self.specs = tuple(_clip_spec(spec, sampling, kind) for kind in kinds)

    def read(self, source: ImageInput) -> EncoderInput:
        return read_clip(self._backbone, source, self._sampling)

    def __call__(self, inputs: EncoderInput) -> dict[FeatureKind, FeatureArray]:
        by_kind: dict[FeatureKind, list[FeatureArray]] = {spec.kind: [] for spec in self.specs}
        for frames in _encode_frames(self._backbone, inputs):
            (values,) = frames.values()
            for spec in self.specs:
                by_kind[spec.kind].append(_padded(values, spec.shape) if spec.frame_by_frame else _mean(values))
        return {kind: np.stack(stored) for kind, stored in by_kind.items()}


class ImageOfClipBackbone:
    """Features of images and clips for a model that was trained on images: the mean over the frames of a clip.

    The middle frame takes the place of the mean for maps, because the mean of pixels is a blurred image.
    """

    modality = IMAGE

    def __init__(self, backbone: Backbone) -> None:
        self._backbone, self._sampling = backbone, FrameSampling()
        if all(spec.kind == "maps" for spec in backbone.specs):
            self._sampling = FrameSampling(count=1)  # the middle frame
        self.specs = backbone.specs

    def read(self, source: ImageInput) -> EncoderInput:
        return read_clip(self._backbone, source, self._sampling)

    def __call__(self, inputs: EncoderInput) -> dict[FeatureKind, FeatureArray]:
        encoded = _encode_frames(self._backbone, inputs)
        by_kind = {spec.kind: [frames[spec.kind] for frames in encoded] for spec in self.specs}
        return {
            kind: np.stack([values[len(values) // 2] if kind == "maps" else _mean(values) for values in clips])
            for kind, clips in by_kind.items()
        }


def read_clip(backbone: Backbone, source: ImageInput, sampling: FrameSampling) -> EncoderInput:
    """Preprocess a clip or an image as frames (frames, ...); MediaError if damaged, MissingExtraError without PyAV."""
    if isinstance(source, Path | str) and modality_of(source) is VIDEO:
        return np.stack([backbone.read(frame) for frame in read_frames(source, sampling)])
    return backbone.read(source)[None]


def frame_spec(spec: FeatureSpec) -> FeatureSpec:
    """Return the specification of the features of one frame, which is encoded like an image."""
    shape = spec.shape[1:] if spec.frame_by_frame else spec.shape
    name = spec.name.removesuffix(".frames")
    kind = "pooled" if spec.kind == "grid" else spec.kind
    return spec.model_copy(update={"name": name, "kind": kind, "shape": shape, "frames": None, "modality": "image"})


def _clip_spec(spec: FeatureSpec, sampling: FrameSampling, kind: FeatureKind) -> FeatureSpec:
    changes: dict[str, object] = {"kind": kind, "frames": sampling, "modality": "video"}
    if kind != "pooled":
        changes |= {"name": f"{spec.name}.frames", "shape": (sampling.count, *spec.shape)}
    return spec.model_copy(update=changes)


def _encode_frames(backbone: Backbone, inputs: EncoderInput) -> list[dict[FeatureKind, FeatureArray]]:
    """Compute the features of every frame, by kind (frames, ...), of each of B clips of the same number of frames.

    Each clip is a batch of its own, so that its features do not depend on other clips; images are one batch.
    """
    if inputs.shape[1] == 1:
        features = backbone(inputs[:, 0])
        return [{kind: values[row : row + 1] for kind, values in features.items()} for row in range(len(inputs))]
    return [backbone(frames) for frames in inputs]


def _mean(frames: FeatureArray) -> FeatureArray:
    mean: FeatureArray = frames.mean(0, dtype=np.float32).astype(np.float16)
    return mean


def _padded(frames: FeatureArray, shape: tuple[int, ...]) -> FeatureArray:
    """Add rows of zeros up to the shape (L, ...)."""
    padded = np.zeros(shape, dtype=np.float16)
    padded[: len(frames)] = frames
    return padded
