"""VGG-16, VGG-19 and AlexNet, the networks of the first captioning papers, with torchvision's parameter names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from limner.errors import BackboneError
from limner.features.encoders.network import PretrainedNetwork
from limner.features.encoders.transformers import hash_files
from limner.features.preprocessing import parse_processor_config
from limner.storage.tensors import load_tensors


class ClassicNetwork(nn.Module):
    """Convolutions and three layers: the maps of the last convolution as grid features, fc7 (4,096) as pooled features.

    Args:
        convolutions: layers up to the last pooling.
        channels: channels of the last convolution.
        side: side to which its maps are pooled for the first of the three layers.
        dropout_first: whether dropout precedes each layer, as in AlexNet, or follows it, as in VGG.
    """

    def __init__(self, convolutions: Sequence[nn.Module], channels: int, side: int, dropout_first: bool) -> None:
        super().__init__()
        self.features = nn.Sequential(*convolutions)
        self.avgpool = nn.AdaptiveAvgPool2d(side)
        layers: list[nn.Module] = []
        for width in (channels * side**2, 4096):
            hidden = [nn.Linear(width, 4096), nn.ReLU()]
            layers += [nn.Dropout(), *hidden] if dropout_first else [*hidden, nn.Dropout()]
        self.classifier = nn.Sequential(*layers, nn.Linear(4096, 1000))

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """Compute the last maps (B, C, H, W) and fc7 (B, D), the input of the classification layer."""
        maps = self.features[:-1](pixels)
        pooled = self.classifier[:-1](self.avgpool(self.features[-1](maps)).flatten(1))
        return {"last_hidden_state": maps, "pooler_output": pooled}


def _vgg(counts: Sequence[int]) -> ClassicNetwork:
    """Build a VGG network (Simonyan and Zisserman, 2015) by the number of convolutions in each of the five blocks.

    At 224 x 224 pixels, the last convolution (after ReLU, before pooling) is 14 x 14 x 512.
    """
    layers: list[nn.Module] = []
    channels = 3
    for width, count in zip((64, 128, 256, 512, 512), counts, strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return ClassicNetwork(layers, 512, 7, dropout_first=False)


def vgg16() -> ClassicNetwork:
    """Build VGG-16 (configuration D): fc7 is the fifteenth layer with weights (Mao et al., 2015, section 4)."""
    return _vgg((2, 2, 3, 3, 3))


def vgg19() -> ClassicNetwork:
    """Build VGG-19 (configuration E): conv5_4 and fc7 are the features of Calixto et al. (2016), section 2."""
    return _vgg((2, 2, 4, 4, 4))


def alexnet() -> ClassicNetwork:
    """Build AlexNet (Krizhevsky, 2014, one tower), whose conv5 is 13 x 13 x 256."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    layers += [nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    for inputs, outputs in ((192, 384), (384, 256), (256, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
    return ClassicNetwork([*layers, nn.MaxPool2d(3, 2)], 256, 6, dropout_first=True)


CLASSIC: dict[str, Callable[[], ClassicNetwork]] = {"vgg16": vgg16, "vgg19": vgg19, "alexnet": alexnet}

_LAYER_NAMES = {
    "vgg16": {"conv4_3": "features.22", "conv5_3": "features.29", "fc6": "classifier.1", "fc7": "classifier.4"},
    "vgg19": {"conv4_4": "features.26", "conv5_4": "features.35", "fc6": "classifier.1", "fc7": "classifier.4"},
    "alexnet": {"conv5": "features.11", "fc6": "classifier.2", "fc7": "classifier.5"},
}


def load_classic(name: str, file: Path) -> PretrainedNetwork:
    """Load a network of `CLASSIC` with the weights of a `.pth` or `.safetensors` file, as published by torchvision.

    Raises:
        BackboneError: the file is missing or unreadable, or its names or shapes differ from torchvision's.
    """
    with torch.device("meta"):  # initialising weights that the file replaces would take seconds
        module = CLASSIC[name]()
    expected = module.state_dict()
    weights = _read_weights(file)
    wrong = [key for key in expected if key not in weights or weights[key].shape != expected[key].shape]
    if wrong:
        key = wrong[0]
        actual = tuple(weights[key].shape) if key in weights else "nothing"
        raise BackboneError(
            f"{file}: not the weights of {name}: expected '{key}' of shape {tuple(expected[key].shape)}, "
            f"got {actual} ({len(wrong)} of {len(expected)} entries differ); "
            f"use the file that torchvision publishes for {name}"
        )
    module.load_state_dict({key: weights[key].float() for key in expected}, assign=True)
    return PretrainedNetwork(
        name=name,
        module=module,
        preprocessing=parse_processor_config({}),
        weights_sha256=hash_files([file]),
        source=f"{name}:{file.resolve()}",
        layer_names=_LAYER_NAMES[name],
    )


def _read_weights(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise BackboneError(f"{file}: no such weight file; download the file that torchvision publishes")
    try:
        if file.suffix == ".safetensors":
            return load_tensors(file)
        # weights_only: unpickling other objects could run code.
        weights: object = torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # torch explains how to load pickled code, which is never done here
        raise BackboneError(
            f"{file}: cannot be read as a weight file of tensors; download the file that torchvision publishes again"
        ) from None
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise BackboneError(f"{file}: expected a dictionary of tensors, as published by torchvision")
    return weights
