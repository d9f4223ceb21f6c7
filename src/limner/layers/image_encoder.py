"""From what a batch shows of its pictures to one vector a picture: stored features, or a convnet learned jointly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from limner.data.examples import ImageFeatures
from limner.errors import SettingsError

Scaling = Literal["none", "unit", "l2", "layer"]
COLOURS = 3


class ImageEncoder(nn.Module):
    """Reads the form of picture the model was built for; a missing picture becomes zeros.

    A pooled vector is taken as it is, a grid is averaged over its locations, maps go through a convnet that is
    learned together with the language model: a `Convnet` for pixels, a `MapConvnet` for feature maps.
    """

    def __init__(self, forms: Mapping[str, tuple[int, ...]], scaling: Scaling, width: int, out_dim: int) -> None:
        """Choose the form.

        Args:
            forms: shape of each form there is, `vector` (D,), `grid` (L, D) or `maps` (C, H, W); maps of three
                channels are pixels.
            scaling: what is done to stored features first: nothing, 'unit' length, 'l2': length 1 times sqrt(D), or
                'layer': zero mean and unit variance of each vector.
            width: channels of the convnet's first layer (only for pixels).
            out_dim: size of the convnet's vector (only for maps).

        Raises:
            SettingsError: there is no form to look at.
        """
        super().__init__()
        self.scaling = scaling
        self.convnet: Convnet | MapConvnet | None = None
        if "pooled" in forms:
            self.form, self.dim = "pooled", forms["pooled"][0]
        elif "grid" in forms:
            self.form, self.dim = "grid", forms["grid"][1]
        elif "maps" in forms:
            self.form, self.dim = "maps", out_dim
            pixels = forms["maps"][0] == COLOURS
            self.convnet = Convnet(forms["maps"], width, out_dim) if pixels else MapConvnet(forms["maps"], out_dim)
        else:
            raise SettingsError(
                "features.tables: this model looks at pictures and the recipe names no features for it; "
                "name a feature table, or choose the variant without a picture"
            )
        self.nothing: Tensor
        self.register_buffer("nothing", torch.zeros(self.dim), persistent=False)

    def forward(self, image: ImageFeatures) -> Tensor:
        """Look at each picture, giving (B, dim)."""
        seen: Tensor
        if image.pooled is not None and self.form == "pooled":
            seen = self._scale(image.pooled)
        elif image.grid is not None and self.form == "grid":
            seen = self._scale(image.grid.mean(1))
        elif image.maps is not None and self.convnet is not None:
            seen = self.convnet(image.maps)
        else:
            assert not image.present.any(), f"the batch shows pictures, none of them as '{self.form}'"
            return self.nothing.expand(len(image.present), -1)
        return seen * image.present.unsqueeze(1)

    def _scale(self, features: Tensor) -> Tensor:
        if self.scaling in ("unit", "l2"):
            length_one: Tensor = nn.functional.normalize(features, dim=1)
            return length_one * (math.sqrt(self.dim) if self.scaling == "l2" else 1)
        if self.scaling == "layer":
            standard: Tensor = nn.functional.layer_norm(features, (self.dim,))
            return standard
        return features


class Convnet(nn.Module):
    """Pixels to one vector: four 3x3 convolutions of stride 2, then a hidden layer over what is where.

    The last maps are flattened, not averaged, because sentences speak of left and right.
    """

    def __init__(self, shape: tuple[int, ...], width: int, out_dim: int) -> None:
        """Build for maps (C, H, W) of one size; the layers have 1, 2, 3 and 4 times `width` channels."""
        super().__init__()
        self.layers = _convolutions(shape[0], width)
        height, breadth = (-(-side // 16) for side in shape[1:])
        self.project = nn.Linear(4 * width * height * breadth, out_dim)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (B, C, H, W) with values of 0 to 255 to vectors (B, out_dim)."""
        return torch.relu(self.project(self.layers(_centred(maps)).flatten(1)))


class ConvnetPlaces(nn.Module):
    """Pixels to a grid of places to attend to: the same convolutions, each place of the last maps for itself."""

    def __init__(self, channels: int, width: int) -> None:
        """Build; a place has `dim` features, 4 times `width`."""
        super().__init__()
        self.dim = 4 * width
        self.layers = _convolutions(channels, width)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (B, C, H, W) with values of 0 to 255 to places (B, L, dim), L = H/16 W/16."""
        places: Tensor = self.layers(_centred(maps)).flatten(2).transpose(1, 2)
        return places


def _convolutions(channels: int, width: int) -> nn.Sequential:
    """Four 3x3 convolutions of stride 2 with 1, 2, 3 and 4 times `width` channels."""
    layers: list[nn.Module] = []
    for before, after in pairwise([channels, width, 2 * width, 3 * width, 4 * width]):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(4, after), nn.ReLU()]
    return nn.Sequential(*layers)


def _centred(maps: Tensor) -> Tensor:
    return (maps / 127.5 - 1).to(memory_format=torch.channels_last)


class MapConvnet(nn.Module):
    """Feature maps to one vector: the network of Kiros et al. (2014), section 5.

    64 filters of 3x3, ReLU, response normalisation across channels (Krizhevsky et al., 2012, with their constants),
    3x3 max-pooling of stride 2, and a fully-connected ReLU layer.
    """

    FILTERS = 64

    def __init__(self, shape: tuple[int, ...], out_dim: int) -> None:
        """Build for maps (C, H, W) of one size.

        Raises:
            SettingsError: the maps are too small to be pooled.
        """
        super().__init__()
        channels, height, breadth = shape
        pooled = [(side - 2 - 3) // 2 + 1 for side in (height, breadth)]
        if min(pooled) < 1:
            raise SettingsError(
                f"features.tables: maps of {height}x{breadth} are too small for the convnet that reads feature maps, "
                "which needs 5x5 at least"
            )
        self.filters = nn.Conv2d(channels, self.FILTERS, 3)
        self.normalise = nn.LocalResponseNorm(5, alpha=5 * 1e-4, beta=0.75, k=2.0)  # torch divides alpha by the 5
        self.pool = nn.MaxPool2d(3, stride=2)
        self.project = nn.Linear(self.FILTERS * pooled[0] * pooled[1], out_dim)
        for layer in (self.filters, self.project):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (B, C, H, W) to vectors (B, out_dim)."""
        pooled = self.pool(self.normalise(torch.relu(self.filters(maps))))
        return torch.relu(self.project(pooled.flatten(1)))
