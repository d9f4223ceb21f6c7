"""A slow oracle of region boxes, their features and their evaluation, in NumPy float64.

Ren et al. (2015), Faster R-CNN, is [R]; Johnson, Karpathy and Fei-Fei (2016), DenseCap, is [J]; its published
evaluation (github.com/jcjohnson/densecap, eval/eval_utils.lua and densecap/box_utils.lua) is [E].

A box is (x1, y1, x2, y2), its edges as real numbers in an image whose own edges are 0 and W, 0 and H; its centre
form is (x, y, w, h). [E] counts pixels from 1 and adds 1 to widths, but converts (x, y, w, h) by (w - 1) / 2 first:
its IoU of two boxes is the one here.

How [E] evaluates, where [J] only says "mean average precision" over IoU and METEOR thresholds:

- True boxes of an image that overlap by IoU >= 0.7 become one: again and again the box with most such neighbours
  (itself among them; of equals, the first) takes all of them and they are gone; the new box is their mean, and all
  their captions are its references. The number of positives counts the new boxes.
- Detections of an image go by decreasing confidence. Each is given to the true box of the largest IoU (of equals,
  the first), whatever that IoU is; if another detection has had that box before, it can only be a false positive.
  So a box counts once, and a detection of slight overlap can take it from a better one behind it.
- A detection is true at (o, m) if it has its box first, IoU >= o, and its language score > m: not equal.
- All images' detections are then sorted by confidence; precision at a recall level is the greatest at that recall
  or beyond. The levels are 0, 0.01 ... and the loop is meant to end with 1, but 100 additions of 0.01 exceed 1, so
  that [E] averages 100 levels, 0 ... 0.99.
- Recall is compared with levels exactly, k / 100, in whole numbers; [E] does so in floating point.
- A detection that overlaps no box has index -1 in [E], which in Torch is the last box: that one counts as taken.
  Here such a detection is a false positive and no more.
- mAP is the mean over 5 x 6 pairs of thresholds. Without regard to language (m = -1 in [E]) it is the mean over o.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Box = Sequence[float] | Array

IOU_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7)
METEOR_THRESHOLDS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)


# Boxes


def centre_form(box: Box) -> Array:
    """(x1, y1, x2, y2) to (x, y, w, h)."""
    x1, y1, x2, y2 = box
    return np.array([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1])


def iou(one: Box, other: Box) -> float:
    """Area of intersection over area of union; 0 for boxes that touch at most."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return float(width * height / (sum(areas) - width * height))


def encode(anchor: Box, box: Box) -> Array:
    """[R] eq. 2: t_x = (x - x_a) / w_a, t_y likewise, t_w = log(w / w_a), t_h likewise, both in centre form."""
    (xa, ya, wa, ha), (x, y, w, h) = anchor, box
    return np.array([(x - xa) / wa, (y - ya) / ha, np.log(w / wa), np.log(h / ha)])


def decode(anchor: Box, t: Box) -> Array:
    """[J] eqs. 1-2: x = x_a + t_x w_a, y likewise, w = w_a exp(t_w), h likewise, both in centre form."""
    xa, ya, wa, ha = anchor
    return np.array([xa + t[0] * wa, ya + t[1] * ha, wa * np.exp(t[2]), ha * np.exp(t[3])])


def nms(boxes: Array, scores: Sequence[float], threshold: float, most: int | None = None) -> list[int]:
    """Greedy non-maximum suppression: indices kept, by decreasing score; of equals, the smaller index first.

    A box stays unless its IoU with a kept one is larger than `threshold`; `most` is how many may stay.
    """
    kept: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda index: (-scores[index], index)):
        if most is not None and len(kept) == most:
            break
        if all(iou(boxes[i], boxes[k]) <= threshold for k in kept):
            kept.append(i)
    return kept


# Features


def sampling_points(box: Box, rows: int, columns: int, image: tuple[float, float], features: tuple[int, int]) -> Array:
    """Where the rows x columns grid of a region falls on the feature map, (rows, columns, 2): (row, column).

    A point (r, c) with whole numbers is the centre of a cell of the feature map, from (0, 0). A cell is a rectangle of
    the image, and its centre is at (c + 1/2) W / W'. The region is cut into rows x columns equal parts, and points are
    their centres; the image's left edge is the column -1/2.

    Args:
        box: in the image's coordinates.
        rows: Y of [J].
        columns: X of [J].
        image: H and W.
        features: H' and W'.
    """

    def line(low: float, high: float, count: int, size: float, cells: int) -> list[float]:
        return [(low + (k + 0.5) * (high - low) / count) * cells / size - 0.5 for k in range(count)]

    points = np.zeros((rows, columns, 2))
    for r, y in enumerate(line(box[1], box[3], rows, image[0], features[0])):
        for c, x in enumerate(line(box[0], box[2], columns, image[1], features[1])):
            points[r, c] = y, x
    return points


