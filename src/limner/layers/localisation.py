"""Boxes, and the localisation network: proposals at every location, their sampling for training, their features.

A box is (x, y, w, h): centre, width and height, in any unit; the models use fractions of the image's sides.
Johnson et al. (2016), section 3.2; the features are sampled bilinearly, so that they are differentiable (Jaderberg et
al., 2015).

Shapes: B images, C channels, H and W height and width of the maps, k anchors of each location, A = H W k proposals of
an image, R annotated regions of an image, N regions or boxes, M other boxes, X and Y columns and rows of a sampled
region.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from limner.bounds import AnchorSize, PositiveShare, Probability, Several, Width
from limner.layers.functional import precise
from limner.settings import Settings

MAX_LOG_SCALE = math.log(1000 / 16)
"""Largest t_w and t_h that `apply_offsets` uses: the exponential of larger values could overflow."""

MIN_SIDE = 0.01
"""Smallest width and height of a region within the image, in fractions of the image."""

NMS_BLOCK = 256
"""Number of boxes whose mutual IoU `nms` computes at once."""


def to_corners(boxes: Tensor) -> Tensor:
    """Convert boxes (…, 4) from (x, y, w, h) with the centre (x, y) to left, top, right and bottom."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], -1)


def from_corners(corners: Tensor) -> Tensor:
    """Convert boxes (…, 4) from left, top, right and bottom to (x, y, w, h) with the centre (x, y)."""
    first, last = corners[..., :2], corners[..., 2:]
    return torch.cat([(first + last) / 2, last - first], -1)


def clip_to_image(boxes: Tensor) -> Tensor:
    """Cut boxes (…, 4), in fractions of the image, off at the edges of the image."""
    return from_corners(to_corners(boxes).clamp(0, 1))


def regions_in_image(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Clip boxes (N, 4) to the image, and leave out boxes with a side of less than `MIN_SIDE` in it.

    Faster R-CNN filters its proposals so (Ren et al., 2015: 16 pixels of 600). A box without area overlaps nothing, so
    that non-maximum suppression would keep it.

    Returns:
        The regions (R, 4), and their indices (R,) in `boxes`.
    """
    clipped = clip_to_image(boxes)
    kept = (clipped[:, 2:].amin(1) >= MIN_SIDE).nonzero().squeeze(1)
    return clipped[kept], kept


def iou(boxes: Tensor, other_boxes: Tensor) -> Tensor:
    """Compute the intersection over union of all pairs of boxes (…, N, 4) and (…, M, 4), (…, N, M); 0 without area."""
    first, second = to_corners(boxes).unsqueeze(-2), to_corners(other_boxes).unsqueeze(-3)
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    intersection = (high - low).clamp(min=0).prod(-1)
    area, other_area = (sides[..., 2:].clamp(min=0).prod(-1) for sides in (boxes, other_boxes))
    union = area.unsqueeze(-1) + other_area.unsqueeze(-2) - intersection
    return intersection / union.clamp(min=torch.finfo(union.dtype).tiny)


def apply_offsets(anchors: Tensor, offsets: Tensor) -> Tensor:
    """Move and scale boxes (…, 4), Johnson et al. (2016), section 3.2.2, after Ren et al. (2015).

    x = x_a + t_x w_a,  y = y_a + t_y h_a,  w = w_a exp(t_w),  h = h_a exp(t_h)
    """
    centre = anchors[..., :2] + offsets[..., :2] * anchors[..., 2:]
    return torch.cat([centre, anchors[..., 2:] * offsets[..., 2:].clamp(max=MAX_LOG_SCALE).exp()], -1)


def offsets_to(anchors: Tensor, targets: Tensor) -> Tensor:
    """Compute the offsets (…, 4) that move boxes to target boxes: the inverse of `apply_offsets`."""
    shift = (targets[..., :2] - anchors[..., :2]) / anchors[..., 2:]
    return torch.cat([shift, (targets[..., 2:] / anchors[..., 2:]).log()], -1)


def anchor_shapes(scales: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Compute width and height of k anchors, (k, 2), of square roots of areas and of ratios of width to height."""
    return torch.tensor([(scale * math.sqrt(ratio), scale / math.sqrt(ratio)) for scale in scales for ratio in ratios])


def anchor_grid(height: int, width: int, shapes: Tensor) -> Tensor:
    """Centre k anchors (k, 2) at every location of H x W maps: boxes (H W k, 4), by rows, then by anchor."""
    y, x = ((torch.arange(size).to(shapes) + 0.5) / size for size in (height, width))  # centres of the locations
    parts = (x[None, :, None], y[:, None, None], shapes[:, 0], shapes[:, 1])
    return torch.stack([part.expand(height, width, len(shapes)) for part in parts], -1).reshape(-1, 4)


def nms(boxes: Tensor, scores: Tensor, threshold: float, count: int) -> Tensor:
    """Select boxes (N, 4) by greedy non-maximum suppression; return their indices by descending score.

    The box of the highest score is selected, and all boxes whose IoU with it exceeds the threshold are removed, until
    `count` boxes are selected or none remains. Of equal scores the first is selected.
    """
    selected = torch.zeros(0, dtype=torch.long, device=boxes.device)
    for block in torch.split(scores.argsort(descending=True, stable=True), NMS_BLOCK):
        if len(selected) >= count:
            break
        block = block[(iou(boxes[block], boxes[selected]) <= threshold).all(1)]
        near = (iou(boxes[block], boxes[block]) > threshold).cpu().numpy()
        kept, free = [], np.ones(len(block), dtype=bool)
        for candidate in range(len(block)):
            if free[candidate]:
                kept.append(candidate)
                free &= ~near[candidate]
        selected = torch.cat([selected, block[kept]])
    return selected[:count]


TIE_NOISE = 1e-6
"""Largest random addition to an IoU, which decides between annotations of the same box."""


class LocalisationSettings(Settings):
    """Settings of the localisation network; the defaults follow the paper, where it gives them."""

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
        shapes = anchor_shapes(settings.anchor_scales, settings.anchor_ratios)  # (k, 2)
        self.register_buffer("shapes", shapes, persistent=False)
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
    """Sample positive and negative proposals (A, 4) of one image, Johnson et al. (2016), section 3.2.3.

    A proposal is positive if its IoU with an annotated region (R, 4) is at least `positive_iou`, or if no other
    proposal has a larger IoU with an annotated region; it is negative if its IoU with all of them is below
    `negative_iou`. Both are sampled uniformly without replacement. If several annotated regions have the same box, one
    of them is drawn for each proposal.
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
    """Compute the sampling grid of regions (N, 4) on H x W maps, a linear function of the coordinates of their boxes.

    A region is divided into X times Y cells, and its samples are the cells' centres. The centre of location (0, 0) of
    the maps is the origin of the grid, and locations are its unit.

    Returns:
        Vertical coordinates of the Y rows of each region, (N, Y), and horizontal coordinates of the X columns, (N, X).
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
    """Sample regions (N, C, Y, X) from the maps of one image (C, H, W), or from maps for each region (N, C, H, W)."""
    return bilinear_sample(maps, *sampling_grid(boxes, (maps.shape[-2], maps.shape[-1]), output))


def _bilinear_kernel(coordinates: Tensor, length: int) -> Tensor:
    """Compute k(i' - coordinate) for i' = 0, …, length - 1: (N, X) to (N, X, length)."""
    positions = torch.arange(length, dtype=coordinates.dtype, device=coordinates.device)
    return (1 - (positions - coordinates.unsqueeze(-1)).abs()).clamp(min=0)
