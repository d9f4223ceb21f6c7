"""Exact search with a certificate for models whose logits are affine in the image: tangents of a concave function.

The index holds the image terms z in cells. A search computes a tangent of log P(sentence | z) at the centroid of every
cell, which bounds the score of every image of the cell, and scores images in the order of their bounds until no bound
of the rest exceeds the last result: these are the best images, by proof.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from limner.models.protocols import AffineImageModel, Model, device_of
from limner.progress import Progress
from limner.retrieval.index.cells import blocks, fit_centroids, nearest_centroids
from limner.retrieval.index.concave import ConcaveScore, Floats
from limner.retrieval.index.protocol import Found, IndexedImages, IndexKind, Query, SearchOptions
from limner.runs.trained_model import TrainedModel
from limner.storage.tensors import read_tensors, save_tensors

TERMS = "terms.npy"
"""File of the image terms, in the order of the cells."""
CELLS = "cells.safetensors"
"""File of the centroids, the first row of each cell, and the order of the images."""
IMAGES_PER_CELL = 256
MOST_CELLS = 256
SCORED_TOGETHER = 32
RESOLUTION = 9
"""Decimal places of scores: images whose scores differ by less are ranked by their order in the collection."""
MARGIN = 1e-8
"""Addition to bounds for the rounding of float64, relative to 1 + |bound|."""


def supports(model: Model) -> bool:
    """Whether the logits of a model are affine in the image."""
    return isinstance(model, AffineImageModel) and model.affine_in_image


def build(folder: Path, model: TrainedModel, images: IndexedImages, on_progress: Progress | None) -> NDArray[np.int64]:
    """Compute the image terms, their cells, and write both; return the image of each row."""
    network = model.model
    assert isinstance(network, AffineImageModel), "the kind supports the model"
    unordered = folder / "unordered.npy"
    terms = _compute_terms(unordered, network, images, on_progress)
    centroids = fit_centroids(terms, max(1, min(MOST_CELLS, len(terms) // IMAGES_PER_CELL)))
    cells = nearest_centroids(terms, centroids)
    order = np.argsort(cells, kind="stable")
    ordered = np.lib.format.open_memmap(folder / TERMS, "w+", np.float32, terms.shape)
    for rows in blocks(len(order)):
        ordered[rows] = terms[order[rows]]
    ordered.flush()
    unordered.unlink()
    first = np.concatenate([[0], np.bincount(cells, minlength=len(centroids)).cumsum()])
    arrays = {"centroids": centroids, "first": first, "order": order}
    save_tensors(folder / CELLS, {name: torch.from_numpy(values) for name, values in arrays.items()})
    return order


def _compute_terms(
    path: Path, network: AffineImageModel, images: IndexedImages, on_progress: Progress | None
) -> NDArray[np.float32]:
    """Write the terms of all images to a file, (N, D)."""
    terms, begin = None, 0
    for image in images.batches(on_progress):
        with torch.inference_mode():
            values = network.image_terms(image.to(device_of(network))).float().cpu().numpy()  # type: ignore[arg-type]
        if terms is None:
            terms = np.lib.format.open_memmap(path, "w+", np.float32, (len(images.items), values.shape[1]))
        terms[begin : begin + len(values)] = values
        begin += len(values)
    assert terms is not None, "an index has images"
    return terms


class TangentIndex:
    """Open index of image terms in cells."""

    def __init__(
        self,
        model: AffineImageModel,
        terms: NDArray[np.float32],
        centroids: Floats,
        first: NDArray[np.int64],
        order: NDArray[np.int64],
    ) -> None:
        self._model, self._terms, self._order = model, terms, order
        self._centroids, self._first = centroids, first

    @classmethod
    def open(cls, folder: Path, model: TrainedModel) -> TangentIndex:
        """Open the files of an index."""
        network = model.model
        assert isinstance(network, AffineImageModel), "the kind supports the model"
        cells = read_tensors(folder / CELLS).tensors
        terms = np.load(folder / TERMS, mmap_mode="r", allow_pickle=False)
        return cls(network, terms, cells["centroids"].double().numpy(), cells["first"].numpy(), cells["order"].numpy())

    def __len__(self) -> int:
        return len(self._terms)

    def search(self, query: Query, count: int, options: SearchOptions) -> Found:
        """Find the best images, and score as few others as their bounds allow; see `ImageIndex`."""
        score = ConcaveScore.of(self._model, query.tokens)
        bounds = self._bounds(score)
        order = np.argsort(-bounds, kind="stable")
        scores = np.full(len(self), -np.inf)
        done, last = 0, -np.inf
        limit = len(self) if options.max_scored is None else min(len(self), max(options.max_scored, count))
        while done < limit and (done < count or bounds[order[done]] >= last + options.slack):
            rows = order[done : min(done + SCORED_TOGETHER, limit)]
            scores[rows] = score.scores(self._terms[np.sort(rows)])[np.argsort(np.argsort(rows))]
            done += len(rows)
            if done >= count:
                last = float(np.partition(scores[order[:done]], -count)[-count])
        rest = float(bounds[order[done]]) if done < len(self) else -np.inf
        gap = max(0.0, rest - last)
        found = order[:done]
        best = found[np.lexsort((self._order[found], -scores[found].round(RESOLUTION)))][:count]
        return Found(best, scores[best], done, gap == 0.0, gap)

    def _bounds(self, score: ConcaveScore) -> Floats:
        """Compute an upper bound of the score of each image, (N,)."""
        values, gradients = score.tangents(self._centroids)
        bounds = np.empty(len(self))
        for cell in range(len(self._centroids)):
            rows = slice(self._first[cell], self._first[cell + 1])
            bounds[rows] = values[cell] + (self._terms[rows] - self._centroids[cell]) @ gradients[cell]
        return bounds + MARGIN * (1 + np.abs(bounds))


TANGENTS = IndexKind("tangents", supports, build, TangentIndex.open)
