"""Convolutions with TensorFlow's padding, and their optimised form for bfloat16 on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limner.process import native_bf16

FUSED_TORCH = "2.13."
"""Version of PyTorch whose private operators `FusedConvolution` calls; other versions compute the plain form."""


class SameConv2d(nn.Conv2d):
    """Convolution with TensorFlow's padding 'SAME': ceil(side / stride) outputs a side.

    Where the number of zeros on an axis is odd, the right and lower edges get one zero more than the others.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve maps (B, C, H, W)."""
        height, width = self.zeros(maps.shape[2:])
        padding = (height // 2, width // 2)
        if height % 2 or width % 2:
            maps = F.pad(maps, (padding[1], width - padding[1], padding[0], height - padding[0]))
            padding = (0, 0)
        return F.conv2d(maps, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def zeros(self, sides: Sequence[int]) -> tuple[int, int]:
        """Compute the zeros added to each side of maps in sum: max(0, (outputs - 1) * stride + kernel - side)."""
        height, width = (
            max(0, (math.ceil(side / stride) - 1) * stride + kernel - side)
            for side, stride, kernel in zip(sides, self.stride, self.kernel_size, strict=True)
        )
        return height, width


class _Prepared(NamedTuple):
    """Weights of a convolution for maps of one size."""

    sides: torch.Size
    weight: Tensor
    geometry: tuple[object, ...]  # padding, stride, dilation and groups


class FusedConvolution(nn.Module):
    """A convolution and its activation in one pass over the maps, equal bit for bit to the plain form under autocast.

    The operators are the same as in TorchInductor's code. Weights are cast and laid out once, for the size of the first
    maps. An odd number of zeros, with one more at the right and lower edges, becomes even by a row and a column of
    zeros before the kernel, so that the maps need not be copied. docs/notebook/speed.md has the gain.
    """

    def __init__(self, convolution: SameConv2d, relu6: bool) -> None:
        super().__init__()
        self.convolution = convolution
        self._activation = ("hardtanh", [0, 6]) if relu6 else ("none", [])
        self._bias = None if convolution.bias is None else convolution.bias.bfloat16()
        self._prepared: _Prepared | None = None

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve maps (B, C, H, W); the result is of type bfloat16."""
        prepared = self._prepared
        if prepared is None or prepared.sides != maps.shape[2:]:
            prepared = self._prepared = self._prepare(maps.shape)
        fused: Tensor = torch.ops.mkldnn._convolution_pointwise(
            maps.bfloat16(), prepared.weight, self._bias, *prepared.geometry, *self._activation, ""
        )
        return fused

    def _prepare(self, shape: torch.Size) -> _Prepared:
        plain = self.convolution
        height, width = plain.zeros(shape[2:])
        weight = F.pad(plain.weight.bfloat16(), (width % 2, 0, height % 2, 0))
        geometry = (((height + 1) // 2, (width + 1) // 2), plain.stride, plain.dilation, plain.groups)
        reordered = torch.ops.mkldnn._reorder_convolution_weight(weight, *geometry, (1, *shape[1:]))
        return _Prepared(shape[2:], reordered, geometry)


def can_fuse() -> bool:
    """Whether this version of PyTorch and this processor have the operators of `FusedConvolution`."""
    return torch.__version__.startswith(FUSED_TORCH) and native_bf16(torch.device("cpu"))


def fuse_convolutions(network: nn.Module, layer: str | None) -> None:
    """Replace each `SameConv2d`, with the ReLU6 behind it, by a `FusedConvolution`.

    The network has each in an `nn.Sequential`, before its folded normalisation. The sequence of `layer`, whose output
    is read, is left as it is.
    """
    for path, block in list(network.named_modules()):
        if not isinstance(block, nn.Sequential) or not block or (layer and layer.rpartition(".")[0] == path):
            continue
        convolution, *rest = block.children()
        if isinstance(convolution, SameConv2d) and all(isinstance(layer, nn.Identity | nn.ReLU6) for layer in rest):
            block[0] = FusedConvolution(convolution, any(isinstance(layer, nn.ReLU6) for layer in rest))
            for number in range(1, len(block)):
                block[number] = nn.Identity()
