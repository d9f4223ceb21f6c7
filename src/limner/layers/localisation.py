"""Fully convolutional localisation network: proposals at every location, their sampling for training, their features.

Johnson et al. (2016), section 3.2; the features are sampled bilinearly, so that they are differentiable (Jaderberg et
al., 2015). Shapes: B images, C channels, H and W height and width of the maps, k anchors of each location, A = H W k
proposals of an image, R annotated regions of an image, N regions, X and Y columns and rows of a sampled region.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from limner.bounds import AnchorSize, PositiveShare, Probability, Several, Width
from limner.layers.boxes import anchor_grid, anchor_shapes, apply_offsets, iou
from limner.layers.functional import precise
from limner.settings import Settings

TIE_NOISE = 1e-6
"""Largest random addition to an IoU, which decides between annotations of the same box."""


class LocalisationSettings(Settings):
    """Settings of the localisation network; the defaults are those of the paper, where it gives them."""

    filters: Width = 256
    """Number of filters of the 3x3 convolution."""
    anchor_scales: tuple[AnchorSize, ...] = Field(default=(0.09, 0.18, 0.36, 0.71), min_length=1, max_length=32)
    """Square roots of the anchors' areas, in fractions of the image: 64, 128, 256 and 512 of 720 pixels."""
    anchor_ratios: tuple[AnchorSize, ...] = Field(default=(0.5, 1.0, 2.0), min_length=1, max_length=32)
    """Ratios of width to height of the anchors; there is one anchor for each scale and ratio."""
    positive_iou: PositiveShare = 0.7
    """Smallest IoU with an annotated region of a positive region in training."""
    negative_iou: Probability = 0.3
    """A region whose IoU with all annotated regions is smaller is negative in training."""
    sampled_regions: Several = 256
    """Number of regions sampled per training image, at most half of them positive."""


class Proposals(NamedTuple):
    """Region proposals of the images of a batch."""

    anchors: Tensor  # (A, 4), the same for all images
    offsets: Tensor  # (B, A, 4)
    boxes: Tensor  # (B, A, 4): the anchors moved by the offsets
    scores: Tensor  # (B, A): logits of the confidence


class SampledRegions(NamedTuple):
    """Proposals of one image that were sampled for training."""

    positive: Tensor  # (P,): indices of proposals
    matched: Tensor  # (P,): index of the annotated region of each positive proposal
    negative: Tensor  # (M,): indices of proposals


class LocalisationNetwork(nn.Module):
    """Predict a confidence and four offsets for each of k anchors at every location of feature maps.

    A 3x3 convolution with ReLU is followed by a 1x1 convolution to 5k channels.
    """

    def __init__(self, channels: int, settings: LocalisationSettings) -> None:
        """Build the network for maps of `channels` channels."""
        super().__init__()
        self.settings = settings
        self.shapes: Tensor
        self.register_buffer(
            "shapes", anchor_shapes(settings.anchor_scales, settings.anchor_ratios), persistent=False
        )  # (k, 2)
        self.convolution = nn.Conv2d(channels, settings.filters, 3, padding=1)
        self.output = nn.Conv2d(settings.filters, 5 * len(self.shapes), 1)
        nn.init.normal_(self.output.weight, std=0.01)
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)

    def forward(self, maps: Tensor) -> Proposals:
        """Propose regions of the images of feature maps (B, C, H, W)."""
        hidden = torch.relu(self.convolution(maps))
        predicted = self.output(hidden).permute(0, 2, 3, 1).unflatten(3, (-1, 5)).flatten(1, 3)  # (B, H W k, 5)
        anchors = anchor_grid(maps.shape[2], maps.shape[3], self.shapes)
        offsets, scores = precise(predicted).split_with_sizes((4, 1), -1)
        return Proposals(anchors, offsets, apply_offsets(anchors, offsets), scores.squeeze(-1))


