"""Features of pre-trained networks, read at one layer.

`limner.features.encoders.load` loads them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from limner.errors import BackboneError
from limner.features.encoders.base import BackboneOptions
from limner.features.encoders.convolution import can_fuse, fuse_convolutions
from limner.features.preprocessing import Preprocessing, adapt_preprocessing, read_image
from limner.features.spec import FeatureArray, FeatureKind, FeatureSpec
from limner.media.image import ImageInput, Pixels
from limner.media.modality import IMAGE
from limner.process import find_device, map_in_threads, native_bf16
from limner.storage.tensors import require_finite

Result = TypeVar("Result")

_OTHER_WEIGHTS = "copy or download the weights again"
# Images per forward pass on a CPU, in float32 and bfloat16. Where the activations of a layer take more than
# `limner.process.MMAP_THRESHOLD` bytes, the system provides zeroed pages for them in every pass, which takes as long as
# the layer: the maps of EfficientNet-Lite2 at 300 pixels take 4.4 MB an image in bfloat16.
_CPU_BATCH = {False: 2, True: 4}

# A numbered block at most three names deep: 'layer.12', 'encoder.stages.2', 'features.35'.
_BLOCK = re.compile(r"([a-z_]\w*\.){1,2}\d+")


class PretrainedNetwork(NamedTuple):
    """A loaded network with its description."""

    name: str
    """Base name of the hub id, the folder, or the architecture of the weight file."""
    module: nn.Module
    """Network on pixels (B, 3, H, W). Returns a tensor, or a mapping with `last_hidden_state` and possibly
    `pooler_output`."""
    preprocessing: Preprocessing
    """Preprocessing that the network was trained with."""
    weights_sha256: str = ""
    """SHA-256 of the weight file."""
    source: str = ""
    """Location of the network, as an argument of `load_backbone`."""
    layer_names: Mapping[str, str] = {}
    """Path of a module, by the name that papers use."""
    trained_pooler: bool = True
    """False if the weight file has no weights for the network's pooler."""
    in_order: bool = False
    """Whether every normalisation is known to read the output of the convolution that is listed before it."""


