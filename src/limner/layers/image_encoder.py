"""Image encoders, which compute one vector or one grid of vectors per image from stored features or pixels.

Shapes: B batch, L image locations, D feature size, C channels, H and W height and width of maps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from limner.bounds import Bounds, GridSide, Rate, Width, WidthOrNone
from limner.data.examples import ImageFeatures
from limner.errors import SettingsError
from limner.layers.grid_rnn import GridRNN, scan_grid
from limner.settings import Settings

Scaling = Literal["none", "unit", "l2", "layer"]
COLOURS = 3
"""Number of channels that marks maps as pixels instead of feature maps."""


class ImageEncoderSettings(Settings):
    """Settings of the image encoder, the same for every model that uses images."""

    scaling: Scaling = "none"
    """Scaling of each stored feature vector: 'none', 'unit' length, 'l2' for length sqrt(D), or 'layer' for zero mean
    and unit variance."""
    dropout: Rate = 0.0
    """Dropout rate of the image features while training."""
    convnet_width: Annotated[int, Bounds(4, 4_096, step=4)] = 16
    """Number of channels of the first layer of the convnet on pixels, for features that are pixels."""
    convnet_dim: Width = 256
    """Size of the image vector that a convnet on pixels or feature maps computes."""
    projection_dim: WidthOrNone = 0
    """Size of a trained projection, linear and ReLU, of each stored feature vector; 0 for none. It makes attention over
    large features smaller and faster."""
    grid_pooling: GridSide = 1
    """Side of the windows of a square stored grid whose means are the locations, which are then scaled: with 2,
    10x10 locations become 5x5. Other features need 1."""
    grid_rnn_dim: WidthOrNone = 0
    """Size of the states of a four-direction two-dimensional RNN over a square grid; 0 for none."""


class ImageEncoder(nn.Module):
    """Encode each image as one vector; a missing image is encoded as zeros.

    A pooled vector is used unchanged, and a grid is averaged over its locations. Maps are encoded by a convnet that is
    trained jointly with the language model: a `PixelConvnet` for pixels, a `MapConvnet` for feature maps.
    """

    def __init__(self, feature_shapes: Mapping[str, tuple[int, ...]], settings: ImageEncoderSettings) -> None:
        """Select the features in the order of preference pooled, grid, maps.

        Args:
            feature_shapes: shape of each kind of features in the batches: `pooled` (D,), `grid` (L, D), `maps`
                (C, H, W), where maps of three channels are pixels.
            settings: scaling, dropout and sizes of the convnet.

        Raises:
            SettingsError: `feature_shapes` is empty.
        """
        super().__init__()
        _require_windows(feature_shapes, settings)
        self.settings = settings
        self.convnet: PixelConvnet | MapConvnet | None = None
        self.projection: nn.Linear | None = None
        self.grid_rnn: GridRNN | None = None
        if kind := next((kind for kind in ("pooled", "grid") if kind in feature_shapes), ""):
            self.kind = kind
            self.projection, self.grid_rnn, self.dim = _stored_layers(feature_shapes[kind], settings)
        elif "maps" in feature_shapes:
            self.kind, self.dim, shape = "maps", settings.convnet_dim, feature_shapes["maps"]
            require_image_maps(shape)
            pixels = shape[0] == COLOURS
            self.convnet = PixelConvnet(shape, settings) if pixels else MapConvnet(shape, self.dim)
        else:
            raise SettingsError(
                "features.tables: this model uses images, and the recipe names no features; "
                "name a feature table, or choose the variant without an image"
            )
        self.no_image: Tensor
        self.register_buffer("no_image", torch.zeros(self.dim), persistent=False)

    def forward(self, image: ImageFeatures) -> Tensor:
        """Compute the vectors of the images of a batch, (B, dim)."""
        vector: Tensor
        if image.pooled is not None and self.kind == "pooled":
            vector = project(scale(image.pooled, self.settings.scaling), self.projection)
        elif image.grid is not None and self.kind == "grid":
            grid = pool_grid(image.grid, self.settings.grid_pooling)
            if self.grid_rnn is None:
                vector = project(scale(mean_over_locations(grid), self.settings.scaling), self.projection)
            else:
                scaled = project(scale(grid, self.settings.scaling), self.projection)
                vector = scan_grid(self.grid_rnn, scaled).mean(1)
        elif image.maps is not None and self.convnet is not None:
            vector = self.convnet(image.maps)
        else:
            assert not image.present.any(), f"the batch has images, but not as '{self.kind}'"
            return self.no_image.expand(image.present.shape[0], -1)
        return dropout(vector * image.present[:, None], self.settings.dropout, self.training)


def require_image_maps(shape: tuple[int, ...]) -> None:
    """Check that maps belong to an image, (C, H, W); SettingsError for the frames of videos, (L, C, H, W)."""
    if len(shape) != 3:
        raise SettingsError(
            f"features.tables: this model reads the pixels of one image, got {shape[0]} frames; use model "
            "'video_captioner', or a table of pooled features"
        )


class GridEncoder(nn.Module):
    """Encode each image as one vector per location: a stored grid, or pixels by a `GridConvnet`.

    A pooled vector is a grid of one location.
    """

    def __init__(self, feature_shapes: Mapping[str, tuple[int, ...]], settings: ImageEncoderSettings) -> None:
        """Select the features in the order of preference pooled, grid, pixels; SettingsError if there are none."""
        super().__init__()
        _require_windows(feature_shapes, settings)
        self.settings = settings
        self.convnet: GridConvnet | None = None
        self.projection: nn.Linear | None = None
        self.grid_rnn: GridRNN | None = None
        if kind := next((kind for kind in ("pooled", "grid") if kind in feature_shapes), ""):
            self.kind = kind
            self.projection, self.grid_rnn, self.dim = _stored_layers(feature_shapes[kind], settings)
        elif feature_shapes.get("maps", (0,))[-3:][0] == COLOURS:
            require_image_maps(feature_shapes["maps"])
            self.kind, self.convnet = "maps", GridConvnet(COLOURS, settings.convnet_width)
            self.dim = self.convnet.dim
        else:
            raise SettingsError(
                f"features.tables: expected features of kind 'grid', got {', '.join(feature_shapes) or 'none'}; "
                "name a table of grids"
            )

    def forward(self, image: ImageFeatures) -> tuple[Tensor, Tensor] | None:
        """Compute the vectors of the image locations of a batch.

        Returns:
            Vectors (B, L, dim), and a mask (B, L), true where a location exists; None if no example of the batch has an
            image.
        """
        present = image.present[:, None]
        if self.convnet is not None:
            if image.maps is None:
                return None
            grid = self.convnet(image.maps)
            mask = present.expand(grid.shape[:2])
        else:
            stored = image.grid if self.kind == "grid" else image.pooled
            if stored is None:
                return None
            stored = stored.view(stored.shape[0], -1, stored.shape[-1])  # (B, L, D), where L = 1 for a pooled vector
            if self.kind == "grid":
                stored = pool_grid(stored, self.settings.grid_pooling)
            mask = present & location_mask(stored)
            grid = project(scale(stored, self.settings.scaling), self.projection)
            if self.grid_rnn is not None:
                grid = scan_grid(self.grid_rnn, grid) * present[..., None]
        return dropout(grid, self.settings.dropout, self.training), mask


class MapEncoder(nn.Module):
    """Encode each image as maps (B, dim, H, W): stored feature maps or a square grid, or pixels by a `GridConvnet`."""

    def __init__(self, feature_shapes: Mapping[str, tuple[int, ...]], settings: ImageEncoderSettings) -> None:
        """Select the only kind of features.

        Raises:
            SettingsError: the features are pooled vectors, a grid that is not square, or of several kinds, or a setting
                does not apply to maps.
        """
        super().__init__()
        self.settings, self.convnet = settings, None
        (kind, shape), *further = [*feature_shapes.items(), ("none", ())][: max(1, len(feature_shapes))]
        if further or kind not in ("grid", "maps") or (kind == "grid" and math.isqrt(shape[0]) ** 2 != shape[0]):
            kinds = ", ".join(f"'{kind}' {'x'.join(map(str, shape))}" for kind, shape in feature_shapes.items())
            raise SettingsError(
                f"features.tables: expected one table of a square grid, of maps or of pixels, got {kinds or 'none'}; "
                "name a table such as pixels96, or one made by 'limner features … --kind grid'"
            )
        for name, absent in (("grid_pooling", 1), ("projection_dim", 0), ("grid_rnn_dim", 0)):
            if (value := getattr(settings, name)) != absent:
                raise SettingsError(
                    f"model.image_encoder.{name}: has no effect on maps, got {value}; set it to {absent}"
                )
        self.kind, self.dim = kind, shape[1] if kind == "grid" else shape[0]
        if kind == "maps" and shape[0] == COLOURS:
            self.convnet = GridConvnet(COLOURS, settings.convnet_width)
            self.dim = self.convnet.dim

    def forward(self, image: ImageFeatures) -> Tensor | None:
        """Compute the maps of the images of a batch, (B, dim, H, W); None if no example of the batch has an image."""
        stored = image.grid if self.kind == "grid" else image.maps
        if stored is None:
            return None
        if self.convnet is not None:
            grid, rows = self.convnet(stored), -(-stored.shape[2] // 16)
        else:
            grid = stored if self.kind == "grid" else stored.flatten(2).transpose(1, 2)
            grid = scale(grid, self.settings.scaling)
            rows = math.isqrt(grid.shape[1]) if self.kind == "grid" else stored.shape[2]
        grid = dropout(grid, self.settings.dropout, self.training)
        return grid.transpose(1, 2).reshape(grid.shape[0], self.dim, rows, -1)  # (B, L, dim) to (B, dim, H, W)


def _stored_layers(
    shape: tuple[int, ...], settings: ImageEncoderSettings
) -> tuple[nn.Linear | None, GridRNN | None, int]:
    """Build the projection and, of grids (L, D), the two-dimensional RNN of stored features; return their output size.

    Raises:
        SettingsError: there is such a network and the grid is not a square.
    """
    *locations, dim = shape
    projection = nn.Linear(dim, settings.projection_dim) if settings.projection_dim else None
    dim = settings.projection_dim or dim
    if not locations or not settings.grid_rnn_dim:
        return projection, None, dim
    if math.isqrt(locations[0]) ** 2 != locations[0]:
        raise SettingsError(
            f"model.image_encoder.grid_rnn_dim: expected features of a square grid, got {locations[0]} locations; "
            "set it to 0, or name a table of a square grid"
        )
    network = GridRNN(dim, settings.grid_rnn_dim)
    return projection, network, network.dim


def project(features: Tensor, projection: nn.Linear | None) -> Tensor:
    """Apply the trained projection of feature vectors (…, D), if there is one; see `projection_dim`."""
    return features if projection is None else torch.relu(projection(features))


def _require_windows(feature_shapes: Mapping[str, tuple[int, ...]], settings: ImageEncoderSettings) -> None:
    """Check that a grid has a whole number of windows of `grid_pooling`; SettingsError if not, or without a grid."""
    locations, window = feature_shapes.get("grid", (0,))[0], settings.grid_pooling
    side = math.isqrt(locations)
    if window > 1 and (not locations or side**2 != locations or side % window):
        raise SettingsError(
            f"model.image_encoder.grid_pooling: expected features of a square grid whose side is a multiple of "
            f"{window}, got {f'{locations} locations' if locations else 'no grid'}; set it to 1, or name another table"
        )


def pool_grid(grid: Tensor, window: int) -> Tensor:
    """Compute the means of the windows of square grids; see `grid_pooling`: (B, L, D) to (B, L / window^2, D)."""
    if window == 1:
        return grid
    side = math.isqrt(grid.shape[1]) // window
    return grid.view(len(grid), side, window, side, window, -1).mean((2, 4)).flatten(1, 2)


def scale(features: Tensor, scaling: Scaling) -> Tensor:
    """Scale feature vectors (…, D); see `ImageEncoderSettings.scaling`."""
    scaled = features
    if scaling in ("unit", "l2"):
        scaled = nn.functional.normalize(features, dim=-1)
    if scaling == "l2":
        scaled = scaled * math.sqrt(features.shape[-1])
    if scaling == "layer":
        scaled = nn.functional.layer_norm(features, features.shape[-1:])
    return scaled


def location_mask(grid: Tensor) -> Tensor:
    """Compute a mask (B, L) of stored grids (B, L, D), true where a location exists.

    A table of regions pads images of fewer regions with rows of zeros. An image whose rows are all zero is an image
    of zeros; all its locations exist.
    """
    nonzero = grid.abs().amax(-1) != 0
    return nonzero | ~nonzero.any(1, keepdim=True)


def mean_over_locations(grid: Tensor) -> Tensor:
    """Compute the mean over the locations that exist: (B, L, D) to (B, D)."""
    return grid.sum(1) / location_mask(grid).sum(1, keepdim=True)


class PixelConvnet(nn.Module):
    """Convolutional network from pixels to one vector: four 3x3 convolutions of stride 2, and a hidden layer.

    The last maps are flattened instead of averaged, so that the vector encodes positions such as left and right.
    """

    def __init__(self, shape: tuple[int, ...], settings: ImageEncoderSettings) -> None:
        """Build the network for pixels (C, H, W), with 1, 2, 3 and 4 times `convnet_width` channels."""
        super().__init__()
        width = settings.convnet_width
        self.layers = _convolutions(shape[0], width)
        rows, columns = (-(-side // 16) for side in shape[1:])
        self.project = nn.Linear(4 * width * rows * columns, settings.convnet_dim)

    def forward(self, maps: Tensor) -> Tensor:
        """Compute vectors (B, convnet_dim) of pixels (B, C, H, W) with values of 0 to 255."""
        return torch.relu(self.project(self.layers(_centred(maps)).flatten(1)))


class GridConvnet(nn.Module):
    """Convolutional network from pixels to a grid of annotations: the convolutions of `PixelConvnet` alone."""

    def __init__(self, channels: int, width: int) -> None:
        """Build the network for `channels` input channels; each location has `dim` = 4 `width` features."""
        super().__init__()
        self.dim = 4 * width
        self.layers = _convolutions(channels, width)

    def forward(self, maps: Tensor) -> Tensor:
        """Compute grids (B, L, dim), L = H/16 W/16, of pixels (B, C, H, W) with values of 0 to 255."""
        grid: Tensor = self.layers(_centred(maps)).flatten(2).transpose(1, 2)
        return grid


def trained_convolutions(model: nn.Module) -> list[nn.Module]:
    """Return the convolutions on pixels or feature maps that a model trains, without projections to its own sizes."""
    return [
        module.filters if isinstance(module, MapConvnet) else module.layers
        for module in model.modules()
        if isinstance(module, PixelConvnet | GridConvnet | MapConvnet)
    ]


def _convolutions(channels: int, width: int) -> nn.Sequential:
    """Build four 3x3 convolutions of stride 2 with 1, 2, 3 and 4 times `width` channels."""
    layers: list[nn.Module] = []
    for before, after in pairwise([channels, width, 2 * width, 3 * width, 4 * width]):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(4, after), nn.ReLU()]
    return nn.Sequential(*layers)


def _centred(maps: Tensor) -> Tensor:
    """Scale pixels of 0 to 255 to -1 to 1."""
    return (maps / 127.5 - 1).to(memory_format=torch.channels_last)


class MapConvnet(nn.Module):
    """Convolutional network from feature maps to one vector, Kiros et al. (2014), section 5.

    64 filters of 3x3, ReLU, response normalisation across channels (Krizhevsky et al., 2012, with their constants),
    3x3 max-pooling of stride 2, and a fully-connected ReLU layer.
    """

    FILTERS = 64

    def __init__(self, shape: tuple[int, ...], out_dim: int) -> None:
        """Build the network for maps (C, H, W) and vectors (out_dim,); SettingsError for maps smaller than 5x5."""
        super().__init__()
        channels, rows, columns = shape
        pooled = [(side - 2 - 3) // 2 + 1 for side in (rows, columns)]
        if min(pooled) < 1:
            raise SettingsError(
                f"features.tables: maps of {rows}x{columns} are too small for the convnet on feature maps; "
                "expected at least 5x5"
            )
        self.filters = nn.Conv2d(channels, self.FILTERS, 3)
        self.normalise = nn.LocalResponseNorm(5, alpha=5 * 1e-4, beta=0.75, k=2.0)  # torch divides alpha by the 5
        self.pool = nn.MaxPool2d(3, stride=2)
        self.project = nn.Linear(self.FILTERS * pooled[0] * pooled[1], out_dim)
        for layer in (self.filters, self.project):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, maps: Tensor) -> Tensor:
        """Compute vectors (B, out_dim) of feature maps (B, C, H, W)."""
        pooled = self.pool(self.normalise(torch.relu(self.filters(maps))))
        return torch.relu(self.project(pooled.flatten(1)))
