"""The oracle of regions: hand-worked boxes, samples and an evaluation."""

import numpy as np
import oracle_regions as oracle
import pytest

SQUARE = (0.0, 0.0, 10.0, 10.0)


# Features


# Evaluation


def image(boxes, confidences, truth, scores, references=None):
    """Language scores go by detection; the expected groups are kept in `references`."""

    def language(detection, group):
        if references is not None:
            references[detection] = group
        return scores[detection]

    return oracle.Image(np.array(boxes, float).reshape(-1, 4), confidences, np.array(truth, float), language)


def two_images(references=None):
    left, right = (0, 0, 10, 9.5), (20, 0, 30, 10)
    first = image([right, left, left], [0.6, 0.9, 0.8], [SQUARE, right, (0, 0, 10, 9)], [0.0, 0.3, 0.9], references)
    return [first, image([(0, 0, 10, 5)], [0.7], [SQUARE], [0.12])]


def test_an_evaluation_by_hand():
    # Image 1: the boxes of height 10 and 9 (IoU 0.9) become one of 9.5. Image 2: IoU 1/2. Three positives.
    # By confidence: 0.9 true; 0.8 its box is taken; 0.7 true if IoU <= 0.5 and METEOR < 0.12; 0.6 scores 0, and
    # 0 > 0 is not so. With 0.7: recalls 1/3, 2/3 with precisions 1, 2/3: levels 0 ... 0.33 and 0.34 ... 0.66.
    references = {}
    value, boxes, pairs = oracle.evaluate(two_images(references))
    assert references == {0: (1,), 1: (0, 2), 2: (0, 2)}
    for (overlap, score), found in pairs.items():
        assert found == pytest.approx((34 + 33 * 2 / 3) / 100 if overlap <= 0.5 and score <= 0.1 else 0.34)
    assert value == pytest.approx((9 * 0.56 + 21 * 0.34) / 30)
    # Boxes alone: 0.9, 0.7 and 0.6 true, precision 3/4 at recall 1; from 0.6 on without 0.7: 2/4 at recall 2/3.
    assert boxes == pytest.approx((3 * (34 + 66 * 3 / 4) + 2 * (34 + 33 / 2)) / 500)
    # With the level 1 as well
    value, boxes, pairs = oracle.evaluate(two_images(), levels=101)
    assert pairs[0.3, 0.0] == pytest.approx(56 / 101)
    assert boxes == pytest.approx((3 * (34 + 67 * 3 / 4) + 2 * (34 + 33 / 2)) / 505)


def test_merging_takes_the_box_with_most_neighbours_first():
    # 0-1 and 1-2 overlap by 9/11, 0-2 by 8/12: 1 has both neighbours.
    boxes = np.array([(0, 0, 10, 10), (1, 0, 11, 10), (2, 0, 12, 10), (40, 0, 50, 10)], float)
    assert oracle.merge_truth(boxes) == [(0, 1, 2), (3,)]
    assert oracle.merge_truth(boxes, 0.9) == [(0,), (1,), (2,), (3,)]
    # In a chain of four, 1 takes 0 and 2, and 3 is left.
    chain = np.array([(k, 0, 10 + k, 10) for k in range(4)], float)
    assert oracle.merge_truth(chain) == [(0, 1, 2), (3,)]
