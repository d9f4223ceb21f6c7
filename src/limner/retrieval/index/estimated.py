"""Candidates by estimated scores for any captioning model, and their exact scores: the kind `expansions`.

The index holds the codes of the images, what the decoder reads of them (`limner.retrieval.index.expansions`), in cells.
A search expands log P(sentence | code) at the centroid of every cell, which estimates the score of every image of the
cell. For attention models the images with the highest estimates are grouped by their codes, and expansions at the means
of these smaller groups estimate their scores again, until the candidates are left. Those of other models are good
enough at once. The exact scores of the candidates are computed. Nothing is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from limner.models.protocols import CountBasedModel, JointSpaceModel, Model, device_of
from limner.progress import Progress
from limner.retrieval.index.cells import Vectors, blocks, fit_centroids, nearest_centroids
from limner.retrieval.index.expansions import ImageCodes
from limner.retrieval.index.protocol import (
    CANDIDATES,
    Found,
    IndexedImages,
    IndexKind,
    Query,
    SearchOptions,
    ranked_candidates,
)
from limner.runs.trained_model import TrainedModel
from limner.storage.tensors import read_tensors, save_tensors

CODES = "codes.npy"
"""File of the codes, in the order of the cells."""
CELLS = "cells.safetensors"
"""File of the centroids, the first row of each cell, and the order of the images."""
IMAGES_PER_CELL = 64
MOST_CELLS = 16
NARROWED = (8, 2)
"""Numbers of images, relative to the candidates, whose scores are estimated again."""
GROUPS = 16
IMAGES_PER_GROUP = 8
ITERATIONS = 3
"""Iterations of k-means for the groups of a search."""
LARGEST_CODE = 8192
"""Number of values of a code above which an index would be larger than most features."""


def supports(model: Model) -> bool:
    """Whether the probabilities of a model depend on an image through a differentiable memory."""
    return model.uses_image and not isinstance(model, CountBasedModel | JointSpaceModel)


def build(folder: Path, model: TrainedModel, images: IndexedImages, on_progress: Progress | None) -> NDArray[np.int64]:
    """Compute the codes, their cells, and write both; return the image of each row."""
    unordered = folder / "unordered.npy"
    codes = _compute_codes(unordered, model.model, images, on_progress)
    centroids = fit_centroids(codes, max(1, min(MOST_CELLS, len(codes) // IMAGES_PER_CELL)))
    cells = nearest_centroids(codes, centroids)
    order = np.argsort(cells, kind="stable")
    ordered = np.lib.format.open_memmap(folder / CODES, "w+", np.float32, codes.shape)
    for rows in blocks(len(order)):
        ordered[rows] = codes[order[rows]]
    ordered.flush()
    unordered.unlink()
    first = np.concatenate([[0], np.bincount(cells, minlength=len(centroids)).cumsum()])
    arrays = {"centroids": centroids, "first": first}
    save_tensors(folder / CELLS, {name: torch.from_numpy(values) for name, values in arrays.items()})
    return order


def _compute_codes(path: Path, network: Model, images: IndexedImages, on_progress: Progress | None) -> Vectors:
    """Write the codes of all images to a file, (N, D)."""
    coder, codes, begin = None, None, 0
    for image in images.batches(on_progress):
        image = image.to(device_of(network))
        coder = coder or ImageCodes(network, image)
        values = coder.encode(image).cpu().numpy()
        if codes is None:
            codes = np.lib.format.open_memmap(path, "w+", np.float32, (images.size, values.shape[1]))
        codes[begin : begin + len(values)] = values
        begin += len(values)
    assert codes is not None, "an index has images"
    return codes


class ExpansionIndex:
    """Open index of image codes in cells."""

    def __init__(self, coder: ImageCodes, codes: Vectors, centroids: torch.Tensor, first: NDArray[np.int64]) -> None:
        self.codes = codes
        """Codes of the images, (N, D)."""
        self._coder, self._centroids, self._first = coder, centroids, first

    @classmethod
    def open(cls, folder: Path, model: TrainedModel) -> ExpansionIndex:
        """Open the files of an index."""
        network = model.model
        cells = read_tensors(folder / CELLS).tensors
        codes = np.load(folder / CODES, mmap_mode="r", allow_pickle=False)
        centroids = cells["centroids"].to(device_of(network))
        return cls(ImageCodes.of(model), np.asarray(codes), centroids, cells["first"].numpy())

    def __len__(self) -> int:
        return len(self.codes)

    def search(self, query: Query, count: int, options: SearchOptions) -> Found:
        """Score the images with the highest estimates, 200 by default; see `ImageIndex`."""
        limit = max(count, options.max_scored or CANDIDATES)
        return ranked_candidates(self.candidates(query.tokens, limit), count, len(self), query.exact_scores)

    def candidates(self, tokens: Sequence[int], count: int) -> NDArray[np.int64]:
        """Return the rows of the highest estimates, in ascending order."""
        if count >= len(self):
            return np.arange(len(self))
        rows, estimates = np.arange(len(self)), self._estimates(tokens)
        for share in NARROWED if self._coder.averages else ():
            rows = rows[_highest(estimates, share * count)]
            estimates = self._estimates_in_groups(tokens, self.codes[rows])
        return rows[_highest(estimates, count)]

    def _estimates(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Estimate the score of each image by the expansion of its cell, (N,)."""
        slopes, constants = self._expand(tokens, self._centroids)
        estimates = np.empty(len(self), np.float32)
        for cell, slope in enumerate(slopes):
            rows = slice(self._first[cell], self._first[cell + 1])
            estimates[rows] = self.codes[rows] @ slope + constants[cell]
        return estimates

    def _estimates_in_groups(self, tokens: Sequence[int], codes: Vectors) -> NDArray[np.float32]:
        """Estimate the score of each of R images by the expansion at the mean of similar ones, (R, D) to (R,)."""
        groups = max(1, min(GROUPS, len(codes) // IMAGES_PER_GROUP))
        means = fit_centroids(codes, groups, iterations=ITERATIONS)
        own = nearest_centroids(codes, means)
        slopes, constants = self._expand(tokens, torch.from_numpy(means).to(self._centroids.device))
        estimates: NDArray[np.float32] = (codes @ slopes.T + constants)[np.arange(len(codes)), own]
        return estimates

    def _expand(self, tokens: Sequence[int], points: torch.Tensor) -> tuple[Vectors, NDArray[np.float32]]:
        """Compute the slopes (C, D) and the constants (C,) of the estimates by the expansion at C points."""
        expansion = self._coder.expand(tokens, points)
        constants = expansion.values - (expansion.gradients * points).sum(1)
        return expansion.gradients.cpu().numpy(), constants.cpu().numpy()


def _highest(estimates: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the indices of the highest estimates, in ascending order."""
    if count >= len(estimates):
        return np.arange(len(estimates))
    return np.sort(np.argpartition(-estimates, count)[:count])


EXPANSIONS = IndexKind("expansions", supports, build, ExpansionIndex.open)
