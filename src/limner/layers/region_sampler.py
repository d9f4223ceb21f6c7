"""Differentiable bilinear sampling of regions from feature maps, Jaderberg et al. (2015), Johnson et al. (2016).

Shapes: N regions, C channels, H and W height and width of the maps, X and Y columns and rows of a sampled region.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
    across = _kernel(columns, width)  # (N, X, W)
    down = _kernel(rows, height)  # (N, Y, H)
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


def _kernel(coordinates: Tensor, length: int) -> Tensor:
    """Compute k(i' - coordinate) for i' = 0, …, length - 1: (N, X) to (N, X, length)."""
    positions = torch.arange(length, dtype=coordinates.dtype, device=coordinates.device)
    return (1 - (positions - coordinates.unsqueeze(-1)).abs()).clamp(min=0)