def bilinear_sample(features: Array, points: Array) -> Array:
    """[J] eq. 3: V_cij = sum over i', j' of U_ci'j' k(i' - x_ij) k(j' - y_ij), k(d) = max(0, 1 - |d|).

    There is nothing outside the map, as printed and in the published code: the sum fades to 0 over one cell.

    Args:
        features: U, channels first, (C, H', W').
        points: (Y, X, 2), (row, column) of each point, cell centres being whole numbers.

    Returns:
        V, (C, Y, X).
    """
    channels, height, width = features.shape
    sampled = np.zeros((channels, *points.shape[:2]))
    for i, j in np.ndindex(points.shape[:2]):
        y, x = points[i, j]
        for r in range(height):
            for c in range(width):
                sampled[:, i, j] += features[:, r, c] * max(0.0, 1.0 - abs(r - y)) * max(0.0, 1.0 - abs(c - x))
    return sampled


# Evaluation


@dataclass(frozen=True)
class Image:
    """Detections and true regions of one image."""

    boxes: Array  # (D, 4)
    confidences: Sequence[float]
    truth: Array  # (G, 4), before boxes are merged
    language: Callable[[int, tuple[int, ...]], float]  # score of a detection against a group of true regions


@dataclass(frozen=True)
class Record:
    """A detection after it has been given to a true box."""

    confidence: float
    first: bool  # no other detection had the box before
    overlap: float
    score: float  # language score, 0 without a box


def merge_truth(boxes: Array, threshold: float = 0.7) -> list[tuple[int, ...]]:
    """Groups of true boxes that become one, in the order of [E]."""
    left = list(range(len(boxes)))
    groups = []
    while left:
        near = {i: tuple(j for j in left if j == i or iou(boxes[i], boxes[j]) >= threshold) for i in left}
        group = near[max(left, key=lambda i: len(near[i]))]
        groups.append(group)
        left = [i for i in left if i not in group]
    return groups


def assign(image: Image) -> list[Record]:
    """Give each detection of an image, by decreasing confidence, to a merged true box."""
    groups = merge_truth(image.truth)
    merged = [sum(image.truth[i] for i in group) / len(group) for group in groups]
    taken: set[int] = set()
    records = []
    for d in sorted(range(len(image.boxes)), key=lambda index: (-image.confidences[index], index)):
        overlaps = [iou(image.boxes[d], box) for box in merged]
        best = max(range(len(merged)), key=lambda j: overlaps[j], default=None)
        if best is None or overlaps[best] == 0.0:
            records.append(Record(image.confidences[d], False, 0.0, 0.0))
            continue
        score = image.language(d, groups[best])
        records.append(Record(image.confidences[d], best not in taken, overlaps[best], score))
        taken.add(best)
    return records


def average_precision(records: Sequence[Record], positives: int, overlap: float, score: float | None) -> float:
    """Interpolated average precision of all images' detections; `score` None disregards the language.

    Raises:
        ValueError: there is no true box.
    """
    if positives < 1:
        raise ValueError("no true box")
    curve, true = [], 0
    for rank, one in enumerate(sorted(records, key=lambda record: -record.confidence), start=1):
        true += one.first and one.overlap >= overlap and (score is None or one.score > score)
        curve.append((true, true / rank))
    total = 0.0
    for k in range(100):
        total += max((precision for found, precision in curve if 100 * found >= k * positives), default=0.0)
    return total / 100


def evaluate(images: Sequence[Image]) -> tuple[float, float, dict[tuple[float, float], float]]:
    """mAP of dense captioning, mAP of detection alone, and the AP of each pair of thresholds (IoU, METEOR)."""
    records = [record for image in images for record in assign(image)]
    positives = sum(len(merge_truth(image.truth)) for image in images)
    pairs = {
        (overlap, score): average_precision(records, positives, overlap, score)
        for overlap in IOU_THRESHOLDS
        for score in METEOR_THRESHOLDS
    }
    boxes = [average_precision(records, positives, overlap, None) for overlap in IOU_THRESHOLDS]
    return sum(pairs.values()) / len(pairs), sum(boxes) / len(boxes), pairs
