"""Frame encoder: one vector per frame of each clip, from stored features or pixels.

Shapes: B batch, L frames, D feature size, C channels, H and W height and width of maps.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from limner.data.examples import ImageFeatures
from limner.errors import SettingsError
from limner.layers.image_encoder import COLOURS, ImageEncoderSettings, MapConvnet, PixelConvnet, location_mask, scale


class FrameEncoder(nn.Module):
    """Encode each clip as one vector per frame; an image is a clip of one frame.

    The weights do not depend on the number of frames, so that a model trained on images continues on clips. A stored
    grid (L, D) has a frame in each row, a pooled vector (D,) is one frame. Pixels or feature maps of an image (C, H, W)
    or of the frames of a clip (L, C, H, W) are encoded frame by frame by a convnet that is trained jointly.
    """

    def __init__(self, feature_shapes: Mapping[str, tuple[int, ...]], settings: ImageEncoderSettings) -> None:
        """Select the features in the order of preference grid, pooled, maps; SettingsError if there are none."""
        super().__init__()
        self.settings = settings
        self.convnet: PixelConvnet | MapConvnet | None = None
        if "grid" in feature_shapes or "pooled" in feature_shapes:
            self.kind = "grid" if "grid" in feature_shapes else "pooled"
            self.dim = feature_shapes[self.kind][-1]
        elif "maps" in feature_shapes:
            self.kind, self.dim, shape = "maps", settings.convnet_dim, feature_shapes["maps"][-3:]
            self.convnet = PixelConvnet(shape, settings) if shape[0] == COLOURS else MapConvnet(shape, self.dim)
        else:
            raise SettingsError("features.tables: this model describes videos and images; name a feature table")

    def forward(self, image: ImageFeatures) -> tuple[Tensor, Tensor] | None:
        """Compute the vectors of the frames of a batch.

        Returns:
            Vectors (B, L, dim), zero where a frame does not exist, and a mask (B, L), true where it exists; the frames
            that exist come first. None if no example of the batch has an image or a video.
        """
        stored: Tensor | None = getattr(image, self.kind)
        if stored is None:
            return None
        if self.kind == "pooled" or (self.kind == "maps" and stored.dim() == 4):
            stored = stored.unsqueeze(1)  # one frame
        mask = image.present[:, None] & frame_mask(stored.flatten(2))
        if self.convnet is None:
            frames = scale(stored, self.settings.scaling)
        else:
            frames = self.convnet(stored.flatten(0, 1)).unflatten(0, stored.shape[:2])
        frames = dropout(frames, self.settings.dropout, self.training)
        return frames * mask[..., None], mask


def frame_mask(frames: Tensor) -> Tensor:
    """Compute a mask (B, L) of stored frames (B, L, D), true up to the last frame that is not zero.

    Clips of fewer frames are padded with zeros. Zeros between other frames are a black or silent frame, which exists.
    """
    return location_mask(frames).long().flip(1).cumsum(1).flip(1) > 0


def mean_over_frames(frames: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean over the frames that exist, (B, L, D) to (B, D); zeros for an example without frames."""
    total = torch.where(mask[..., None], frames, 0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1)
