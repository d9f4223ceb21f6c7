"""Networks at work: prepared pictures in; vectors, grids or maps out, and a record of what was done.

`limner.features.encoders.load` loads them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from limner.errors import BackboneError
from limner.features.encoders.base import Backbone, read_image
from limner.features.preprocessing import Preprocessing, raw_pixels
from limner.features.store import FeatureSpec, Kind, Prepared, Values
from limner.media.image import ImageInput, Pixels
from limner.media.modality import IMAGE

Result = TypeVar("Result")
Forms = Literal["pooled", "grid", "both"]

# res4f is the last block of a ResNet-50's third stage: 14 x 14 x 1024.
_RESNET_LAYERS = {f"res{n + 2}{last}": f"encoder.stages.{n}" for n, last in enumerate("cdfc")}


class PixelBackbone:
    """No network: the picture itself, made small, for models that learn to see from nothing.

    The values are 0..255, which float16 holds exactly.
    """

    modality = IMAGE

    def __init__(self, size: int, resize: Literal["crop", "squash"]) -> None:
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

    def __call__(self, pixels: Pixels) -> dict[Kind, Values]:
        return {"maps": pixels[:, 0].transpose(0, 3, 1, 2).astype(np.float16)}


class JoinedBackbone:
    """Several layers or networks that look at one picture, prepared alike for all; each gives other forms."""

    def __init__(self, backbones: Sequence[Backbone]) -> None:
        self._backbones = tuple(backbones)
        self.modality = self._backbones[0].modality
        self.specs = tuple(spec for backbone in backbones for spec in backbone.specs)

    def read(self, source: ImageInput) -> Prepared:
        return self._backbones[0].read(source)

    def __call__(self, pixels: Pixels) -> dict[Kind, Values]:
        return {kind: values for backbone in self._backbones for kind, values in backbone(pixels).items()}


class NetworkBackbone:
    """A network under evaluation, read at one layer.

    Args:
        name: base name of what was loaded.
        network: takes pixels (B, 3, H, W); gives `last_hidden_state` and, when it has one, `pooler_output`.
        layer: the module whose output is read instead, as `named_modules` or the papers call it.
        forms: vector (mean over a layer's locations, or the network's own pooler), grid, or both.
        preprocessing: how pictures become pixels.
        weights_sha256: of the weight file.
        source: where the network is, as `load_backbone` takes it.
        own_pooler: false when the network's pooler has no trained weights.
        bf16: whether matrix products run in bfloat16.
        device: where the network runs.

    Raises:
        BackboneError: there is no such layer, it does not give this form, or it cannot read this size.
    """

    modality = IMAGE

    def __init__(
        self,
        name: str,
        network: nn.Module,
        *,
        layer: str | None,
        forms: Forms,
        preprocessing: Preprocessing,
        weights_sha256: str,
        source: str,
        own_pooler: bool,
        bf16: bool,
        device: torch.device,
    ) -> None:
        if preprocessing.views == 10 and forms != "pooled":
            raise BackboneError(f"{name}: ten views show different places, so grids take views=1 or 2")
        self.preprocessing = preprocessing
        self._kinds: tuple[Kind, ...] = ("pooled", "grid") if forms == "both" else (forms,)
        self._network = network.eval().requires_grad_(False).to(device)
        self._own_pooler, self._bf16, self._device = own_pooler, bf16, device
        std = torch.tensor(preprocessing.std).view(1, 3, 1, 1)
        self._factor = (preprocessing.scale / std).to(device)
        self._shift = (-torch.tensor(preprocessing.mean).view(1, 3, 1, 1) / std).to(device)
        self._layer = None if layer is None else self._find(name, layer)
        self._fuse(name)
        self._network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.specs = self._specify(name, weights_sha256, source)

    def read(self, source: ImageInput) -> Pixels:
        return read_image(source, self.preprocessing)

    def __call__(self, pixels: Pixels) -> dict[Kind, Values]:
        threads = torch.get_num_threads()
        if self._device.type == "cuda" or threads == 1 or len(pixels) == 1:
            return self._see_all(pixels, map)
        # A thread for each few pictures: threads inside a layer would wait for each other a hundred times a pass.
        try:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                return self._see_all(pixels, pool.map)
        finally:
            torch.set_num_threads(threads)  # the workers' number became that of every new thread

    def _see_all(self, pixels: Pixels, apply: Callable[..., Iterable[dict[Kind, Values]]]) -> dict[Kind, Values]:
        step = len(pixels) if self._device.type == "cuda" else _CPU_BATCH[self._bf16]
        parts = list(apply(self._see, [pixels[start : start + step] for start in range(0, len(pixels), step)]))
        return {kind: np.concatenate([part[kind] for part in parts]) for kind in self._kinds}

    @torch.inference_mode()
    def _see(self, pixels: Pixels) -> dict[Kind, Values]:
        pictures, crops = pixels.shape[:2]
        batch = torch.from_numpy(pixels).flatten(0, 1).to(self._device)  # (B * crops, H, W, 3)
        # A view: the channels stay last in memory, which is the layout convolutions are fastest at.
        batch = batch.permute(0, 3, 1, 2)
        if self.preprocessing.bgr:
            batch = batch.flip(1)
        batch = batch * self._factor + self._shift
        seen = self._look(batch)
        if self.preprocessing.views > 1:
            mirrored = self._look(batch.flip(3))
            seen = {kind: (seen[kind] + _mirror_back(mirrored[kind])) / 2 for kind in seen}
        values: dict[Kind, Values] = {}
        for kind, answer in seen.items():
            rows = answer.flatten(2).transpose(1, 2) if kind == "grid" else answer  # (B, L, D)
            if crops > 1:
                rows = rows.reshape(pictures, crops, -1).mean(1)
            values[kind] = _to_float16(rows.cpu().numpy())
        return values

    def _look(self, batch: Tensor) -> dict[Kind, Tensor]:
        """One pass: vector (B, D) and grid (B, D, H, W), in float32."""
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._bf16):
            return self._look_exactly(batch)

    def _look_exactly(self, batch: Tensor) -> dict[Kind, Tensor]:
        output = self._run(batch)
        pooled = getattr(output, "pooler_output", None) if self._own_pooler else None
        answer = _as_map(getattr(output, "last_hidden_state", output)).float()
        seen: dict[Kind, Tensor] = {}
        if "pooled" in self._kinds:
            seen["pooled"] = answer.flatten(2).mean(2) if pooled is None else pooled.float().flatten(1)
        if "grid" in self._kinds:
            if answer.shape[2:] == (1, 1):
                raise BackboneError(f"layer '{self._layer}' gives a vector, no grid; ask for kind 'pooled'")
            seen["grid"] = answer
        return seen

    def _run(self, batch: Tensor) -> object:
        """Run the network up to the layer that is wanted; what follows it is not needed, so it is not run."""
        if self._layer is None:
            return self._network(batch)

        def stop(module: nn.Module, inputs: object, output: object) -> None:
            raise _Reached(output)

        handle = self._network.get_submodule(self._layer).register_forward_hook(stop)
        try:
            self._network(batch)
        except _Reached as reached:
            return reached.output
        finally:
            handle.remove()
        raise BackboneError(f"layer '{self._layer}' takes no part in looking at a picture; choose another")

    def _fuse(self, name: str) -> None:
        """Fold batch normalisations into the convolutions where that changes nothing: it halves the time."""
        pairs = _normalised_convolutions(self._network)
        if not pairs:
            return
        size = self.preprocessing.size
        noise = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0)).to(self._device)
        before = self._try(name, self._look_exactly, noise)
        for parent, first, convolution, second, norm in pairs:
            setattr(parent, first, fuse_conv_bn_eval(convolution, norm))
            setattr(parent, second, nn.Identity())
        after = self._try(name, self._look_exactly, noise)
        if not all(_close(before[kind], after[kind]) for kind in before):
            for parent, first, convolution, second, norm in pairs:
                setattr(parent, first, convolution)
                setattr(parent, second, norm)

    def _specify(self, name: str, weights_sha256: str, source: str) -> tuple[FeatureSpec, ...]:
        seen = self._try(name, self._look, self._empty())
        specs = []
        for kind in self._kinds:
            depth, *sides = seen[kind].shape[1:]
            specs.append(
                FeatureSpec(
                    name=f"{name}.grid" if kind == "grid" else name,
                    kind=kind,
                    shape=(math.prod(sides), depth) if kind == "grid" else (depth,),
                    backbone=name,
                    layer=self._layer,
                    grid_size=(sides[0], sides[1]) if kind == "grid" else None,
                    preprocessing=self.preprocessing.model_dump(mode="json"),
                    weights_sha256=weights_sha256,
                    source=source,
                )
            )
        return tuple(specs)

    def _try(self, name: str, look: Callable[[Tensor], Result], batch: Tensor) -> Result:
        """Show the network one picture: what it cannot read is found out before any work is done."""
        try:
            with torch.inference_mode():
                return look(batch)
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            size = self.preprocessing.size
            raise BackboneError(f"{name}: cannot read pictures of {size} x {size} pixels: {error}") from None

    def _empty(self) -> Tensor:
        return torch.zeros(1, 3, self.preprocessing.size, self.preprocessing.size, device=self._device)

    def _find(self, name: str, layer: str) -> str:
        """The path of a layer that is called by its path or by its name in the papers."""
        paths = {path for path, _ in self._network.named_modules() if path}
        named: dict[str, str] = getattr(self._network, "layer_names", _RESNET_LAYERS)
        path = named.get(layer, layer)
        if path in paths:
            return path
        aliases = [alias for alias, target in named.items() if target in paths]
        raise BackboneError(f"{name}: no layer '{layer}'; it has {', '.join(aliases + self._layers(name))}")

    def _layers(self, name: str) -> list[str]:
        """The blocks of the network and the shapes they give, for the one who looks for a layer."""
        found: list[str] = []

        def note(path: str) -> Callable[[nn.Module, object, object], None]:
            def hook(module: nn.Module, inputs: object, output: object) -> None:
                value = output[0] if isinstance(output, tuple) else output
                if isinstance(value, Tensor):
                    found.append(f"{path} ({'x'.join(map(str, value.shape[1:]))})")

            return hook

        blocks = [(path, module) for path, module in self._network.named_modules() if _BLOCK.fullmatch(path)]
        handles = [module.register_forward_hook(note(path)) for path, module in blocks]
        try:
            self._try(name, self._network, self._empty())
        finally:
            for handle in handles:
                handle.remove()
        return found


# Pictures at once, in float32 and bfloat16: for more, the system gives and takes the activations' memory in every
# layer, which takes as long as the layer (measured with MobileNetV2 at 224 pixels).
_CPU_BATCH = {False: 2, True: 8}

# A numbered part of the network, at most three names deep: 'layer.12', 'encoder.stages.2', 'features.35'.
_BLOCK = re.compile(r"([a-z_]\w*\.){1,2}\d+")


class _Reached(Exception):
    def __init__(self, output: object) -> None:
        self.output = output


def _normalised_convolutions(
    network: nn.Module,
) -> list[tuple[nn.Module, str, nn.Conv2d, str, nn.BatchNorm2d]]:
    """Convolutions with the batch normalisation that comes next in the same parent, and the names of both."""
    pairs = []
    for parent in network.modules():
        for (first, convolution), (second, norm) in itertools.pairwise(parent.named_children()):
            if not isinstance(convolution, nn.Conv2d) or not isinstance(norm, nn.BatchNorm2d):
                continue
            if convolution.out_channels == norm.num_features:
                pairs.append((parent, first, convolution, second, norm))
    return pairs


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max()))


def _as_map(output: object) -> Tensor:
    """A layer's output as (B, D, H, W); a vector is a map of one location."""
    if isinstance(output, tuple):
        output = output[0]
    if not isinstance(output, Tensor) or output.ndim not in (2, 3, 4):
        raise BackboneError("the layer's output is neither a vector, tokens nor a map; choose another")
    if output.ndim == 4:
        return output
    if output.ndim == 2:
        return output[:, :, None, None]
    side = math.isqrt(output.shape[1])
    # What is more than a square are the class token and registers; they come first.
    patches = output[:, output.shape[1] - side * side :]
    return patches.transpose(1, 2).reshape(len(output), -1, side, side)


def _mirror_back(values: Tensor) -> Tensor:
    return values.flip(3) if values.ndim == 4 else values


def _to_float16(values: NDArray[np.float32]) -> Values:
    if not np.isfinite(values).all():
        raise BackboneError("the network gives values that are not numbers; try precision 'fp32'")
    limit = float(np.finfo(np.float16).max)
    return values.clip(-limit, limit).astype(np.float16)
