"""VGG-19 and AlexNet: the networks of the first image description papers, with torchvision's names."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from limner.errors import BackboneError


class Looked(NamedTuple):
    """What a network gives, under the names `transformers` uses."""

    last_hidden_state: Tensor  # (B, C, H, W)
    pooler_output: Tensor  # (B, D)


class VGG19(nn.Module):
    """Simonyan and Zisserman (2015), configuration E: conv5_4 as the grid, fc7 as the vector.

    At 224 x 224 pixels conv5_4 (after its ReLU, before pooling) is 14 x 14 x 512 and fc7 4,096 values.
    """

    layer_names: ClassVar[dict[str, str]] = {
        "conv4_4": "features.26",
        "conv5_4": "features.35",
        "fc6": "classifier.1",
        "fc7": "classifier.4",
    }

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 1000),
        )

    def forward(self, pixels: Tensor) -> Looked:
        return _look(self.features, self.avgpool, self.classifier, pixels)


class AlexNet(nn.Module):
    """Krizhevsky (2014), the one-tower form: conv5 (13 x 13 x 256) as the grid, fc7 (4,096) as the vector."""

    layer_names: ClassVar[dict[str, str]] = {
        "conv5": "features.11",
        "fc6": "classifier.2",
        "fc7": "classifier.5",
    }

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, 1000),
        )

    def forward(self, pixels: Tensor) -> Looked:
        return _look(self.features, self.avgpool, self.classifier, pixels)


CLASSIC: dict[str, type[VGG19 | AlexNet]] = {"vgg19": VGG19, "alexnet": AlexNet}


def _look(features: nn.Sequential, avgpool: nn.Module, classifier: nn.Sequential, pixels: Tensor) -> Looked:
    grid = features[:-1](pixels)
    # The last layer tells the 1,000 classes apart: what the papers read is fc7, its input.
    return Looked(grid, classifier[:-1](avgpool(features[-1](grid)).flatten(1)))


def load_classic(name: str, file: Path) -> VGG19 | AlexNet:
    """Build VGG-19 or AlexNet with the weights of a `.pth` or `.safetensors` file.

    Raises:
        BackboneError: the file is missing, unreadable, or its names and shapes are not torchvision's.
    """
    with torch.device("meta"):  # the weights come from the file: drawing random ones first takes seconds
        network = CLASSIC[name]()
    wanted = network.state_dict()
    weights = _read_weights(file)
    wrong = [key for key in wanted if key not in weights or weights[key].shape != wanted[key].shape]
    if wrong:
        key = wrong[0]
        found = tuple(weights[key].shape) if key in weights else "nothing"
        raise BackboneError(
            f"{file}: not the weights of {name}: expected '{key}' of shape {tuple(wanted[key].shape)}, "
            f"found {found} ({len(wrong)} of {len(wanted)} entries do not fit); "
            f"use the file torchvision publishes for {name}"
        )
    network.load_state_dict({key: weights[key].float() for key in wanted}, assign=True)
    return network


def _read_weights(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise BackboneError(f"{file}: no such weight file; download the one torchvision publishes")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        # weights_only: nothing but tensors is ever built from a file someone else wrote.
        weights: object = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise BackboneError(f"{file}: cannot be read as a weight file: {error}") from None
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise BackboneError(f"{file}: expected a table of tensors by name, as torchvision publishes it")
    return weights
