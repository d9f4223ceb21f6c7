"""Mean average precision of dense captioning, Johnson et al. (2016), section 4.2, by its evaluation program.

A detection is right if its box overlaps an annotated region enough, no detection of a higher confidence overlaps the
same region most, and its sentence is similar enough to the region's descriptions. Average precision is computed for
every pair of a smallest overlap in `OVERLAPS` and a similarity in `SIMILARITIES` that must be exceeded; the score is
the mean over all pairs, times 100.

Shapes: N detections, R annotated regions. Boxes are left, top, width and height in pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.errors import CollectionError
from limner.metrics.base import References, Score
from limner.metrics.meteor import METEOR, meteor_statistics, meteor_value

REGION_METRICS = ("map", "localisation_map")
"""Names of the scores of detected regions, of sentences and boxes and of the boxes alone."""
OVERLAPS = (0.3, 0.4, 0.5, 0.6, 0.7)  # smallest intersection over union of a detection with an annotated region
SIMILARITIES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)  # similarity of the sentences that must be exceeded
MERGED_OVERLAP = 0.7  # annotated regions of at least this overlap are merged to one with several descriptions
RECALL_LEVELS = 100  # number of levels of recall, 0, 0.01, …, 0.99: the loop of the evaluation program ends before 1

Floats = NDArray[np.float64]
Similarity = Callable[[Sequence[str], References], Floats]
"""Function from N sentences and N lists of references to similarities of 0 to 1, (N,)."""


class DenseCaptions(NamedTuple):
    """Detected and annotated regions of one image."""

    boxes: Floats  # (N, 4)
    confidences: Floats  # (N,)
    sentences: Sequence[str]
    annotated_boxes: Floats  # (R, 4)
    descriptions: Sequence[str]


class Matches(NamedTuple):
    """All detections of a corpus with the annotated region that each overlaps most, by descending confidence."""

    overlaps: Floats  # (N,)
    first: NDArray[np.bool_]  # (N,): whether it is the first detection of its region
    sentences: list[str]
    references: list[list[str]]  # descriptions of the region; none where nothing overlaps
    annotated: int  # number of annotated regions after merging


def dense_captioning_scores(images: Sequence[DenseCaptions], similarity: Similarity, signature: str) -> list[Score]:
    """Compute mean average precision of sentences and boxes, and of the boxes alone.

    Sentences are tokens joined by spaces; `signature` is the name and the settings of the similarity, METEOR in the
    paper.
    """
    matches = match(images)
    similarities = np.zeros(len(matches.overlaps))  # 0 for detections that cannot be right
    rows = np.flatnonzero(matches.first & (matches.overlaps >= min(OVERLAPS)))
    if len(rows):
        similarities[rows] = similarity([matches.sentences[n] for n in rows], [matches.references[n] for n in rows])
    values = [average_precision(matches, similarities, low, above) for low in OVERLAPS for above in SIMILARITIES]
    boxes_alone = localisation_score(matches, len(images))
    full = f"{boxes_alone.signature}|above:{_join(SIMILARITIES)}|{signature}"
    return [Score("map", 100 * float(np.mean(values)), full), boxes_alone]


def localisation_score(matches: Matches, images: int) -> Score:
    """Compute the mean average precision of the boxes of a number of images, whatever the sentences."""
    values = [average_precision(matches, np.ones(len(matches.overlaps)), overlap, 0) for overlap in OVERLAPS]
    settings = f"iou:{_join(OVERLAPS)}|merged:{MERGED_OVERLAP}|levels:{RECALL_LEVELS}|images:{images}|scale:x100"
    return Score("localisation_map", 100 * float(np.mean(values)), settings)


def meteor_similarity(lang: str) -> tuple[Similarity, str]:
    """Return METEOR of single sentences as a similarity, with its signature."""

    def similarity(sentences: Sequence[str], references: References) -> Floats:
        rows = meteor_statistics(lang, sentences, references)
        return np.array([meteor_value(lang, row) / 100 for row in rows])

    return similarity, METEOR.settings()


def match(images: Sequence[DenseCaptions]) -> Matches:
    """Assign each detection to the annotated region that it overlaps most.

    In each image, detections are taken by descending confidence; only the first one of a region can be right. Boxes
    without area are no detections.
    """
    rows: list[tuple[float, float, bool, str, list[str]]] = []
    annotated = 0
    for image in images:
        boxes, references = merge_annotations(image.annotated_boxes, image.descriptions)
        annotated += len(boxes)
        used: set[int] = set()
        overlaps = intersection_over_union(image.boxes, boxes) if len(boxes) else np.zeros((len(image.boxes), 1))
        side = image.boxes[:, 2:].min(axis=1)
        for n in (n for n in np.argsort(-image.confidences, kind="stable") if side[n] > 0):
            best = int(overlaps[n].argmax())
            overlap = float(overlaps[n, best])
            nearest = references[best] if overlap > 0 else []
            rows.append(
                (image.confidences[n], overlap, bool(nearest) and best not in used, image.sentences[n], nearest)
            )
            if nearest:
                used.add(best)
    if not annotated:
        raise CollectionError("dense captioning: expected images with annotated regions, found none")
    rows.sort(key=lambda row: -row[0])  # stable
    return Matches(
        np.array([row[1] for row in rows]),
        np.array([row[2] for row in rows], dtype=bool),
        [row[3] for row in rows],
        [row[4] for row in rows],
        annotated,
    )


def merge_annotations(boxes: Floats, descriptions: Sequence[str]) -> tuple[Floats, list[list[str]]]:
    """Merge annotated regions of one image whose boxes overlap by `MERGED_OVERLAP` or more.

    The region that overlaps most others is merged with them first. The merged box is the mean of the corners. The
    results are the boxes, (R', 4), and the descriptions of each.
    """
    near = intersection_over_union(boxes, boxes) >= MERGED_OVERLAP
    np.fill_diagonal(near, True)  # a box without area overlaps nothing, not even itself
    merged, references = [], []
    while near.any():
        group = np.flatnonzero(near[near.sum(axis=1).argmax()])
        merged.append(boxes[group].mean(axis=0))
        references.append([descriptions[n] for n in group.tolist()])
        near[group] = False
        near[:, group] = False
    return np.array(merged).reshape(-1, 4), references


def average_precision(matches: Matches, similarities: Floats, min_overlap: float, above: float) -> float:
    """Compute the average precision, 0 to 1, interpolated at `RECALL_LEVELS` levels of recall.

    A detection is right only if the similarity of its sentence, (N,), exceeds `above`.
    """
    right = matches.first & (matches.overlaps >= min_overlap) & (similarities > above)
    if not right.any():
        return 0.0
    hits = np.cumsum(right)
    precision = hits / np.arange(1, len(right) + 1)
    best_from = np.maximum.accumulate(precision[::-1])[::-1]  # highest precision at this recall or a higher one
    needed = np.arange(RECALL_LEVELS) * matches.annotated  # whole numbers: recall >= k / 100 without rounding
    position = np.searchsorted(RECALL_LEVELS * hits, needed)
    return float(np.append(best_from, 0.0)[position].mean())


def intersection_over_union(boxes: Floats, other_boxes: Floats) -> Floats:
    """Compute the intersection over union of all pairs of boxes: (N, 4) and (M, 4) to (N, M)."""
    low = np.maximum(boxes[:, None, :2], other_boxes[None, :, :2])
    high = np.minimum((boxes[:, :2] + boxes[:, 2:])[:, None], (other_boxes[:, :2] + other_boxes[:, 2:])[None])
    intersection = (high - low).clip(0).prod(axis=2)
    union = boxes[:, 2:].prod(axis=1)[:, None] + other_boxes[:, 2:].prod(axis=1)[None] - intersection
    overlaps: Floats = np.divide(intersection, union, out=np.zeros_like(intersection), where=union > 0)
    return overlaps


def _join(values: Sequence[float]) -> str:
    return ",".join(f"{value:g}" for value in values)
