"""Optimised convolutions for bfloat16 on a CPU, equal bit for bit to `SameConv2d` and ReLU6 under autocast.

The operators are those that TorchInductor generates. They are private functions of PyTorch, so a network is changed
only where they exist and give its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limner.errors import BackboneError
from limner.features.encoders.same_convolution import SameConv2d
from limner.features.spec import FeatureKind


class FusedConvolution(nn.Module):
    """A convolution with its activation in one pass over the maps, and with weights prepared once.

    Weights are cast and laid out for maps of one size. An odd number of zeros, of which the right and lower
    edges get one more, becomes an even one with a row and a column of zeros before the kernel, so that the maps need
    not be copied. Other maps, and maps outside autocast to bfloat16, are computed by the plain form.

    Args:
        convolution: the plain convolution, with normalisation folded in.
        relu6: whether ReLU6 follows.
        shape: shape of an input, (B, C, H, W).
    """

    def __init__(self, convolution: SameConv2d, relu6: bool, shape: torch.Size) -> None:
        super().__init__()
        self.fused = True  # whether the optimised form is used
        self.convolution, self.relu6, self._sides = convolution, relu6, shape[2:]
        height, width = convolution.zeros(shape[2:])
        weight = F.pad(convolution.weight.bfloat16(), (width % 2, 0, height % 2, 0))
        padding = ((height + 1) // 2, (width + 1) // 2)
        self._geometry = (padding, convolution.stride, convolution.dilation, convolution.groups)
        self._bias = None if convolution.bias is None else convolution.bias.bfloat16()
        self._weight = _operators()._reorder_convolution_weight(weight, *self._geometry, shape)

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve maps (B, C, H, W)."""
        if not self.fused or maps.shape[2:] != self._sides or not torch.is_autocast_enabled("cpu"):
            result: Tensor = self.convolution(maps)
            return F.relu6(result, inplace=True) if self.relu6 else result
        activation = ("hardtanh", [0, 6]) if self.relu6 else ("none", [])
        fused: Tensor = _operators()._convolution_pointwise(
            maps.bfloat16(), self._weight, self._bias, *self._geometry, *activation, ""
        )
        return fused


def fuse_convolutions(network: nn.Module, run: Callable[[], Mapping[FeatureKind, Tensor]], layer: str | None) -> None:
    """Replace the convolutions of a network by fused ones, where its results stay equal bit for bit.

    Args:
        network: network in which `SameConv2d` is the first layer of an `nn.Sequential`, possibly followed by ReLU6.
        run: computes features of some pixels of the size that will be used.
        layer: path of the module whose output the features are; it stays what it is. None: the last.
    """
    blocks = {path: block for path, block in _blocks(network) if layer is None or layer.rpartition(".")[0] != path}
    if not blocks:
        return
    before, shapes = _record_shapes(blocks, run)
    plain = {path: list(blocks[path].children()) for path in shapes}
    try:
        for path, shape in shapes.items():
            _replace(blocks[path], _fused_layers(plain[path], shape))
        after = run()
        equal = all(torch.equal(before[kind], after[kind]) for kind in before)
    except (AttributeError, RuntimeError, TypeError, BackboneError):  # no such operator, or one with other arguments
        equal = False
    if not equal:
        for path, layers in plain.items():
            _replace(blocks[path], layers)


def _operators() -> Any:  # noqa: ANN401
    return torch.ops.mkldnn


def _blocks(network: nn.Module) -> list[tuple[str, nn.Sequential]]:
    """Find the sequences of a `SameConv2d`, nothing in place of its folded normalisation, and possibly ReLU6."""
    return [
        (path, layers)
        for path, layers in network.named_modules()
        if isinstance(layers, nn.Sequential)
        and len(layers)
        and isinstance(layers[0], SameConv2d)
        and all(isinstance(layer, nn.Identity | nn.ReLU6) for layer in list(layers.children())[1:])
    ]


def _record_shapes(
    blocks: Mapping[str, nn.Sequential], run: Callable[[], Mapping[FeatureKind, Tensor]]
) -> tuple[Mapping[FeatureKind, Tensor], dict[str, torch.Size]]:
    """Run the network; return its features and the shape of the input of each block that it uses."""
    shapes: dict[str, torch.Size] = {}

    def recorder(path: str) -> Callable[[nn.Module, tuple[Tensor]], None]:
        return lambda module, inputs: shapes.update({path: inputs[0].shape})

    handles = [block.register_forward_pre_hook(recorder(path)) for path, block in blocks.items()]
    try:
        return run(), shapes
    finally:
        for handle in handles:
            handle.remove()


def _fused_layers(plain: list[nn.Module], shape: torch.Size) -> list[nn.Module]:
    convolution, *others = plain
    assert isinstance(convolution, SameConv2d)
    fused = FusedConvolution(convolution, any(isinstance(layer, nn.ReLU6) for layer in others), shape)
    return [fused, *(nn.Identity() for _ in others)]


def _replace(block: nn.Sequential, layers: list[nn.Module]) -> None:
    for number, layer in enumerate(layers):
        block[number] = layer
