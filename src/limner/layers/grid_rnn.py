"""Two-dimensional recurrent network over a grid, in four directions.

Shapes: B batch, L = R C locations of a grid of R rows and C columns, D feature size, H hidden.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from limner.layers.cells import orthogonal_gates

DIRECTIONS = ((), (2,), (1,), (1, 2))
"""Dimensions of (B, R, C, …) that each scan reverses: right and down, left and down, right and up, left and up."""


class GridRNN(nn.Module):
    """Four-direction two-dimensional RNN (Graves et al., 2007), the extension of bidirectional networks to images.

    In the scan to the right and down, with states of zero outside of the grid:

        h_{r,c} = tanh(W x_{r,c} + U_row h_{r-1,c} + U_col h_{r,c-1} + b)

    The other three scans read the grid mirrored, with weights of their own. The output of a location is the
    concatenation of its four states, so it depends on the whole grid.
    """

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        """Build the network for locations of size D = `input_dim` and states of size H = `hidden_dim`."""
        super().__init__()
        self.input = nn.Linear(input_dim, 4 * hidden_dim)  # W, b of the four scans
        self.row = nn.Parameter(torch.empty(4, hidden_dim, hidden_dim))  # U_row of each scan, transposed
        self.column = nn.Parameter(torch.empty(4, hidden_dim, hidden_dim))  # U_col of each scan, transposed
        for weight in (self.row, self.column):
            orthogonal_gates(weight.view(-1, hidden_dim))
        with torch.no_grad():  # the two products of a state have the norm of one
            self.row.mul_(0.5**0.5)
            self.column.mul_(0.5**0.5)
        self.dim = 4 * hidden_dim

    def forward(self, grid: Tensor) -> Tensor:
        """Compute the states of all locations: (B, R, C, D) to (B, R, C, 4H)."""
        projected = self.input(grid).chunk(4, -1)
        scans = torch.stack(
            [x.flip(reverse) if reverse else x for x, reverse in zip(projected, DIRECTIONS, strict=True)]
        )
        above = torch.zeros_like(scans[:, :, 0])  # (4, B, C, H)
        rows = []
        for row in scans.unbind(2):
            inputs = row + (above.flatten(1, 2) @ self.row).view_as(row)  # W x + b + U_row h_{r-1,c}
            left, states = torch.zeros_like(inputs[:, :, 0]), []
            for at_c in inputs.unbind(2):
                left = torch.tanh(at_c + left @ self.column)  # h_{r,c}
                states.append(left)
            above = torch.stack(states, 2)
            rows.append(above)
        scanned = torch.stack(rows, 2).unbind()  # (B, R, C, H) each
        return torch.cat(
            [h.flip(reverse) if reverse else h for h, reverse in zip(scanned, DIRECTIONS, strict=True)], -1
        )


def scan_grid(network: GridRNN, grid: Tensor) -> Tensor:
    """Compute the states of a two-dimensional RNN at the locations of square grids: (B, L, D) to (B, L, 4H)."""
    side = math.isqrt(grid.shape[1])
    states: Tensor = network(grid.view(grid.shape[0], side, side, -1))
    return states.flatten(1, 2)