class NetworkBackbone:
    """Features of a pre-trained network, read at one layer.

    `recorded` may have the specifications of features computed by these weights with the same options; otherwise a pass
    of the network determines the shapes.

    Raises:
        BackboneError: the network has no such layer, the layer has no features of this kind, or the network cannot
            process images of this size.
        SettingsError: the device is not available.
    """

    modality = IMAGE

    def __init__(
        self, network: PretrainedNetwork, options: BackboneOptions, recorded: Sequence[FeatureSpec] = ()
    ) -> None:
        if options.views == 10 and options.kind != "pooled":
            raise BackboneError(
                f"{network.name}: kind '{options.kind}' needs views=1 or 2, as ten views show different locations"
            )
        self.preprocessing = adapt_preprocessing(network.preprocessing, options.size, options.resize, options.views)
        self._kinds: tuple[FeatureKind, ...] = ("pooled", "grid") if options.kind == "both" else (options.kind,)
        self._name, self._layer_names = network.name, network.layer_names
        self._trained_pooler = network.trained_pooler
        self._device = find_device(options.device)
        self._bf16 = native_bf16(self._device) if options.precision == "auto" else options.precision == "bf16"
        require_finite(network.module.state_dict(), network.source or network.name, BackboneError, _OTHER_WEIGHTS)
        self._network = network.module.eval().requires_grad_(False).to(self._device)
        std = torch.tensor(self.preprocessing.std).view(1, 3, 1, 1)
        self._factor = (self.preprocessing.scale / std).to(self._device)
        self._shift = (-torch.tensor(self.preprocessing.mean).view(1, 3, 1, 1) / std).to(self._device)
        self._layer = None if options.layer is None else self._find_layer(options.layer)
        self._fold_normalisation(network.in_order)
        self._network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self._bf16 and self._device.type == "cpu" and can_fuse():
            fuse_convolutions(self._network, self._layer)
        self.specs = self._make_specs(network, recorded)

    def read(self, source: ImageInput) -> Pixels:
        return read_image(source, self.preprocessing)

    def __call__(self, pixels: Pixels) -> dict[FeatureKind, FeatureArray]:
        on_cuda = self._device.type == "cuda"
        step = len(pixels) if on_cuda else _CPU_BATCH[self._bf16]
        inputs = [pixels[start : start + step] for start in range(0, len(pixels), step)]
        alone = on_cuda or len(pixels) == 1
        parts = list(map(self._encode, inputs)) if alone else map_in_threads(self._encode, inputs)
        return {kind: np.concatenate([part[kind] for part in parts]) for kind in self._kinds}

    @torch.inference_mode()
    def _encode(self, pixels: Pixels) -> dict[FeatureKind, FeatureArray]:
        computed = self.compute(torch.from_numpy(pixels).to(self._device))
        return {kind: _to_float16(values) for kind, values in computed.items()}

    @property
    def module(self) -> nn.Module:
        """The network, whose weights `compute` uses."""
        return self._network

    def compute(self, pixels: Tensor) -> dict[FeatureKind, Tensor]:
        """Compute features of pixels (B, crops, H, W, 3), averaged over crops and mirror images."""
        images, crops = pixels.shape[:2]
        batch = pixels.flatten(0, 1)  # (B * crops, H, W, 3)
        # A view keeps the channels last in memory, the fastest layout for convolutions.
        batch = batch.permute(0, 3, 1, 2)
        if self.preprocessing.bgr:
            batch = batch.flip(1)
        batch = (batch.float() * self._factor).add_(self._shift)  # a product of bytes and floats takes twice as long
        outputs = self._forward(batch)
        if self.preprocessing.views > 1:
            mirrored = self._forward(batch.flip(3))
            outputs = {
                kind: (values + (mirrored[kind].flip(3) if kind == "grid" else mirrored[kind])) / 2
                for kind, values in outputs.items()
            }
        features: dict[FeatureKind, Tensor] = {}
        for kind, output in outputs.items():
            rows = output.flatten(2).transpose(1, 2) if kind == "grid" else output  # (B, L, D)
            if crops > 1:
                rows = rows.reshape(images, crops, -1).mean(1)
            features[kind] = rows
        return features

    def _forward(self, batch: Tensor) -> dict[FeatureKind, Tensor]:
        """Compute pooled (B, D) and grid (B, D, H, W) features in float32, under autocast."""
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._bf16):
            return self._forward_fp32(batch)

    def _forward_fp32(self, batch: Tensor) -> dict[FeatureKind, Tensor]:
        output = self._run(batch)
        pooled: Tensor | None = None
        if isinstance(output, Mapping):  # an output record of transformers
            pooled = output.get("pooler_output") if self._trained_pooler else None
            output = output.get("last_hidden_state")
        maps = _as_maps(output).float()
        features: dict[FeatureKind, Tensor] = {}
        if "pooled" in self._kinds:
            features["pooled"] = maps.flatten(2).mean(2) if pooled is None else pooled.float().flatten(1)
        if "grid" in self._kinds:
            if maps.shape[2:] == (1, 1):
                raise BackboneError(f"layer '{self._layer}' returns one vector, not a grid; use kind 'pooled'")
            features["grid"] = maps
        return features

    def _run(self, batch: Tensor) -> object:
        """Run the network up to the selected layer, skipping the layers behind it."""
        if self._layer is None:
            return self._network(batch)

        def stop(module: nn.Module, inputs: object, output: object) -> None:
            raise _LayerReached(output)

        handle = self._network.get_submodule(self._layer).register_forward_hook(stop)
        try:
            self._network(batch)
        except _LayerReached as reached:
            return reached.output
        finally:
            handle.remove()
        raise BackboneError(f"layer '{self._layer}' is not used in the forward pass; choose another layer")

    def _fold_normalisation(self, in_order: bool) -> None:
        """Fold batch normalisation into the convolution before it, which halves the time.

        In a network of unknown structure the output is compared, and the network is restored where it differs.
        """
        pairs = [
            pair for pair in _normalised_convolutions(self._network) if self._layer is None or pair.path != self._layer
        ]
        before = None if in_order or not pairs else self._attempt(self._forward_fp32, self._noise())
        for pair in pairs:
            setattr(pair.parent, pair.names[0], fuse_conv_bn_eval(pair.convolution, pair.norm))
            setattr(pair.parent, pair.names[1], nn.Identity())
        if before is None:
            return
        after = self._attempt(self._forward_fp32, self._noise())
        limits = {kind: 1e-3 * float(values.abs().max()) for kind, values in before.items()}
        if not all(torch.allclose(before[kind], after[kind], 1e-3, limits[kind]) for kind in before):
            for pair in pairs:
                setattr(pair.parent, pair.names[0], pair.convolution)
                setattr(pair.parent, pair.names[1], pair.norm)

    def _make_specs(self, network: PretrainedNetwork, recorded: Sequence[FeatureSpec]) -> tuple[FeatureSpec, ...]:
        stored = {spec.kind: spec for spec in recorded if spec.weights_sha256 == network.weights_sha256}
        if all(kind in stored for kind in self._kinds):
            sizes = {kind: (stored[kind].shape, stored[kind].grid_size) for kind in self._kinds}
        else:
            sizes = {kind: _size(kind, maps) for kind, maps in self._attempt(self._forward, self._blank()).items()}
        return tuple(
            FeatureSpec(
                name=f"{network.name}.grid" if kind == "grid" else network.name,
                kind=kind,
                shape=sizes[kind][0],
                backbone=network.name,
                layer=self._layer,
                grid_size=sizes[kind][1],
                preprocessing=self.preprocessing.model_dump(mode="json"),
                weights_sha256=network.weights_sha256,
                source=network.source,
            )
            for kind in self._kinds
        )

    def _attempt(self, forward: Callable[[Tensor], Result], batch: Tensor) -> Result:
        """Run a forward pass, converting errors about the input size to BackboneError."""
        try:
            with torch.inference_mode():
                return forward(batch)
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            size = self.preprocessing.size
            raise BackboneError(f"{self._name}: cannot process images of {size} x {size} pixels: {error}") from None

    def _blank(self) -> Tensor:
        return torch.zeros(1, 3, self.preprocessing.size, self.preprocessing.size, device=self._device)

    def _noise(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.rand(self._blank().shape, generator=generator).to(self._device)

    def _find_layer(self, layer: str) -> str:
        """Resolve a layer, given by its path or by its name in papers, to its path."""
        paths = {path for path, _ in self._network.named_modules() if path}
        path = self._layer_names.get(layer, layer)
        if path in paths:
            return path
        aliases = [alias for alias, target in self._layer_names.items() if target in paths]
        available = ", ".join(aliases + [path for path, _ in self._network.named_modules() if _BLOCK.fullmatch(path)])
        raise BackboneError(f"{self._name}: no layer '{layer}'; available layers: {available}")


class _LayerReached(Exception):
    """Ends a forward pass at the selected layer."""

    def __init__(self, output: object) -> None:
        self.output = output


class _NormalisedConvolution(NamedTuple):
    """A convolution followed by batch normalisation in the same module, with their names in the module."""

    path: str  # of the convolution
    parent: nn.Module
    names: tuple[str, str]
    convolution: nn.Conv2d
    norm: nn.BatchNorm2d


def _normalised_convolutions(network: nn.Module) -> list[_NormalisedConvolution]:
    return [
        _NormalisedConvolution(f"{path}.{first}".lstrip("."), parent, (first, second), convolution, norm)
        for path, parent in network.named_modules()
        for (first, convolution), (second, norm) in itertools.pairwise(parent.named_children())
        if isinstance(convolution, nn.Conv2d)
        and isinstance(norm, nn.BatchNorm2d)
        and convolution.out_channels == norm.num_features
    ]


def _size(kind: FeatureKind, output: Tensor) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """Shape of stored features, and the sides of a grid, of the output (1, D) or (1, D, H, W) of one image."""
    depth, *sides = output.shape[1:]
    return ((math.prod(sides), depth), (sides[0], sides[1])) if kind == "grid" else ((depth,), None)


def _as_maps(output: object) -> Tensor:
    """Convert a layer's output to maps (B, D, H, W); a vector becomes a map of one location."""
    if isinstance(output, tuple):
        output = output[0]
    if not isinstance(output, Tensor) or output.ndim not in (2, 3, 4):
        raise BackboneError("the layer's output is not a vector, a token sequence or a map; choose another layer")
    if output.ndim == 4:
        return output
    if output.ndim == 2:
        return output[:, :, None, None]
    side = math.isqrt(output.shape[1])
    # The class token and register tokens precede the patches, whose number is a square.
    patches = output[:, output.shape[1] - side * side :]
    return patches.transpose(1, 2).reshape(len(output), -1, side, side)


def _to_float16(values: Tensor) -> FeatureArray:
    """Round to float16; large values become the largest of float16, and infinity stays, for `encode` to refuse."""
    limit = torch.finfo(torch.float16).max
    rounded: FeatureArray = values.clamp(-limit, limit).half().masked_fill_(values.isinf(), math.inf).cpu().numpy()
    return rounded