def sample_for_training(boxes: Tensor, annotated: Tensor, settings: LocalisationSettings) -> SampledRegions:
    """Sample positive and negative proposals of one image, Johnson et al. (2016), section 3.2.3.

    A proposal is positive if its IoU with an annotated region is at least `positive_iou`, or if no other proposal has a
    larger IoU with an annotated region; it is negative if its IoU with all of them is below `negative_iou`. Both are
    sampled uniformly without replacement.

    Args:
        boxes: proposals, (A, 4).
        annotated: annotated regions, (R, 4); several may have the same box, and one of them is drawn for each proposal.
        settings: thresholds and number of regions.
    """
    if not len(annotated):
        none = torch.zeros(0, dtype=torch.long, device=boxes.device)
        everything = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
        return SampledRegions(none, none, _draw(everything, settings.sampled_regions))
    overlap = iou(boxes, annotated)  # (A, R)
    best, _ = overlap.max(1)
    positive = best >= settings.positive_iou
    nearest = (overlap + TIE_NOISE * torch.rand_like(overlap)).argmax(1)
    # The proposal of the largest IoU with an annotated region is positive and belongs to this region.
    largest, nearest_proposal = overlap.max(0)
    for region, proposal in enumerate(nearest_proposal.tolist()):
        if not positive[proposal] and largest[region] > 0:
            positive[proposal] = True
            nearest[proposal] = region
    negative = (best < settings.negative_iou) & ~positive
    chosen = _draw(positive, settings.sampled_regions // 2)
    return SampledRegions(chosen, nearest[chosen], _draw(negative, settings.sampled_regions - len(chosen)))


def _draw(candidates: Tensor, count: int) -> Tensor:
    """Draw the indices of at most `count` candidates, (A,) bool, without replacement."""
    indices = candidates.nonzero().squeeze(1)
    return indices[torch.randperm(len(indices), device=indices.device)[:count]]


def sampling_grid(boxes: Tensor, size: tuple[int, int], output: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Compute the sampling grid of regions, a linear function of the coordinates of their boxes.

    A region is divided into X times Y cells, and its samples are the cells' centres. The centre of location (0, 0) of
    the maps is the origin of the grid, and locations are its unit.

    Args:
        boxes: (x, y, w, h) in fractions of the image, (N, 4).
        size: rows H and columns W of the maps.
        output: rows Y and columns X of a sampled region.

    Returns:
        Vertical coordinates of the Y rows of each region, (N, Y), and horizontal ones of the X columns, (N, X).
    """
    coordinates = []
    for axis, length, count in ((1, size[0], output[0]), (0, size[1], output[1])):
        steps = (torch.arange(count, dtype=boxes.dtype, device=boxes.device) + 0.5) / count - 0.5  # (-1/2, 1/2)
        position = boxes[:, axis, None] + boxes[:, axis + 2, None] * steps  # fractions of the image
        coordinates.append(position * length - 0.5)
    return coordinates[0], coordinates[1]


def bilinear_sample(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Sample maps with the bilinear kernel, Johnson et al. (2016), section 3.2.3.

        V[c, i, j] = sum_{i', j'} U[c, i', j'] k(i' - y[i]) k(j' - x[j]),  k(d) = max(0, 1 - |d|)

    The grid of a box is the product of its rows and its columns, so that the sum is two matrix products. It is
    differentiable with respect to the maps and to the coordinates. Maps are zero outside their borders.

    Args:
        maps: feature maps U of one image, (C, H, W), or of an image for each region, (N, C, H, W).
        rows: vertical coordinates y of each region, (N, Y); 0 is the first row of the maps.
        columns: horizontal coordinates x of each region, (N, X).

    Returns:
        Features V of the regions, (N, C, Y, X).
    """
    height, width = maps.shape[-2:]
    across = _bilinear_kernel(columns, width)  # (N, X, W)
    down = _bilinear_kernel(rows, height)  # (N, Y, H)
    if maps.dim() == 4:
        return torch.einsum("nyh,nchw,nxw->ncyx", down, maps, across)
    count, channels = len(rows), len(maps)
    mixed = down.flatten(0, 1) @ maps.transpose(0, 1).flatten(1)  # (N Y, C W)
    by_row = mixed.view(count, -1, channels, width)  # (N, Y, C, W)
    return (by_row @ across.transpose(1, 2).unsqueeze(1)).transpose(1, 2)  # (N, Y, C, X) to (N, C, Y, X)


def sample_regions(maps: Tensor, boxes: Tensor, output: tuple[int, int]) -> Tensor:
    """Sample regions of fixed size from maps.

    Args:
        maps: feature maps of one image, (C, H, W), or of an image for each region, (N, C, H, W).
        boxes: (x, y, w, h) in fractions of the image, (N, 4).
        output: rows Y and columns X of a sampled region.

    Returns:
        Features of the regions, (N, C, Y, X).
    """
    return bilinear_sample(maps, *sampling_grid(boxes, (maps.shape[-2], maps.shape[-1]), output))


def _bilinear_kernel(coordinates: Tensor, length: int) -> Tensor:
    """Compute k(i' - coordinate) for i' = 0, …, length - 1: (N, X) to (N, X, length)."""
    positions = torch.arange(length, dtype=coordinates.dtype, device=coordinates.device)
    return (1 - (positions - coordinates.unsqueeze(-1)).abs()).clamp(min=0)
