"""From what a batch shows of its pictures to one vector a picture: stored features, or a convnet learned jointly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from limner.data.examples import Visual
from limner.errors import SettingsError

Scaling = Literal["none", "l2", "layer"]


class Eye(nn.Module):
    """Reads the form of picture the model was built for; a missing picture becomes zeros.

    A pooled vector is taken as it is, a grid is averaged over its locations, maps go through a `Convnet` that is
    learned together with the language model.
    """

    def __init__(self, forms: Mapping[str, tuple[int, ...]], scaling: Scaling, width: int, out_dim: int) -> None:
        """Choose the form.

        Args:
            forms: shape of each form there is, `vector` (D,), `grid` (L, D) or `maps` (C, H, W).
            scaling: what is done to stored features first: nothing, length 1 times sqrt(D), or zero mean and
                unit variance of each vector.
            width: channels of the convnet's first layer (only for maps).
            out_dim: size of the convnet's vector (only for maps).

        Raises:
            SettingsError: there is no form to look at.
        """
        super().__init__()
        self.scaling = scaling
        self.convnet: Convnet | None = None
        if "vector" in forms:
            self.form, self.dim = "vector", forms["vector"][0]
        elif "grid" in forms:
            self.form, self.dim = "grid", forms["grid"][1]
        elif "maps" in forms:
            channels, height, width_of_map = forms["maps"]
            self.form, self.dim = "maps", out_dim
            self.convnet = Convnet((channels, height, width_of_map), width, out_dim)
        else:
            raise SettingsError(
                "visual.features: this model looks at pictures and the recipe names no features for it; "
                "name a feature table, or choose the variant without a picture"
            )
        self.nothing: Tensor
        self.register_buffer("nothing", torch.zeros(self.dim), persistent=False)

    def forward(self, visual: Visual) -> Tensor:
        """Look at each picture, giving (B, dim)."""
        seen: Tensor
        if visual.vector is not None and self.form == "vector":
            seen = self._scale(visual.vector)
        elif visual.grid is not None and self.form == "grid":
            seen = self._scale(visual.grid.mean(1))
        elif visual.maps is not None and self.convnet is not None:
            seen = self.convnet(visual.maps)
        else:
            assert not visual.present.any(), f"the batch shows pictures, none of them as '{self.form}'"
            return self.nothing.expand(len(visual.present), -1)
        return seen * visual.present.unsqueeze(1)

    def _scale(self, features: Tensor) -> Tensor:
        if self.scaling == "l2":
            length_one: Tensor = nn.functional.normalize(features, dim=1)
            return length_one * math.sqrt(self.dim)
        if self.scaling == "layer":
            standard: Tensor = nn.functional.layer_norm(features, (self.dim,))
            return standard
        return features


class Convnet(nn.Module):
    """Pixels to one vector: four 3x3 convolutions of stride 2, then a hidden layer over what is where.

    The last maps are flattened, not averaged, because sentences speak of left and right.
    """

    def __init__(self, shape: tuple[int, int, int], width: int, out_dim: int) -> None:
        """Build for maps (C, H, W) of one size; the layers have 1, 2, 3 and 4 times `width` channels."""
        super().__init__()
        channels, height, breadth = shape
        sizes = [channels, width, 2 * width, 3 * width, 4 * width]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(4, after), nn.ReLU()]
            height, breadth = (height + 1) // 2, (breadth + 1) // 2
        self.layers = nn.Sequential(*layers)
        self.project = nn.Linear(sizes[-1] * height * breadth, out_dim)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (B, C, H, W) with values of 0 to 255 to vectors (B, out_dim)."""
        centred = (maps / 127.5 - 1).to(memory_format=torch.channels_last)
        return torch.relu(self.project(self.layers(centred).flatten(1)))
