"""Search of the best images by bounds that become tighter and costlier, each for the images that the last one left.

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

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from limner.retrieval.index.concave import UNIT, ConcaveScore, Floats, JensenBound, Points
from limner.retrieval.index.protocol import Found, SearchOptions

Rows = NDArray[np.int64]
POOL = 1024
"""Number of images with the highest bounds by the leading coordinates, of which the first to be scored are chosen."""
SEEDS = 6
"""Number of images, besides the results, that are scored first."""
SCORED_TOGETHER = 8
OWN_GROUPS = 128
"""Number of tokens with a group of their own in `JensenBound`."""
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
    """Images that were scored, the threshold that another image has to reach, and the bound of those left out."""

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
        reaching = (bounds >= _below(self.threshold)) & (bounds > -np.inf)  # -inf: scored already
        if self._slack and not reaching.all():  # else all that are left out are below the last result
            self.left = max(self.left, float(bounds[~reaching].max()))
        return np.flatnonzero(reaching)

    def best(self) -> tuple[Rows, Floats]:
        """Return the best images and their scores, equal scores in the order of the collection."""
        ranked = np.lexsort((self._cells.order[self.rows], -self.scores.round(RESOLUTION)))[: self._count]
        return self.rows[ranked], self.scores[ranked]


def search_cells(cells: TangentCells, score: ConcaveScore, count: int, options: SearchOptions) -> Found:
    """Find the best images for a sentence.

    Args:
        cells: images.
        score: log-probability of the sentence.
        count: number of results, at most N.
        options: limits of the search.
    """
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
        tight = np.minimum(tight, jensen_bounds(cells, JensenBound(score, point, OWN_GROUPS), rows))
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
    return Found(best, scores, len(search.rows), gap == 0.0, gap)


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


def _below(threshold: float) -> np.float32:
    """Return a float32 that is not above a number."""
    rounded = np.float32(threshold)
    return rounded if rounded <= threshold else np.nextafter(rounded, np.float32(-np.inf))
