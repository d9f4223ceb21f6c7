"""Retrieval metrics: recall@k, median rank and area under the recall curve, Mao et al. (2015), sections 7.2 and 9.2.

There are S sentences and I images; every sentence belongs to one image, its owner. Ranks are counted from 1. Among
candidates with the same score, the relevant one is ranked last, so that a constant score does not give rank 1; a score
of nan is treated as a tie.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.errors import CollectionError
from limner.metrics.base import Metric, Score, percentage

Ranks = NDArray[np.int64]
Points = tuple[tuple[float, float], ...]

CUTOFFS = (1, 5, 10)  # values of k of recall@k
DIRECTIONS = ("image_to_text", "text_to_image")
RETRIEVAL_METRICS = ("recall_sum",)
"""Metrics of the validation of a model that only ranks: the sum of recall@1, @5 and @10 in both directions, 0-600."""
CURVE_POINTS = 100  # approximate number of points of a curve
TILE_BYTES = 1 << 22  # memory of a block of the score matrix


class RetrievalRanks(NamedTuple):
    """Ranks of the relevant candidates in both directions."""

    image_to_text: Ranks  # rank of the first relevant sentence of each image among all sentences, (I,)
    text_to_image: Ranks  # rank of the owner of each sentence among all images, (S,)
    own_sentences: Ranks  # rank of each sentence among all sentences for its owner as the query, (S,)


def rank_all(scores: NDArray[np.floating], owners: Sequence[int] | NDArray[np.integer]) -> RetrievalRanks:
    """Compute the ranks of the relevant candidates in both directions.

    Image-to-text retrieval needs scores that are comparable between sentences, such as the normalised probability of
    Mao et al. (2015), eq. 7. The normalisation does not change the ranking of the images for a sentence, so one matrix
    serves both directions. The scores (S, I), higher is better, may be a memory map, because they are read in blocks;
    owners are the columns of the images of the sentences, (S,).

    Raises:
        CollectionError: the sizes do not match, or an image has no sentence.
    """
    columns = np.asarray(owners, dtype=np.int64)
    sentences, images = scores.shape
    counts = np.bincount(columns, minlength=images)
    if len(columns) != sentences or len(counts) != images or not sentences:
        raise CollectionError(
            f"expected an owner for each row of the scores ({sentences} sentences x {images} images), found "
            f"{len(columns)} sentences of {len(counts)} images"
        )
    if not counts.all():
        raise CollectionError(
            f"{(counts == 0).sum()} of {images} images have no sentence, the first is number {counts.argmin()}; leave "
            "them out"
        )
    sentence_ranks = _own_sentence_ranks(scores, columns, counts)
    best = np.full(images, sentences, dtype=np.int64)
    np.minimum.at(best, columns, sentence_ranks)
    return RetrievalRanks(best, owner_ranks(scores, columns), sentence_ranks)


def owner_ranks(scores: NDArray[np.floating], owners: Ranks) -> Ranks:
    """Compute the rank of the owner of each sentence among all images, (S,); see `rank_all` for arguments."""
    height = max(1, TILE_BYTES // (scores.shape[1] * scores.dtype.itemsize))
    ranks = np.empty(len(owners), dtype=np.int64)
    for start in range(0, len(owners), height):
        tile = np.asarray(scores[start : start + height])
        owned = tile[np.arange(len(tile)), owners[start : start + height]]
        ranks[start : start + height] = (~(tile < owned[:, None])).sum(axis=1)  # includes the owner itself: from 1
    return ranks


def _own_sentence_ranks(scores: NDArray[np.floating], owners: Ranks, counts: NDArray[np.integer]) -> Ranks:
    """Compute the rank of each sentence for its owner as the query, (S,); sentences of one image do not tie."""
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(counts)
    ranks = np.empty(len(owners), dtype=np.int64)
    for image, column in _columns(scores):
        rows = order[ends[image] - counts[image] : ends[image]]
        values = np.where(np.isnan(column[rows]), -np.inf, column[rows])
        rows, values = rows[np.argsort(-values, kind="stable")], np.sort(values)[::-1]
        ahead = (~(np.delete(column, rows) < values[:, None])).sum(axis=1)
        ranks[rows] = ahead + np.arange(1, len(rows) + 1)
    return ranks


def _columns(scores: NDArray[np.floating]) -> Iterator[tuple[int, NDArray[np.floating]]]:
    """Yield the number and the scores of each image of a matrix, (S, I), that is read in blocks."""
    width = max(1, TILE_BYTES // (scores.shape[0] * scores.dtype.itemsize))
    for start in range(0, scores.shape[1], width):
        yield from enumerate(np.ascontiguousarray(np.asarray(scores[:, start : start + width]).T), start)


def shortlist_ranks(scores: NDArray[np.floating], owners: Ranks, nearest: NDArray[np.integer]) -> Ranks:
    """Compute the rank of the first relevant sentence of each image among the sentences of its shortlist, (I,).

    The scores are (S, I), the owners (S,). `nearest` (I, k_r) has the columns of the shortlist of each image, including
    the image itself.
    """
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=len(nearest)))
    sentences = np.split(order, ends[:-1])  # rows of the sentences of each image
    ranks = np.empty(len(nearest), dtype=np.int64)
    for image, column in _columns(scores):
        other_rows = np.concatenate([sentences[k] for k in nearest[image] if k != image] or [order[:0]])
        best_score = np.nan_to_num(column[sentences[image]], nan=-np.inf).max()
        ranks[image] = 1 + (~(column[other_rows] < best_score)).sum()
    return ranks


RECALL_METRICS = {
    name: Metric(name, lambda *_: np.empty(0), percentage, lambda: "ties:worst|scale:0-100")
    for name in (f"{direction}_r{k}" for direction, k in product(DIRECTIONS, CUTOFFS))
}
"""Recall@k of each direction, whose statistics are `recall_statistics`."""


def recall_statistics(name: str, ranks: Mapping[str, Sequence[int]]) -> NDArray[np.float64]:
    """Return the statistics of recall@k of each query, (Q, 2): whether its rank is at most k, and 1."""
    direction, _, cutoff = name.rpartition("_r")
    hits = np.asarray(ranks[direction]) <= int(cutoff)
    return np.stack([hits, np.ones(len(hits))], 1)


def recall_at(ranks: Ranks, cutoff: int) -> float:
    """Compute recall@k: the percentage of queries whose first relevant candidate has at most rank k."""
    return float(100 * np.mean(ranks <= cutoff))


def median_rank(ranks: Ranks) -> float:
    """Compute the median rank of the first relevant candidate."""
    return float(np.median(ranks))


def _curve_ranks(candidates: int) -> Ranks:
    """Return the ranks at which a curve has its points: 0, evenly spaced ranks and geometrically spaced ranks."""
    even = np.linspace(1, candidates, CURVE_POINTS // 2)
    dense = np.geomspace(1, candidates, CURVE_POINTS // 2)
    return np.unique(np.concatenate([[0], even, dense]).round().astype(np.int64))


def curve_area(ranks: Ranks, queries: Ranks, candidates: int) -> float:
    """Compute the area under the complete recall curve in percent, by trapezoids; 50 for a random ranking.

    The curve is the mean recall of the queries against the share of candidates retrieved (section 9.2). `ranks` and
    `queries` have an entry for every relevant candidate, (A,).
    """
    return float(100 * np.sum(_relevance_weights(queries) * (candidates - ranks + 0.5)) / candidates)


def _relevance_weights(queries: Ranks) -> NDArray[np.float64]:
    """Return the weights of relevant candidates that give all queries the same weight."""
    _, inverse, counts = np.unique(queries, return_inverse=True, return_counts=True)
    weights: NDArray[np.float64] = 1.0 / (counts[inverse] * len(counts))
    return weights


def chance_curve(relevant: Ranks, candidates: Ranks) -> Points:
    """Compute the expected `match_curve` of a random ranking.

    The first of m relevant candidates among n has at most rank k with probability 1 - C(n-m, k) / C(n, k). `relevant`
    and `candidates` have m and n of each query, (Q,).
    """
    shares = _curve_shares(candidates)
    kinds, counts = np.unique(np.stack([relevant, candidates], 1), axis=0, return_counts=True)
    matched = np.zeros(len(shares))
    for (m, n), count in zip(kinds.tolist(), counts.tolist(), strict=True):
        retrieved, factors = np.floor(shares * n + 1e-9)[:, None], np.arange(m)  # (points, 1) and (m,)
        matched += count * (1 - np.prod((n - retrieved - factors).clip(0) / (n - factors), axis=1))
    matched /= len(relevant)
    return tuple((float(share), float(value)) for share, value in zip(shares, matched, strict=True))


def retrieval_scores(ranks: RetrievalRanks, owners: Sequence[int] | NDArray[np.integer]) -> list[Score]:
    """Compute recall@1, @5 and @10, the median rank and the area under the recall curve in both directions.

    Returns:
        `image_to_text_r1` … `_r10`, `_median_rank` and `_curve_area`, then the same for `text_to_image`.
    """
    relevant = _relevant(ranks, owners)
    scores = []
    for direction, first in (("image_to_text", ranks.image_to_text), ("text_to_image", ranks.text_to_image)):
        signature = f"queries:{len(first)}|candidates:{relevant[direction][2]}|ties:worst"
        scores += [Score(f"{direction}_r{k}", recall_at(first, k), f"{signature}|scale:0-100") for k in CUTOFFS]
        scores.append(Score(f"{direction}_median_rank", median_rank(first), signature))
        scores.append(Score(f"{direction}_curve_area", curve_area(*relevant[direction]), f"{signature}|scale:0-100"))
    return scores


def recall_sum(ranks: RetrievalRanks) -> float:
    """Compute the sum of recall@1, @5 and @10 of both directions, by which VSE++ selects its weights (0-600)."""
    return sum(recall_at(query_ranks, k) for query_ranks in (ranks.image_to_text, ranks.text_to_image) for k in CUTOFFS)


def _relevant(
    ranks: RetrievalRanks, owners: Sequence[int] | NDArray[np.integer]
) -> dict[str, tuple[Ranks, Ranks, int]]:
    """Return for each direction the rank and the query of every relevant candidate, and the number of candidates."""
    sentences, images = len(ranks.text_to_image), len(ranks.image_to_text)
    return {
        "image_to_text": (ranks.own_sentences, np.asarray(owners, dtype=np.int64), sentences),
        "text_to_image": (ranks.text_to_image, np.arange(sentences), images),
    }


def match_curve(ranks: Ranks, candidates: Ranks) -> Points:
    """Compute the share of queries whose match is retrieved against the share of their candidates retrieved.

    This is figure 2 of Kiros et al. (2014). A match is the first relevant candidate; the number of candidates may vary.
    `ranks` and `candidates` have the rank of the match and the number of candidates of each query, (Q,).
    """
    shares = _curve_shares(candidates)
    matched = np.searchsorted(np.sort(ranks / candidates), shares + 1e-9, side="right") / len(ranks)
    return tuple((float(share), float(value)) for share, value in zip(shares, matched, strict=True))


def _curve_shares(candidates: Ranks) -> NDArray[np.float64]:
    """Return the x-axis of a match curve: increasing shares of retrieved candidates, from 0 to 1."""
    most = int(candidates.max())
    return np.append(0, _curve_ranks(most)[1:] / most)


def match_area(ranks: Ranks, candidates: Ranks) -> float:
    """Compute the area under the complete match curve in percent, by trapezoids; see `chance_area`."""
    return float(100 * np.mean((candidates - ranks + 0.5) / candidates))


def chance_area(relevant: Ranks, candidates: Ranks) -> float:
    """Compute the expected `match_area` of a random ranking: 50 for one relevant candidate, more for several.

    The expected rank of the first of m relevant candidates among n is (n + 1) / (m + 1).
    """
    return float(100 * np.mean((candidates - (candidates + 1) / (relevant + 1) + 0.5) / candidates))
