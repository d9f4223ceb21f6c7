"""Candidates by estimated scores for any captioning model, and their exact scores: the kind `expansions`.

`encode` of a model computes its memory m of an image, a few vectors that are constant over the time steps. The
log-probability of a sentence w_1 … w_T is a smooth function f of them, so that near a point c

    f(m) ≈ f(c) + grad f(c) · (m - c).

Value and gradient of f at c take about three times as long as a score. Memories of attention models hold one annotation
for each image location; here they are averaged over the locations to one annotation, so that f is itself an
approximation for these models.

The index holds the memories of the images as vectors, their codes, in cells, and the leading coordinates of each code
relative to its centroid. A search expands log P(sentence | code) at the centroid of every cell, which estimates the
score of every image of the cell. Then, for models without attention,

1. these estimates are computed in the leading coordinates only;
2. the mean of the two lowest of all expansions estimates the highest again: where the log-probability is concave,
   every expansion is an upper bound, and the lowest is the tightest;
3. the scores of the highest of these are computed exactly from the codes.

For attention models the images with the highest estimates are grouped by their codes, and expansions at the means of
these smaller groups estimate their scores again, until the candidates are left, which are scored by their features.
Nothing is proven: where the softmax is affine in the image, as in MLBL-B, `limner.retrieval.index.concave` has bounds.

Shapes: N images, C points, D size of a code.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from limner.data.examples import Batch, ImageFeatures
from limner.decoding.trees import flatten, rebuild
from limner.layers.attention import Annotations
from limner.layers.functional import precise
from limner.models.protocols import CountBasedModel, Memory, Model, device_of
from limner.models.two_tower import TwoTower
from limner.progress import Progress
from limner.retrieval.index.cells import Vectors, blocks, fit_centroids, leading_directions, nearest_centroids
from limner.retrieval.index.protocol import (
    CANDIDATES,
    BestImages,
    IndexedImages,
    IndexKind,
    Query,
    SearchOptions,
    ranked_candidates,
)
from limner.runs.trained_model import TrainedModel
from limner.storage.tensors import read_tensors, save_tensors
from limner.text.vocab import SPECIAL_TOKENS

CODES = "codes.npy"
"""File of the codes, in the order of the cells."""
CELLS = "cells.safetensors"
"""File of the centroids, the first row of each cell, and the directions of the leading coordinates."""
LEADING = "leading.npy"
"""File of the leading coordinates, in the order of the cells."""
LEADING_COORDINATES = 64
SAMPLE = 4096
"""Number of codes in the sample that gives the directions of the leading coordinates."""
MIN_REESTIMATED = 2000
"""Minimum number of images whose score is estimated by all expansions; ten for each candidate if that is more."""
IMAGES_PER_CELL = 64
MAX_CELLS = 16
NARROWING = (8, 2)
"""Numbers of images, as multiples of the candidates, whose scores are estimated again."""
GROUPS = 16
IMAGES_PER_GROUP = 8
ITERATIONS = 3
"""Iterations of k-means for the groups of a search."""


class ImageCodes:
    """Memories of the images of a model as vectors, and log-probabilities of sentences as functions of them."""

    def __init__(self, model: Model, image: ImageFeatures) -> None:
        """Learn the structure of the memory of a captioning model in evaluation mode from the features of an image."""
        self.model = model
        self._template = self._memory(image)
        self.averages = _has_locations(model.encode(_batch(image)))
        """Whether the codes are averages over the image locations, so that scores of codes are approximations."""

    @classmethod
    def from_model(cls, model: TrainedModel) -> ImageCodes:
        """Learn the structure of the memory of a trained model from an image of zeros."""
        shapes = model.config.inputs.feature_shapes
        zeros = {kind: torch.zeros(1, *shape) for kind, shape in shapes.items()}
        return cls(model.model, ImageFeatures(torch.ones(1, dtype=torch.bool), **zeros).to(device_of(model.model)))

    @torch.no_grad()
    def encode(self, image: ImageFeatures) -> Tensor:
        """Compute the codes of N images, (N, D)."""
        return torch.cat([part.flatten(1) for part in flatten(self._memory(image), "").values()], 1).float()

    @torch.no_grad()
    def _memory(self, image: ImageFeatures) -> Memory:
        return _average_locations(self.model.encode(_batch(image)))

    def log_probs(self, tokens: Sequence[int], codes: Tensor) -> Tensor:
        """Compute f of a sentence, without special tokens, at N codes (N, D), (N,), with gradients."""
        ids = torch.tensor([SPECIAL_TOKENS.bos, *tokens, SPECIAL_TOKENS.eos], device=codes.device)
        memory = self._memory_of(codes)
        state = self.model.start(memory)
        total = codes.new_zeros(len(codes))
        for before, after in pairwise(ids):
            logits, state = self.model.step(before.expand(len(codes)), memory, state)
            total = total - cross_entropy(precise(logits), after.expand(len(codes)), reduction="none")
        return total

    def _memory_of(self, codes: Tensor) -> Memory:
        """Return the memory of N codes."""
        parts = flatten(self._template, "")
        split = torch.split(codes, [part[0].numel() for part in parts.values()], 1)
        restored = (
            values.view(len(codes), *part.shape[1:]) for values, part in zip(split, parts.values(), strict=True)
        )
        return rebuild(self._template, "", dict(zip(parts, restored, strict=True)))

    def expand(self, tokens: Sequence[int], points: Tensor) -> tuple[Tensor, Tensor]:
        """Compute f, (C,), and its gradient, (C, D), at C points, (C, D)."""
        with torch.enable_grad():
            inputs = points.detach().requires_grad_(True)
            values = self.log_probs(tokens, inputs)
            (gradients,) = torch.autograd.grad(values.sum(), inputs)
        return values.detach(), gradients


def _batch(image: ImageFeatures) -> Batch:
    """Return a batch of images without sentences."""
    count = len(image.present)
    tokens = torch.zeros(count, 1, dtype=torch.long, device=image.present.device)
    return Batch(("",) * count, image, tokens, tokens, tokens.bool())


def _has_locations(memory: Any) -> bool:  # noqa: ANN401
    """Whether a memory holds annotations of more than one location."""
    if isinstance(memory, Annotations):
        return memory.values.shape[1] > 1
    return isinstance(memory, tuple) and any(_has_locations(part) for part in memory)


def _average_locations(memory: Any) -> Any:  # noqa: ANN401
    """Average all annotations in nested tuples over the locations of their masks."""
    if isinstance(memory, Annotations):
        weights = memory.values.new_ones(memory.values.shape[:2]) if memory.mask is None else memory.mask
        shares = (weights / weights.sum(1, keepdim=True).clamp(min=1))[..., None].to(memory.values.dtype)
        values, keys = ((part * shares).sum(1, keepdim=True) for part in (memory.values, memory.keys))
        return type(memory)(values, keys, None)
    if isinstance(memory, tuple):
        parts = map(_average_locations, memory)
        return type(memory)(*parts) if hasattr(memory, "_fields") else tuple(parts)
    return memory


def supports(model: Model) -> bool:
    """Whether the probabilities of a model depend on an image through a differentiable memory."""
    return model.uses_image and not isinstance(model, CountBasedModel | TwoTower)


def build(folder: Path, model: TrainedModel, images: IndexedImages, on_progress: Progress | None) -> NDArray[np.int64]:
    """Compute the codes, their cells, and write both; return the image of each row."""
    unordered, coder, device = folder / "unordered.npy", ImageCodes.from_model(model), device_of(model.model)
    codes = images.write_vectors(unordered, lambda image: coder.encode(image.to(device)), on_progress)
    order = write_cells(folder, codes)
    unordered.unlink()
    return order


def write_cells(folder: Path, codes: Vectors) -> NDArray[np.int64]:
    """Write the codes in cells with their leading coordinates; return the image of each row."""
    centroids = fit_centroids(codes, max(1, min(MAX_CELLS, len(codes) // IMAGES_PER_CELL)))
    cells = nearest_centroids(codes, centroids)
    order = np.argsort(cells, kind="stable")
    sample = np.sort(np.random.default_rng(1).choice(len(codes), min(SAMPLE, len(codes)), replace=False))
    count = min(LEADING_COORDINATES, codes.shape[1])
    directions = leading_directions(codes[sample] - centroids[cells[sample]], count)
    ordered = np.lib.format.open_memmap(folder / CODES, "w+", np.float32, codes.shape)
    leading = np.lib.format.open_memmap(folder / LEADING, "w+", np.float32, (len(codes), count))
    for rows in blocks(len(order)):
        ordered[rows] = codes[order[rows]]
        leading[rows] = (ordered[rows] - centroids[cells[order[rows]]]) @ directions
    ordered.flush()
    leading.flush()
    first = np.concatenate([[0], np.bincount(cells, minlength=len(centroids)).cumsum()])
    arrays = {"centroids": centroids, "first": first, "directions": directions}
    save_tensors(folder / CELLS, {name: torch.from_numpy(values) for name, values in arrays.items()})
    return order


class Leading(NamedTuple):
    """Leading coordinates of codes relative to their centroids."""

    coordinates: Vectors  # (N, K)
    directions: Vectors  # (D, K)


class ExpansionIndex:
    """Open index of image codes in cells."""

    def __init__(
        self,
        coder: ImageCodes,
        codes: Vectors,
        centroids: Tensor,
        first: NDArray[np.int64],
        leading: Leading | None = None,
    ) -> None:
        self.codes = codes
        """Codes of the images, (N, D)."""
        self._coder, self._centroids, self._first, self._leading = coder, centroids, first, leading

    @classmethod
    def open(cls, folder: Path, model: TrainedModel) -> ExpansionIndex:
        return cls.read(folder, ImageCodes.from_model(model), device_of(model.model))

    @classmethod
    def read(cls, folder: Path, coder: ImageCodes, device: torch.device) -> ExpansionIndex:
        """Open the files of an index of known codes."""
        cells = read_tensors(folder / CELLS).tensors
        codes, coordinates = (
            np.asarray(np.load(folder / name, mmap_mode="r", allow_pickle=False)) for name in (CODES, LEADING)
        )
        leading = Leading(coordinates, cells["directions"].numpy())
        return cls(coder, codes, cells["centroids"].to(device), cells["first"].numpy(), leading)

    def __len__(self) -> int:
        return len(self.codes)

    def search(self, query: Query, count: int, options: SearchOptions) -> BestImages:
        rows = self.candidates(query.tokens, max(count, options.max_scored or CANDIDATES))
        if self._coder.averages:
            return ranked_candidates(rows, count, len(self), query.exact_scores)
        return ranked_candidates(rows, count, len(self), lambda images: self.code_scores(query.tokens, images))

    @torch.inference_mode()
    def code_scores(self, tokens: Sequence[int], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute log P(sentence | code) of some rows."""
        codes = torch.from_numpy(self.codes[rows]).to(self._centroids.device)
        return self._coder.log_probs(tokens, codes).cpu().double().numpy()

    def candidates(self, tokens: Sequence[int], count: int) -> NDArray[np.int64]:
        """Return the rows of the highest estimates, in ascending order."""
        if count >= len(self):
            return np.arange(len(self))
        if not self._coder.averages:
            return self._lowest_expansions(tokens, count)
        rows, estimates = np.arange(len(self)), self._estimates(tokens)
        for share in NARROWING:
            rows = rows[_highest(estimates, share * count)]
            estimates = self._estimates_in_groups(tokens, self.codes[rows])
        return rows[_highest(estimates, count)]

    def _lowest_expansions(self, tokens: Sequence[int], count: int) -> NDArray[np.int64]:
        """Return the rows with the highest mean of their two lowest expansions; see the module."""
        slopes, constants = self._expand(tokens, self._centroids)
        leading = self._leading_estimates(slopes, constants)
        rows = _highest(leading, max(MIN_REESTIMATED, 10 * count))
        estimates = self.codes[rows] @ slopes.T + constants
        lowest = np.partition(estimates, 1, axis=1)[:, :2] if len(slopes) > 1 else estimates
        return rows[_highest(lowest.mean(1), count)]

    def _estimates(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Estimate the score of each image by the expansion of its cell, (N,)."""
        slopes, constants = self._expand(tokens, self._centroids)
        estimates = np.empty(len(self), np.float32)
        for cell, slope in enumerate(slopes):
            rows = slice(self._first[cell], self._first[cell + 1])
            estimates[rows] = self.codes[rows] @ slope + constants[cell]
        return estimates

    def _estimates_in_groups(self, tokens: Sequence[int], codes: Vectors) -> NDArray[np.float32]:
        """Estimate the score of each of R images by the expansion at the mean of similar images, (R, D) to (R,)."""
        groups = max(1, min(GROUPS, len(codes) // IMAGES_PER_GROUP))
        means = fit_centroids(codes, groups, iterations=ITERATIONS)
        nearest = nearest_centroids(codes, means)
        slopes, constants = self._expand(tokens, torch.from_numpy(means).to(self._centroids.device))
        estimates: NDArray[np.float32] = (codes @ slopes.T + constants)[np.arange(len(codes)), nearest]
        return estimates

    def _expand(self, tokens: Sequence[int], points: Tensor) -> tuple[Vectors, NDArray[np.float32]]:
        """Compute the slopes (C, D) and the constants (C,) of the estimates by the expansion at C points."""
        values, gradients = self._coder.expand(tokens, points)
        constants = values - (gradients * points).sum(1)
        return gradients.cpu().numpy(), constants.cpu().numpy()

    def _leading_estimates(self, slopes: Vectors, constants: NDArray[np.float32]) -> NDArray[np.float32]:
        """Estimate the score of each image by the expansion of its cell in the leading coordinates, (N,)."""
        assert self._leading is not None, "indexes of models without attention have leading coordinates"
        values = constants + (slopes * self._centroids.cpu().numpy()).sum(1)
        estimates = np.empty(len(self), np.float32)
        for cell, slope in enumerate(slopes @ self._leading.directions):
            rows = slice(self._first[cell], self._first[cell + 1])
            estimates[rows] = self._leading.coordinates[rows] @ slope + values[cell]
        return estimates


def _highest(values: Vectors, count: int) -> NDArray[np.int64]:
    """Return the indices of the `count` highest values, or of all, in ascending order."""
    if count >= len(values):
        return np.arange(len(values))
    return np.sort(np.argpartition(-values, count)[:count])


EXPANSIONS = IndexKind("expansions", supports, build, ExpansionIndex.open)
