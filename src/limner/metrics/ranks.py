"""Search judged by ranks: R@K, median rank and the recall curve of Mao et al. (2015), sections 7.2 and 9.2.

S sentences and P pictures; every sentence belongs to one picture, its owner. Ranks count from 1. Ties count
against the model (a model that scores everything alike is last, not first), and so does a score that is not a
number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.errors import CollectionError
from limner.metrics.base import Score

Ranks = NDArray[np.int64]
Points = tuple[tuple[float, float], ...]

CUTOFFS = (1, 5, 10)
CURVE_POINTS = 100
TILE_BYTES = 1 << 22


class RetrievalRanks(NamedTuple):
    """Every rank that retrieval is judged by."""

    image_to_text: Ranks
    """Of each picture's best-ranked own sentence among all sentences, (P,)."""
    text_to_image: Ranks
    """Of each sentence's owner among all pictures, (S,)."""
    own_sentences: Ranks
    """Of each sentence among all sentences when its owner is asked with, (S,)."""


def rank_all(scores: NDArray[np.floating], owners: Sequence[int] | NDArray[np.integer]) -> RetrievalRanks:
    """Rank both ways.

    Sentence retrieval needs scores that are comparable between sentences (eq. 7's normalised probability);
    dividing by a sentence's marginal leaves its ranking of the pictures as it was, so one matrix serves both.

    Args:
        scores: (S, P), higher is better; it may be a memory map, it is read in tiles and never copied whole.
        owners: the column of each sentence's picture, (S,).

    Raises:
        CollectionError: a picture has no sentence, so no sentence can be found for it.
    """
    rows = np.asarray(owners, dtype=np.int64)
    sentences, pictures = scores.shape
    counts = np.bincount(rows, minlength=pictures)
    if len(rows) != sentences or len(counts) != pictures or not sentences:
        raise CollectionError(
            f"{len(rows)} sentences of {len(counts)} pictures do not fit scores of {sentences} x {pictures}"
        )
    if not counts.all():
        raise CollectionError(
            f"{(counts == 0).sum()} of {pictures} pictures have no sentence (the first is number "
            f"{counts.argmin()}): leave them out before ranking"
        )
    own = _own_sentence_ranks(scores, rows, counts)
    best = np.full(pictures, sentences, dtype=np.int64)
    np.minimum.at(best, rows, own)
    return RetrievalRanks(best, owner_ranks(scores, rows), own)


