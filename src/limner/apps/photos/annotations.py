"""What an index stores of the features of an image: annotations that the captioner computes of them, in fewer places.

A grid of 100 locations with 1,280 features each takes 256 KB in float16. A model with a projection reads the projected
features only, and a coarser grid of them: see docs/folders.md for what that costs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from limner.data.examples import Item, StoredFeatures
from limner.errors import FeatureError
from limner.features.spec import FeatureArray, FeatureKind, FeatureSpec
from limner.layers.image_encoder import GridEncoder, ImageEncoder, mean_over_locations, project, scale
from limner.models import Model
from limner.runs.trained_model import TrainedModel

GRID_SIDE = 5
"""Rows and columns of the stored annotations, at most."""
VECTOR_SIDE = 8
"""Rows and columns of the maps that similar images are found by, at most."""


class AnnotationCodec:
    """Computes the stored annotations and the vectors of images, and holds the model that reads the annotations."""

    def __init__(self, trained: TrainedModel, grid_side: int = GRID_SIDE) -> None:
        """Prepare the annotations of a model.

        Args:
            trained: captioning model with features of images.
            grid_side: rows and columns of the stored annotations of a grid, at most.

        Raises:
            FeatureError: the model reads no features of images, or several kinds at once.
        """
        encoders = [m for m in cast(nn.Module, trained.model).modules() if isinstance(m, ImageEncoder | GridEncoder)]
        if len(encoders) != 1 or not trained.model.uses_image:
            raise FeatureError(
                f"model '{trained.recipe.model.name}': expected a captioner with one image encoder for an index of "
                "images; use a model that describes images, such as the built-in captioner"
            )
        self._encoder = encoders[0]
        self.spec: FeatureSpec = next(spec for spec in trained.config.features if spec.kind == self._encoder.kind)
        self._grid_side, self._model = grid_side, trained.model
        self._reader: Model | None = None
        with torch.inference_mode():
            blank = torch.zeros(1, *self.spec.shape)
            self.shape: tuple[int, ...] = tuple(self._annotations(blank).shape[1:])
            self.vector_dim: int = self._vectors(blank).shape[1]

    @property
    def _projects(self) -> bool:
        """Whether the projection is applied before storing; an encoder that averages a grid projects the mean."""
        return isinstance(self._encoder, GridEncoder) or self._encoder.kind == "pooled"

    @property
    def reader(self) -> Model:
        """A copy of the model whose image encoder reads stored annotations."""
        if self._reader is None:
            self._reader = copy.deepcopy(self._model)
            for module in cast(nn.Module, self._reader).modules():
                if isinstance(module, ImageEncoder | GridEncoder) and self._projects:
                    module.settings = module.settings.model_copy(update={"scaling": "none"})
                    module.projection = None
        return self._reader

    @torch.inference_mode()
    def encode(self, features: Mapping[FeatureKind, FeatureArray]) -> tuple[FeatureArray, FeatureArray]:
        """Compute what is stored of B images.

        Args:
            features: features of the backbone by kind, each (B, ...).

        Returns:
            Annotations (B, *shape), and the pooled features (B, vector_dim), by which similar images are found.
        """
        device = next(iter(self._model.state_dict().values())).device
        stored = torch.from_numpy(features[self.spec.kind]).float().to(device)
        annotations, vectors = self._annotations(stored), self._vectors(stored)
        return annotations.cpu().numpy().astype(np.float16), vectors.cpu().numpy().astype(np.float16)

    def _annotations(self, stored: Tensor) -> Tensor:
        kind = self._encoder.kind
        if kind == "maps":
            return stored
        if kind == "grid" and not self._projects and self._encoder.grid_rnn is None:
            return mean_over_locations(stored)[:, None]  # all that the encoder reads of it
        if self._projects:
            stored = project(scale(stored, self._encoder.settings.scaling), self._encoder.projection)
        size = self.spec.grid_size
        if kind != "grid" or size is None or max(size) <= self._grid_side:
            return stored
        side = (min(size[0], self._grid_side), min(size[1], self._grid_side))
        maps = stored.transpose(1, 2).reshape(len(stored), -1, *size)  # (B, D, H, W)
        return adaptive_avg_pool2d(maps, side).flatten(2).transpose(1, 2)

    def _vectors(self, stored: Tensor) -> Tensor:
        if stored.ndim == 3:
            stored = mean_over_locations(stored)
        elif stored.ndim == 4:
            size = (min(stored.shape[2], VECTOR_SIDE), min(stored.shape[3], VECTOR_SIDE))
            stored = adaptive_avg_pool2d(stored, size).flatten(1)
        return stored


class StoredAnnotations:
    """Annotations of an index as the features of items, whose ids are the numbers of the rows; a `FeatureSource`."""

    def __init__(self, kind: str, values: FeatureArray) -> None:
        """Provide the annotations (N, *shape) of N images as features of a kind."""
        self._kind, self._values = kind, values

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Return the annotations of items."""
        return [{self._kind: self._values[int(item.id)]} for item in items]
