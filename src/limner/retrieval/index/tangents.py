"""Exact search with a certificate for models whose logits are affine in the image: the files of the index.

The index holds the image terms z in cells. A search bounds the score of every image by the tangent of
log P(sentence | z) at the centroid of its cell, and scores images in the order of their bounds until no bound of the
rest exceeds the last result: these are the best images, by proof (`tangent_search`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.data.examples import Example, collate
from limner.layers.functional import require_numbers
from limner.models.protocols import Model, device_of
from limner.progress import Progress
from limner.retrieval.fast import affine_terms, is_affine_in_image
from limner.retrieval.index.cells import Floats, balanced_coordinates, blocks, fit_centroids, nearest_centroids
from limner.retrieval.index.concave import ConcaveScore, Points
from limner.retrieval.index.protocol import Found, IndexedImages, IndexKind, Query, SearchOptions
from limner.retrieval.index.tangent_search import TangentCells, search_cells
from limner.runs.trained_model import TrainedModel
from limner.storage.tensors import read_tensors, save_tensors

TERMS, LEAD, REST = "terms.npy", "lead.npy", "rest.npy"
"""Files of the image terms in the order of the cells, of their first coordinates relative to the centroid, and of the
length of the other coordinates."""
CELLS = "cells.safetensors"
"""File of the centroids, the first row of each cell, the coordinates, and the order of the images."""
IMAGES_PER_CELL = 64
MOST_CELLS = 128
LEADING = 64
"""Number of coordinates that a search reads of every image."""
_SAMPLE = 20_000


def build(folder: Path, model: TrainedModel, images: IndexedImages, on_progress: Progress | None) -> NDArray[np.int64]:
    """Compute the image terms and write the index; return the image of each row."""
    network = model.model
    assert is_affine_in_image(network), "the kind supports the model"
    unordered = folder / "unordered.npy"
    terms: NDArray[np.float32] | None = None
    begin = 0
    for image in images.batches(on_progress):
        with torch.inference_mode():
            computed = network.image_terms(image.to(device_of(model.model))).bias.float().cpu()
        require_numbers(computed, "vectors of images")
        values = computed.numpy()
        if terms is None:
            terms = np.lib.format.open_memmap(unordered, "w+", np.float32, (images.size, values.shape[1]))
        terms[begin : begin + len(values)] = values
        begin += len(values)
    assert terms is not None, "an index has images"
    weight = _double(network.words)
    order = write_cells(folder, terms, weight)
    unordered.unlink()
    return order


def write_cells(
    folder: Path, terms: NDArray[np.float32], weight: Floats, cells: int | None = None
) -> NDArray[np.int64]:
    """Write the files of an index.

    Args:
        folder: folder of the files.
        terms: image terms, (N, D); may be stored in a file.
        weight: softmax weights, (V, D).
        cells: number of cells; None to choose it by N.

    Returns:
        Image of each row.
    """
    count = cells or max(1, min(MOST_CELLS, len(terms) // IMAGES_PER_CELL))
    centroids = fit_centroids(terms, count)
    cell = nearest_centroids(terms, centroids)
    sample = np.random.default_rng(1).choice(len(terms), min(len(terms), _SAMPLE), replace=False)
    centred = terms[np.sort(sample)] - centroids[cell[np.sort(sample)]]
    coordinates = balanced_coordinates(centred.astype(np.float64), weight - weight.mean(0))
    order = np.argsort(cell, kind="stable")
    leading = min(LEADING, terms.shape[1])
    shapes = {TERMS: terms.shape, LEAD: (len(terms), leading), REST: (len(terms),)}
    files = {name: np.lib.format.open_memmap(folder / name, "w+", np.float32, shape) for name, shape in shapes.items()}
    radii = np.zeros((count, 3))  # largest norms of z - c, of its leading coordinates, and of the others
    for rows in blocks(len(order)):
        values, own = terms[order[rows]], cell[order[rows]]
        shift = values.astype(np.float64) - centroids[own]
        turned = shift @ coordinates.primal.T
        rest = np.linalg.norm(turned[:, leading:], axis=1)
        files[TERMS][rows], files[LEAD][rows] = values, turned[:, :leading]
        files[REST][rows] = np.nextafter(rest.astype(np.float32), np.float32(np.inf))
        norms = np.stack([np.linalg.norm(shift, axis=1), np.linalg.norm(turned[:, :leading], axis=1), rest], 1)
        np.maximum.at(radii, own, norms)
    for file in files.values():
        file.flush()
    arrays = {
        "centroids": centroids,
        "first": np.concatenate([[0], np.bincount(cell, minlength=count).cumsum()]),
        "order": order,
        "dual": coordinates.dual,
        "radii": radii,
    }
    save_tensors(folder / CELLS, {name: torch.from_numpy(values) for name, values in arrays.items()})
    return order


class TangentIndex:
    """Open index of image terms in cells."""

    def __init__(self, folder: Path, model: Model) -> None:
        """Open the files of an index for a model that is affine in the image."""
        assert is_affine_in_image(model), "the kind supports the model"
        self._model = model
        self._weight = _double(model.words)
        stored = {name: values.numpy() for name, values in read_tensors(folder / CELLS).tensors.items()}
        mapped = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in (TERMS, LEAD, REST))
        terms, lead, rest = map(np.asarray, mapped)  # slices of a numpy.memmap take a tenth of a query
        points = Points.of(stored["centroids"], self._weight)
        self.cells = TangentCells(
            terms, lead, rest, points, stored["first"], stored["order"], stored["dual"], stored["radii"]
        )

    @classmethod
    def open(cls, folder: Path, model: TrainedModel) -> TangentIndex:
        """Open the files of an index."""
        return cls(folder, model.model)

    def __len__(self) -> int:
        return len(self.cells.terms)

    def score_of(self, tokens: Sequence[int]) -> ConcaveScore:
        """Return the log-probability of a sentence as a function of the image term."""
        batch = collate([Example("", tuple(tokens))])
        with torch.inference_mode():
            terms = affine_terms(self._model, batch.target_in[0].to(self._model.words.device))
        return ConcaveScore(self._weight, _double(terms.prefixes), _double(terms.bias), batch.target_out[0].tolist())

    def search(self, query: Query, count: int, options: SearchOptions) -> Found:
        """Find the best images, and score as few others as their bounds allow; see `ImageIndex`."""
        return search_cells(self.cells, self.score_of(query.tokens), count, options)


def _double(values: Tensor) -> Floats:
    result: Floats = values.detach().double().cpu().numpy()
    return result


TANGENTS = IndexKind("tangents", is_affine_in_image, build, TangentIndex.open)
