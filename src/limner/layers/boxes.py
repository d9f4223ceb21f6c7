"""Boxes: formats, intersection over union, the parametrisation of Faster R-CNN, anchors, non-maximum suppression.

A box is (x, y, w, h): centre, width and height, in any unit; the models use fractions of the image's sides.
Shapes: N boxes, M other boxes, k anchors of each location, H and W height and width of feature maps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

MAX_LOG_SCALE = math.log(1000 / 16)
"""Largest t_w and t_h that `apply_offsets` uses: the exponential of larger ones could overflow."""

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


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Compute the intersection over union of all pairs of boxes.

    Args:
        boxes: (…, N, 4).
        others: (…, M, 4).

    Returns:
        (…, N, M); 0 for a pair without area.
    """
    first, second = to_corners(boxes).unsqueeze(-2), to_corners(others).unsqueeze(-3)
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    intersection = (high - low).clamp(min=0).prod(-1)
    area, other_area = (sides[..., 2:].clamp(min=0).prod(-1) for sides in (boxes, others))
    union = area.unsqueeze(-1) + other_area.unsqueeze(-2) - intersection
    return intersection / union.clamp(min=torch.finfo(union.dtype).tiny)


def apply_offsets(anchors: Tensor, offsets: Tensor) -> Tensor:
    """Move and scale boxes, Johnson et al. (2016), section 3.2.2, after Ren et al. (2015).

        x = x_a + t_x w_a,  y = y_a + t_y h_a,  w = w_a exp(t_w),  h = h_a exp(t_h)

    Args:
        anchors: boxes (x_a, y_a, w_a, h_a), (…, 4).
        offsets: (t_x, t_y, t_w, t_h), (…, 4).

    Returns:
        Boxes (…, 4).
    """
    centre = anchors[..., :2] + offsets[..., :2] * anchors[..., 2:]
    return torch.cat([centre, anchors[..., 2:] * offsets[..., 2:].clamp(max=MAX_LOG_SCALE).exp()], -1)


def offsets_to(anchors: Tensor, targets: Tensor) -> Tensor:
    """Compute the offsets (…, 4) that move boxes to target boxes: the inverse of `apply_offsets`."""
    shift = (targets[..., :2] - anchors[..., :2]) / anchors[..., 2:]
    return torch.cat([shift, (targets[..., 2:] / anchors[..., 2:]).log()], -1)


def anchor_shapes(scales: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Compute the width and height of k anchors, (k, 2), k = len(scales) len(ratios).

    Args:
        scales: square roots of the areas.
        ratios: ratios of width to height.
    """
    return torch.tensor([(scale * math.sqrt(ratio), scale / math.sqrt(ratio)) for scale in scales for ratio in ratios])


def anchor_grid(height: int, width: int, shapes: Tensor) -> Tensor:
    """Centre anchors at every location of feature maps.

    Args:
        height: rows H of the maps.
        width: columns W of the maps.
        shapes: width and height of each anchor in fractions of the image, (k, 2).

    Returns:
        Boxes (H W k, 4): rows of locations from the top, the anchors of a location adjacent.
    """
    y, x = (
        (torch.arange(size, dtype=shapes.dtype, device=shapes.device) + 0.5) / size for size in (height, width)
    )  # centres of the locations
    parts = (x[None, :, None], y[:, None, None], shapes[:, 0], shapes[:, 1])
    return torch.stack([part.expand(height, width, len(shapes)) for part in parts], -1).reshape(-1, 4)


def nms(boxes: Tensor, scores: Tensor, threshold: float, count: int) -> Tensor:
    """Select boxes by greedy non-maximum suppression.

    The box of the highest score is selected, and all boxes whose IoU with it exceeds the threshold are removed, until
    `count` boxes are selected or none remains. Of equal scores the first is selected.

    Args:
        boxes: (N, 4).
        scores: (N,).
        threshold: largest IoU of two selected boxes.
        count: largest number of selected boxes.

    Returns:
        Indices of the selected boxes, by descending score.
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
