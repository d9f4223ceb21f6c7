"""Loading backbones by name, or as recorded with stored features."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from limner.bounds import Bounds
from limner.errors import BackboneError, FeatureError, SettingsError
from limner.features.encoders.base import Backbone, BackboneOptions, CombinedBackbone
from limner.features.encoders.classic import CLASSIC, load_classic
from limner.features.encoders.clips import ClipBackbone, frame_spec
from limner.features.encoders.efficientnet import PREFIX, load_efficientnet
from limner.features.encoders.kmeans import KMeansBackbone
from limner.features.encoders.logmel import LogMelBackbone, LogMelSettings, frame_settings
from limner.features.encoders.network import NetworkBackbone
from limner.features.encoders.transformers import load_pretrained
from limner.features.preprocessing import Preprocessing, Resize, raw_pixels, read_image
from limner.features.spec import FeatureArray, FeatureKind, FeatureSpec, require_compatible
from limner.media.image import ImageInput, Pixels
from limner.media.modality import IMAGE
from limner.media.video import FrameSampling

DEFAULT_PIXELS = 64
_NO_NETWORK = {"precision", "device"}  # options without effect where there is no network
_NAME_BACKBONE = "give the location of the backbone of the model's features (--backbone)"


class PixelBackbone:
    """A backbone without a network: the resized image as maps (3, size, size), values 0 to 255."""

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


def load_backbone(name: str, **options: Any) -> Backbone:  # noqa: ANN401
    """Load a backbone.

    Args:
        name: `efficientnet-lite2`, which is built in (`-lite0` and `-lite1` with extra `backbones`), a hub id
            (`microsoft/resnet-50`), a folder in the format of transformers, `vgg16:FILE`, `vgg19:FILE` or
            `alexnet:FILE` with torchvision's weights, `kmeans:FILE` with filters of `limner kmeans`, `pixels` or
            `pixels:SIDE` for the images themselves, `logmel` for statistics of audio files, or `logmel:FRAMES` for a
            grid of their frames.
        options: fields of `BackboneOptions` to change, such as layer='res4f', kind='grid'.

    Raises:
        BackboneError: there is no such network, file or layer; an option does not apply to the backbone.
        SettingsError: an option is unknown or out of range, or the device is not available.
    """
    return _load(name, BackboneOptions.parse(options, "backbone"))


def _load(name: str, chosen: BackboneOptions, recorded: Sequence[FeatureSpec] = ()) -> Backbone:
    """Load a backbone; `recorded` are specifications of stored features, which save a pass to find the shapes."""
    family, _, rest = name.partition(":")
    if family == "pixels":
        _refuse_options(name, chosen, allowed={"size", "resize"})
        return PixelBackbone(chosen.size or _pixel_size(rest), chosen.resize or "squash")
    if family == "logmel":
        _refuse_options(name, chosen)
        return LogMelBackbone(LogMelSettings() if name == family else frame_settings(rest))
    if family in ("kmeans", *CLASSIC) and not rest:
        raise BackboneError(f"'{name}': expected a file after the colon, {family}:FILE")
    if family == "kmeans":
        _refuse_options(name, chosen)
        return KMeansBackbone(Path(rest))
    if name.startswith(PREFIX):
        network = load_efficientnet(name)
    else:
        network = load_classic(family, Path(rest)) if family in CLASSIC else load_pretrained(name)
    return NetworkBackbone(network, chosen, recorded)


def load_clip_backbone(name: str, kind: str, sampling: Mapping[str, Any], **options: Any) -> Backbone:  # noqa: ANN401
    """Load a backbone of images for the frames of videos.

    Args:
        name: see `load_backbone`.
        kind: 'pooled' for the mean over the frames, 'grid' for one row per frame, or 'both'; maps, such as pixels, are
            stored frame by frame.
        sampling: fields of `FrameSampling` to change.
        options: options of `load_backbone` except kind.

    Raises:
        BackboneError: as `load_backbone`, or the backbone does not read images.
        SettingsError: an option is unknown or out of range.
    """
    kinds: dict[str, tuple[FeatureKind, ...]] = {"pooled": ("pooled",), "grid": ("grid",), "both": ("pooled", "grid")}
    if kind not in kinds:
        raise SettingsError(f"kind '{kind}': expected pooled, grid or both")
    backbone = load_backbone(name, **options)
    if backbone.modality is not IMAGE:
        raise BackboneError(
            f"{name}: encodes {backbone.modality.plural}, not the frames of videos; use another backbone"
        )
    return ClipBackbone(backbone, FrameSampling.parse(dict(sampling), "frames"), kinds[kind])


def load_backbone_for(
    specs: Sequence[FeatureSpec], name: str | None = None, *, precision: str = "auto", device: str = "cpu"
) -> Backbone:
    """Load the backbone that computed some features, to compute the features of new images in the same way.

    For features of regions, only the row of the whole image is computed, as the regions of a new image are unknown.

    Args:
        specs: specifications of the features that a model was trained on, possibly of several layers or networks with
            the same preprocessing.
        name: location of the network if it has moved; see `load_backbone`.
        precision: see `BackboneOptions`.
        device: see `BackboneOptions`.

    Raises:
        BackboneError: the network cannot be found or loaded, or the features differ in their preprocessing.
        FeatureError: the features were not computed by the network at `name`.
    """
    for spec in specs[1:]:
        if spec.preprocessing != specs[0].preprocessing:
            raise BackboneError(
                f"the features '{specs[0].name}' and '{spec.name}' differ in their preprocessing, so they cannot be "
                "computed of new images together; extract both with the same size, resize and views"
            )
    groups: dict[tuple[object, ...], list[FeatureSpec]] = {}
    for spec in specs:
        groups.setdefault((spec.source, spec.layer, spec.regions, spec.frames), []).append(spec)
    backbones = [_load_one(group, name, precision, device) for group in groups.values()]
    return backbones[0] if len(backbones) == 1 else CombinedBackbone(backbones)


def _load_one(specs: Sequence[FeatureSpec], name: str | None, precision: str, device: str) -> Backbone:
    """Load one layer of one network, for its pooled features, its grid or both."""
    first = specs[0]
    if first.frames is not None:
        inner = _load_one([frame_spec(first)], name, precision, device)
        return ClipBackbone(inner, first.frames, [spec.kind for spec in specs])
    if first.regions is not None:
        from limner.features.regions import WholeImageBackbone, whole_image_spec

        return WholeImageBackbone(_load_one([whole_image_spec(first)], name, precision, device), first.regions)
    if not first.preprocessing:
        raise BackboneError(f"features '{first.name}' of a limner.FunctionBackbone: name it as backbone, in Python")
    if first.backbone == "logmel":
        return LogMelBackbone(LogMelSettings.parse(first.preprocessing, f"features '{first.name}'"))
    preprocessing = Preprocessing.parse(first.preprocessing, f"features '{first.name}'")
    if first.backbone == "kmeans":
        return _load_filters(first, name)
    if first.kind == "maps":
        if name is not None and name.partition(":")[0] != "pixels":
            raise BackboneError(
                f"{name}: expected no backbone, as the model was trained on pixels; leave out --backbone"
            )
        return PixelBackbone(preprocessing.size, preprocessing.resize)
    where = name or _recorded_source(first, _NAME_BACKBONE)
    if where.partition(":")[0] == "pixels":
        raise FeatureError(f"{where}: expected {first}, got maps of pixels; {_NAME_BACKBONE}")
    options = BackboneOptions.parse(
        {
            "layer": first.layer,
            "kind": "both" if len(specs) > 1 else first.kind,
            "size": preprocessing.size,
            "resize": preprocessing.resize,
            "views": preprocessing.views,
            "precision": precision,
            "device": device,
        },
        "backbone",
    )
    backbone = _load(where, options, specs)
    loaded = {spec.kind: spec for spec in backbone.specs}
    for spec in specs:
        require_compatible(loaded[spec.kind], spec, where, _NAME_BACKBONE)
    return backbone


def _recorded_source(spec: FeatureSpec, remedy: str) -> str:
    """Return the recorded name of a backbone; a run or a collection from elsewhere must not choose a place to read.

    Raises:
        BackboneError: it is not the name of a built-in backbone or a hub id, or is also the path of an existing file.
    """
    source = spec.source or ""
    is_file = ":" in source  # family:FILE
    if is_file or not source or Path(source).is_absolute() or ".." in source or source.startswith(("~", ".")):
        raise BackboneError(
            f"the features '{spec.name}' were computed by '{spec.backbone}' at {source or 'an unknown place'}, and "
            f"only names of built-in backbones and of the hub are taken from a run; {remedy}"
        )
    if os.path.lexists(source) and not source.startswith(PREFIX):
        raise BackboneError(
            f"the features '{spec.name}' were computed by '{source}' of the hub, and the current folder has a file or "
            f"folder of this name, which is not read because a run names it; write --backbone {source} to read it, or "
            "run the command in another folder"
        )
    return source


def _load_filters(spec: FeatureSpec, name: str | None) -> Backbone:
    """Load the k-means filters that computed some maps, from their recorded location or from `name`."""
    remedy = "give the location of the filters of the model's features (--backbone kmeans:FILE)"
    where = name or _recorded_source(spec, remedy)
    family, _, file = where.partition(":")
    if family != "kmeans":
        hint = f"for filters in this file write kmeans:{where}" if Path(where).is_file() else remedy
        raise BackboneError(f"{where or 'no file'}: expected k-means filters, which computed the features; {hint}")
    if not Path(file).is_file():
        raise BackboneError(f"{file}: no such file; expected the k-means filters that computed the features; {remedy}")
    backbone = KMeansBackbone(Path(file))
    require_compatible(backbone.specs[0], spec, where, remedy)
    return backbone


def _refuse_options(name: str, options: BackboneOptions, allowed: set[str] | None = None) -> None:
    """Raise an error for options that the backbone does not have."""
    values, unset = options.model_dump(), BackboneOptions().model_dump()
    for field in values:
        if values[field] != unset[field] and field not in _NO_NETWORK | (allowed or set()):
            raise BackboneError(f"{name}: option '{field}' does not apply to this backbone; remove it")


def _pixel_size(text: str) -> int:
    if not text:
        return DEFAULT_PIXELS
    try:
        return int(Bounds(1, 1_024).parse(text))
    except ValueError as error:
        raise BackboneError(f"pixels:SIDE: side in pixels: {error}; try pixels:{DEFAULT_PIXELS}") from None