def owner_ranks(scores: NDArray[np.floating], owners: Ranks) -> Ranks:
    """Rank of each sentence's owner among all pictures, (S,); arguments as of `rank_all`."""
    height = max(1, TILE_BYTES // (scores.shape[1] * scores.dtype.itemsize))
    ranks = np.empty(len(owners), dtype=np.int64)
    for start in range(0, len(owners), height):
        tile = np.asarray(scores[start : start + height])
        owned = tile[np.arange(len(tile)), owners[start : start + height]]
        ranks[start : start + height] = (~(tile < owned[:, None])).sum(axis=1)  # counts itself: from 1
    return ranks


def _own_sentence_ranks(scores: NDArray[np.floating], owners: Ranks, counts: NDArray[np.integer]) -> Ranks:
    """Rank a picture's sentences among all; its own sentences never tie with each other."""
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(counts)
    width = max(1, TILE_BYTES // (scores.shape[0] * scores.dtype.itemsize))
    ranks = np.empty(len(owners), dtype=np.int64)
    for start in range(0, len(counts), width):
        tile = np.ascontiguousarray(np.asarray(scores[:, start : start + width]).T)
        for offset, column in enumerate(tile):
            picture = start + offset
            mine = order[ends[picture] - counts[picture] : ends[picture]]
            values = np.where(np.isnan(column[mine]), -np.inf, column[mine])
            mine, values = mine[np.argsort(-values, kind="stable")], np.sort(values)[::-1]
            ahead = (~(np.delete(column, mine) < values[:, None])).sum(axis=1)
            ranks[mine] = ahead + np.arange(1, len(mine) + 1)
    return ranks


def shortlist_ranks(scores: NDArray[np.floating], owners: Ranks, near: NDArray[np.integer]) -> Ranks:
    """Rank of each picture's first own sentence among those of its shortlist, (P,), from 1; ties count against it.

    Args:
        scores: (S, P), higher is better.
        owners: the column of each sentence's picture, (S,).
        near: the shortlist of each picture, itself among them, (P, k_r).
    """
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=len(near)))
    whose = np.split(order, ends[:-1])  # by picture: its sentences
    width = max(1, TILE_BYTES // (scores.shape[0] * scores.dtype.itemsize))
    ranks = np.empty(len(near), dtype=np.int64)
    for start in range(0, len(near), width):
        tile = np.ascontiguousarray(np.asarray(scores[:, start : start + width]).T)
        for picture, column in enumerate(tile, start):
            others = np.concatenate([whose[k] for k in near[picture] if k != picture] or [order[:0]])
            own = np.nan_to_num(column[whose[picture]], nan=-np.inf).max()
            ranks[picture] = 1 + (~(column[others] < own)).sum()
    return ranks


def recall_at(ranks: Ranks, cutoff: int) -> float:
    """R@K: percentage of queries with a right answer among the first K."""
    return float(100 * np.mean(ranks <= cutoff))


def median_rank(ranks: Ranks) -> float:
    """Med r: median rank of the first right answer."""
    return float(np.median(ranks))


def recall_curve(ranks: Ranks, queries: Ranks, candidates: int) -> Points:
    """Mean share of a query's right answers found against the share of candidates looked at (section 9.2).

    Args:
        ranks: of every right answer, (A,).
        queries: the query each of them answers, (A,).
        candidates: how many there are to look at.

    Returns:
        From (0, 0) to (1, 1), at most about `CURVE_POINTS` points and denser on the left, where it matters.
    """
    weights = _answer_weights(queries)
    found = np.cumsum(np.bincount(ranks, weights=weights, minlength=candidates + 1), dtype=np.float64)
    found /= found[-1]  # 1 but for rounding
    return tuple((float(k / candidates), float(found[k])) for k in _places(candidates))


def _places(candidates: int) -> Ranks:
    even = np.linspace(1, candidates, CURVE_POINTS // 2)
    dense = np.geomspace(1, candidates, CURVE_POINTS // 2)
    return np.unique(np.concatenate([[0], even, dense]).round().astype(np.int64))


def curve_area(ranks: Ranks, queries: Ranks, candidates: int) -> float:
    """Area under the whole recall curve in percent, by trapezoids; a random order gives 50."""
    return float(100 * np.sum(_answer_weights(queries) * (candidates - ranks + 0.5)) / candidates)


def _answer_weights(queries: Ranks) -> NDArray[np.float64]:
    """Every query counts the same, however many right answers it has."""
    _, inverse, counts = np.unique(queries, return_inverse=True, return_counts=True)
    weights: NDArray[np.float64] = 1.0 / (counts[inverse] * len(counts))
    return weights


def chance_curve(right: Ranks, candidates: Ranks) -> Points:
    """`match_curve` of a random order.

    There the first of m right answers among n stands within k with probability 1 - C(n-m, k) / C(n, k).

    Args:
        right: m, right answers of each query, (Q,).
        candidates: n, (Q,).

    Returns:
        From (0, 0) to (1, 1), at the places of `match_curve`.
    """
    most = int(candidates.max())
    shares = np.append(0, _places(most)[1:] / most)
    kinds, counts = np.unique(np.stack([right, candidates], 1), axis=0, return_counts=True)
    found = np.zeros(len(shares))
    for (m, n), count in zip(kinds.tolist(), counts.tolist(), strict=True):
        looked, answers = np.floor(shares * n + 1e-9)[:, None], np.arange(m)  # (places, 1) and (m,)
        found += count * (1 - np.prod((n - looked - answers).clip(0) / (n - answers), axis=1))
    return tuple((float(share), float(value)) for share, value in zip(shares, found / len(right), strict=True))


def retrieval_scores(ranks: RetrievalRanks, owners: Sequence[int] | NDArray[np.integer]) -> list[Score]:
    """R@1/5/10, median rank and the curve's area, both ways.

    Returns:
        `image_to_text_r1` … `_r10`, `_median_rank`, `_curve_area`, then the same of `text_to_image`.
    """
    curves = _answers(ranks, owners)
    scores = []
    for direction, asked in (("image_to_text", ranks.image_to_text), ("text_to_image", ranks.text_to_image)):
        where = f"queries:{len(asked)}|candidates:{curves[direction][2]}|ties:worst"
        scores += [Score(f"{direction}_r{k}", recall_at(asked, k), f"{where}|scale:0-100") for k in CUTOFFS]
        scores.append(Score(f"{direction}_median_rank", median_rank(asked), where))
        scores.append(Score(f"{direction}_curve_area", curve_area(*curves[direction]), f"{where}|scale:0-100"))
    return scores


def retrieval_curves(ranks: RetrievalRanks, owners: Sequence[int] | NDArray[np.integer]) -> dict[str, Points]:
    """The recall curve of both directions, by `image_to_text` and `text_to_image`."""
    return {direction: recall_curve(*answers) for direction, answers in _answers(ranks, owners).items()}


def _answers(ranks: RetrievalRanks, owners: Sequence[int] | NDArray[np.integer]) -> dict[str, tuple[Ranks, Ranks, int]]:
    """By direction: the rank of every right answer, the query it answers, and the number of candidates."""
    sentences, pictures = len(ranks.text_to_image), len(ranks.image_to_text)
    return {
        "image_to_text": (ranks.own_sentences, np.asarray(owners, dtype=np.int64), sentences),
        "text_to_image": (ranks.text_to_image, np.arange(sentences), pictures),
    }


def match_curve(ranks: Ranks, candidates: Ranks) -> Points:
    """Share of the queries whose match is found against the share of their candidates looked at.

    Kiros et al. (2014), Figure 2. A match is the first right answer, and queries may have different candidates.

    Args:
        ranks: of each query's match, (Q,).
        candidates: how many each query has, (Q,).

    Returns:
        From (0, 0) to (1, 1), at the places of `recall_curve`.
    """
    most = int(candidates.max())
    reached = np.sort(ranks / candidates)
    shares = np.append(0, _places(most)[1:] / most)
    found = np.searchsorted(reached, shares + 1e-9, side="right") / len(ranks)
    return tuple((float(share), float(value)) for share, value in zip(shares, found, strict=True))


def match_area(ranks: Ranks, candidates: Ranks) -> float:
    """Area under the whole curve in percent, by trapezoids; see `chance_area` for that of a random order."""
    return float(100 * np.mean((candidates - ranks + 0.5) / candidates))


def chance_area(right: Ranks, candidates: Ranks) -> float:
    """`match_area` of a random order: 50 where a query has one right answer, more where it has several.

    Args:
        right: right answers of each query, (Q,); in a random order the first of m among n stands at
            (n + 1) / (m + 1) on the average.
        candidates: n, (Q,).
    """
    return float(100 * np.mean((candidates - (candidates + 1) / (right + 1) + 0.5) / candidates))
