"""Convolution with TensorFlow's padding, in its plain form; `fused_convolution` has the optimised one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F


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
