"""Exact search with a certificate for models whose logits are affine in the image: the index, and its search.

The index holds the image terms z in cells. A search bounds the score of every image by the tangent of log P(sentence |
z) at the centroid of its cell, and scores images in the order of their bounds until no bound of the rest exceeds the
last result: these are the best images, by proof. Bounds become tighter and costlier, each for the images that the
previous bound left:

1. The tangent at the centroid c of the cell, f(z) <= f(c) + q (z - c). Its inner product is computed of the leading
   coordinates of every image; the others add at most the product of their lengths (Cauchy-Schwarz).
2. Of the images with the highest bounds, those with the highest tangents are scored: the last result so far is a
   threshold.
3. The same tangent with all coordinates, for images whose bound is not below the threshold.
4. `JensenBound` at the mean of the best images so far, for those that are left.
5. Exact scores in the order of the bounds, until no bound of the rest reaches the threshold.

Bounds in float32 have margins for their rounding; scores are computed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.data.examples import Example, ImageFeatures, collate
from limner.layers.functional import require_numbers
from limner.models.protocols import Model, device_of
from limner.progress import Progress
from limner.retrieval.fast import affine_terms, is_affine_in_image
from limner.retrieval.index.cells import Floats, balanced_coordinates, blocks, fit_centroids, nearest_centroids
from limner.retrieval.index.concave import UNIT, ConcaveScore, JensenBound, Points
from limner.retrieval.index.protocol import BestImages, IndexedImages, IndexKind, Query, SearchOptions
from limner.runs.trained_model import TrainedModel
from limner.storage.tensors import read_tensors, save_tensors

Rows = NDArray[np.int64]
POOL = 1024
"""Number of images with the highest bounds by the leading coordinates, from which `SEEDS` are chosen."""
SEEDS = 6
"""Number of images that are scored first, in addition to the number of results."""
SCORED_TOGETHER = 8
SEPARATE_TOKENS = 128
"""Number of tokens with a separate group in `JensenBound`."""
BOUNDED_TOGETHER = 4096
RESOLUTION = 9
"""Decimal places of scores: images whose scores differ by less are ranked by their order in the collection."""
MARGIN = 1e-8
"""Addition to bounds for the rounding of float64, relative to 1 + |f(c)| + |q| |z - c|, and for `RESOLUTION`."""


class TangentCells(NamedTuple):
    """Image terms in cells: N images of D values, C cells, L leading coordinates."""

    terms: NDArray[np.float32]  # (N, D)
    lead: NDArray[np.float32]  # (N, L): leading coordinates of z - c
    rest: NDArray[np.float32]  # (N,): length of the other coordinates
    points: Points  # C centroids
    first: Rows  # (C + 1,): cell k has the rows first[k] ... first[k + 1] - 1
    order: Rows  # (N,): position of the image of each row in the collection
    dual: Floats  # (D, D): coordinates of gradients
    radii: Floats  # (C, 3): largest norms of z - c, of its leading coordinates, and of the others


class _Search:
    """State of a search: scored images, the threshold for further images, and the bound of the images left out."""

    def __init__(self, cells: TangentCells, score: ConcaveScore, count: int, options: SearchOptions) -> None:
        size = len(cells.terms)
        limit = size if options.max_scored is None else min(size, max(options.max_scored, count))
        self._cells, self._score, self._count, self._limit = cells, score, count, limit
        self._slack = options.slack
        self.rows: Rows = np.empty(0, np.int64)
        self.scores: Floats = np.empty(0)
        self.last = -np.inf
        self.left = -np.inf

    @property
    def room(self) -> int:
        """Number of images that may still be scored."""
        return self._limit - len(self.rows)

    @property
    def threshold(self) -> float:
        """Bound below which an image is left out."""
        return self.last + self._slack

    def add(self, rows: Rows) -> None:
        """Score images."""
        ordered = np.sort(rows)
        self.rows = np.concatenate([self.rows, ordered])
        self.scores = np.concatenate([self.scores, self._score.scores(self._cells.terms[ordered])])
        if len(self.rows) >= self._count:
            self.last = float(np.partition(self.scores, -self._count)[-self._count])

    def keep(self, bounds: NDArray[np.floating]) -> Rows:
        """Return the indices of the bounds that reach the threshold."""
        reaching = (bounds >= _rounded_down(self.threshold)) & (bounds > -np.inf)  # -inf: scored already
        if self._slack and not reaching.all():  # else all that are left out are below the last result
            self.left = max(self.left, float(bounds[~reaching].max()))
        return np.flatnonzero(reaching)

    def best(self) -> tuple[Rows, Floats]:
        """Return the best images and their scores, equal scores in the order of the collection."""
        ranked = np.lexsort((self._cells.order[self.rows], -self.scores.round(RESOLUTION)))[: self._count]
        return self.rows[ranked], self.scores[ranked]


def search_cells(cells: TangentCells, score: ConcaveScore, count: int, options: SearchOptions) -> BestImages:
    """Find the best `count` images of some cells, at most N, for the log-probability of a sentence."""
    search = _Search(cells, score, count, options)
    values, gradients = score.tangents(cells.points)
    bounds = leading_bounds(cells, values, gradients)
    pool = np.sort(torch.from_numpy(bounds).topk(min(len(bounds), max(POOL, count + SEEDS))).indices.numpy())
    highest = np.argsort(-tangent_bounds(cells, pool, values, gradients), kind="stable")
    seeds = pool[highest[: min(search.room, count + SEEDS)]]
    search.add(seeds)
    bounds[seeds] = -np.inf  # as they are scored
    rows = search.keep(bounds)
    tight = tangent_bounds(cells, rows, values, gradients)
    kept = search.keep(tight)
    rows, tight = rows[kept], tight[kept]
    if len(rows):
        point = cells.terms[np.sort(search.best()[0])].mean(0)
        tight = np.minimum(tight, jensen_bounds(cells, JensenBound(score, point, SEPARATE_TOKENS), rows))
    ranked = np.argsort(-tight, kind="stable")
    done = 0
    while done < len(ranked) and search.room and tight[ranked[done]] >= search.threshold:
        block = ranked[done : done + min(SCORED_TOGETHER, search.room)]
        search.add(rows[block])
        done += len(block)
    if done < len(ranked):
        search.left = max(search.left, float(tight[ranked[done]]))
    best, scores = search.best()
    gap = max(0.0, search.left - search.last)
    return BestImages(best, scores, len(search.rows), gap == 0.0, gap)


def leading_bounds(cells: TangentCells, values: Floats, gradients: Floats) -> NDArray[np.float32]:
    """Bound the scores of all images by the tangents of their cells and the leading coordinates, (N,)."""
    leading = cells.lead.shape[1]
    turned = gradients @ cells.dual.T  # (C, D)
    lead, rest = turned[:, :leading].astype(np.float32), np.linalg.norm(turned[:, leading:], axis=1)
    norms = np.linalg.norm(turned[:, :leading], axis=1)
    radius, lead_radius, rest_radius = cells.radii.T
    rounding = (leading + 4) * norms * lead_radius + 4 * (rest * rest_radius + np.abs(values))
    margins = UNIT * rounding + MARGIN * (1 + np.abs(values) + np.linalg.norm(gradients, axis=1) * radius)
    constants = (values + margins).astype(np.float32)
    bounds = np.empty(len(cells.terms), np.float32)
    products = np.repeat(rest.astype(np.float32), np.diff(cells.first))
    np.multiply(products, cells.rest, out=products)
    for cell, (begin, end) in enumerate(zip(cells.first[:-1], cells.first[1:], strict=True)):
        np.dot(cells.lead[begin:end], lead[cell], out=bounds[begin:end])
        bounds[begin:end] += constants[cell]
    bounds += products
    return bounds


def tangent_bounds(cells: TangentCells, rows: Rows, values: Floats, gradients: Floats) -> Floats:
    """Bound the scores of some images, in ascending order, by the tangents of their cells, (R,)."""
    sizes = np.linalg.norm(cells.points.terms, axis=1) + cells.radii[:, 0]  # no z of a cell is longer
    steepness = np.linalg.norm(gradients, axis=1)
    constants = values - (gradients * cells.points.terms).sum(1)
    rounding = (gradients.shape[1] + 4) * steepness * sizes
    constants += UNIT * rounding + MARGIN * (1 + np.abs(values) + steepness * sizes)
    slopes = gradients.astype(np.float32)
    bounds = np.empty(len(rows))
    edges = np.searchsorted(rows, cells.first)
    for cell in np.flatnonzero(np.diff(edges)):
        part = slice(edges[cell], edges[cell + 1])
        # np.dot: for "@", numpy can report invalid values in the padding of a kernel although all results are finite.
        bounds[part] = np.dot(cells.terms[rows[part]], slopes[cell]) + constants[cell]
    return bounds


def jensen_bounds(cells: TangentCells, bound: JensenBound, rows: Rows) -> Floats:
    """Bound the scores of some images by `JensenBound`, (R,)."""
    parts = [
        bound(cells.terms[rows[begin : begin + BOUNDED_TOGETHER]]) for begin in range(0, len(rows), BOUNDED_TOGETHER)
    ]
    return np.concatenate(parts)


def _rounded_down(threshold: float) -> np.float32:
    """Return a float32 that is not above a number."""
    rounded = np.float32(threshold)
    return rounded if rounded <= threshold else np.nextafter(rounded, np.float32(-np.inf))


TERMS, LEAD, REST = "terms.npy", "lead.npy", "rest.npy"
"""Files in the order of the cells: image terms, their first coordinates relative to the centroid, and the length of
their other coordinates."""
CELLS = "cells.safetensors"
"""File of the centroids, the first row of each cell, the coordinates, and the order of the images."""
IMAGES_PER_CELL = 64
MAX_CELLS = 128
LEADING = 64
"""Number of coordinates that a search reads of every image."""
_SAMPLE = 20_000


def build(folder: Path, model: TrainedModel, images: IndexedImages, on_progress: Progress | None) -> NDArray[np.int64]:
    """Compute the image terms and write the index; return the image of each row."""
    network, unordered = model.model, folder / "unordered.npy"
    assert is_affine_in_image(network), "the kind supports the model"

    @torch.inference_mode()
    def image_terms(image: ImageFeatures) -> Tensor:
        computed = network.image_terms(image.to(device_of(network))).bias.float()
        require_numbers(computed, "vectors of images")
        return computed

    terms = images.write_vectors(unordered, image_terms, on_progress)
    order = write_cells(folder, terms, _double(network.words))
    unordered.unlink()
    return order


def write_cells(
    folder: Path, terms: NDArray[np.float32], weight: Floats, cells: int | None = None
) -> NDArray[np.int64]:
    """Write the files of an index of image terms (N, D) and softmax weights (V, D); return the image of each row."""
    count = cells or max(1, min(MAX_CELLS, len(terms) // IMAGES_PER_CELL))
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
        values, cells_of_rows = terms[order[rows]], cell[order[rows]]
        shift = values.astype(np.float64) - centroids[cells_of_rows]
        turned = shift @ coordinates.primal.T
        rest = np.linalg.norm(turned[:, leading:], axis=1)
        files[TERMS][rows], files[LEAD][rows] = values, turned[:, :leading]
        files[REST][rows] = np.nextafter(rest.astype(np.float32), np.float32(np.inf))
        norms = np.stack([np.linalg.norm(shift, axis=1), np.linalg.norm(turned[:, :leading], axis=1), rest], 1)
        np.maximum.at(radii, cells_of_rows, norms)
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
        assert is_affine_in_image(model), "the kind supports the model"
        self._model = model
        self._weight = _double(model.words)
        stored = {name: values.numpy() for name, values in read_tensors(folder / CELLS).tensors.items()}
        mapped = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in (TERMS, LEAD, REST))
        terms, lead, rest = map(np.asarray, mapped)  # slices of a numpy.memmap take a tenth of a query
        points = Points.from_terms(stored["centroids"], self._weight)
        self.cells = TangentCells(
            terms, lead, rest, points, stored["first"], stored["order"], stored["dual"], stored["radii"]
        )

    @classmethod
    def open(cls, folder: Path, model: TrainedModel) -> TangentIndex:
        return cls(folder, model.model)

    def __len__(self) -> int:
        return len(self.cells.terms)

    def score_of(self, tokens: Sequence[int]) -> ConcaveScore:
        """Return the log-probability of a sentence as a function of the image term."""
        batch = collate([Example("", tuple(tokens))])
        with torch.inference_mode():
            terms = affine_terms(self._model, batch.target_in[0].to(self._model.words.device))
        return ConcaveScore(self._weight, _double(terms.prefixes), _double(terms.bias), batch.target_out[0].tolist())

    def search(self, query: Query, count: int, options: SearchOptions) -> BestImages:
        return search_cells(self.cells, self.score_of(query.tokens), count, options)


def _double(values: Tensor) -> Floats:
    result: Floats = values.detach().double().cpu().numpy()
    return result


TANGENTS = IndexKind("tangents", is_affine_in_image, build, TangentIndex.open)
