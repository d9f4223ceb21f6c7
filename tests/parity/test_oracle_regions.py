"""The oracle of regions: hand-worked boxes, samples and an evaluation."""

import numpy as np
import oracle_regions as oracle
import pytest
import torch

SQUARE = (0.0, 0.0, 10.0, 10.0)


def random_boxes(count, seed=0):
    generator = np.random.default_rng(seed)
    low = generator.uniform(0, 8, size=(count, 2))
    return np.hstack([low, low + generator.uniform(1, 6, size=(count, 2))])


# Boxes


def test_overlap_by_hand():
    assert oracle.iou(SQUARE, (5, 0, 15, 10)) == pytest.approx(1 / 3)
    assert oracle.iou(SQUARE, (2, 2, 4, 7)) == pytest.approx(0.1)
    assert oracle.iou(SQUARE, SQUARE) == 1.0
    assert oracle.iou(SQUARE, (10, 0, 20, 10)) == 0.0
    assert oracle.iou(SQUARE, (30, 30, 40, 40)) == 0.0


def test_box_parameters_by_hand_and_back():
    # The centre moves by half a width and a quarter of a height; twice as wide, half as high.
    t = oracle.encode((10, 20, 4, 8), (12, 22, 8, 4))
    np.testing.assert_allclose(t, [0.5, 0.25, np.log(2), -np.log(2)])
    np.testing.assert_allclose(oracle.decode((10, 20, 4, 8), t), [12, 22, 8, 4])
    for anchor, box in zip(random_boxes(5), random_boxes(5, 1), strict=True):
        np.testing.assert_allclose(oracle.decode(anchor, np.zeros(4)), anchor)
        np.testing.assert_allclose(oracle.decode(anchor, oracle.encode(anchor, box)), box)
        np.testing.assert_allclose(oracle.corner_form(oracle.centre_form(box)), box)
        # Scale and position of the image do not matter.
        moved = [oracle.centre_form(oracle.corner_form(form) * 3 + 1) for form in (anchor, box)]
        np.testing.assert_allclose(oracle.encode(*moved), oracle.encode(anchor, box))


def test_suppression_by_hand():
    # IoU 0.9 with the best, 1/3 with it, none; the second is out, so it suppresses no other.
    boxes = np.array([SQUARE, (0, 0, 10, 9), (5, 0, 15, 10), (20, 0, 30, 10)])
    scores = [0.9, 0.8, 0.7, 0.95]
    assert oracle.nms(boxes, scores, 0.5) == [3, 0, 2]
    assert oracle.nms(boxes, scores, 0.9) == [3, 0, 1, 2]  # equal to the threshold stays
    assert oracle.nms(boxes, scores, 0.3) == [3, 0]
    assert oracle.nms(boxes, scores, 0.5, most=2) == [3, 0]
    assert oracle.nms(boxes[[0, 0]], [0.5, 0.5], 0.5) == [0]


# Features


def test_points_by_hand():
    # Cells of 16 pixels. The region (8, 16)-(40, 32) has parts of 16 x 8 with centres x = 16, 32 and y = 20, 28.
    points = oracle.sampling_points((8, 16, 40, 32), 2, 2, (48, 64), (3, 4))
    np.testing.assert_allclose(points[0], [[20 / 16 - 0.5, 0.5], [20 / 16 - 0.5, 1.5]])
    np.testing.assert_allclose(points[1], [[28 / 16 - 0.5, 0.5], [28 / 16 - 0.5, 1.5]])
    # Published convention: x = 24, w = 32, W = 64, W' = 4: 3/2 (1 + (48 - 64) / 63 +- 1/2)
    corners = oracle.sampling_points((8, 16, 40, 32), 2, 2, (48, 64), (3, 4), "corners")
    np.testing.assert_allclose(corners[0, :, 1], [1.5 * (0.5 - 16 / 63), 1.5 * (1.5 - 16 / 63)])


def test_bilinear_values_by_hand():
    features = np.array([[[0.0, 4.0], [8.0, 16.0]]])
    points = np.array([[[0.5, 0.5], [0.0, 0.25], [1.0, 1.0], [0.0, -0.5], [0.0, -1.0], [5.0, 0.0]]])
    np.testing.assert_allclose(oracle.bilinear_sample(features, points)[0, 0], [7, 1, 16, 0, 0, 0])
    np.testing.assert_allclose(oracle.bilinear_sample(features + 2, points)[0, 0], [9, 3, 18, 1, 0, 0])
    np.testing.assert_allclose(oracle.bilinear_sample(features, points, clamp=True)[0, 0], [7, 1, 16, 0, 0, 8])


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("convention", ["cells", "corners"])
def test_samples_equal_torch(convention, clamp):
    features, box = np.random.default_rng(0).normal(size=(2, 3, 4)), (-5.0, 10.0, 50.0, 60.0)
    points = oracle.sampling_points(box, 5, 6, (48, 64), (3, 4), convention)
    # To torch's coordinates, -1 and 1 being the map's edges ('cells') or the outermost centres ('corners')
    size = np.array([3, 4])
    grid = (2 * points + 1) / size - 1 if convention == "cells" else 2 * points / (size - 1) - 1
    expected = torch.nn.functional.grid_sample(
        torch.from_numpy(features)[None],
        torch.from_numpy(grid[..., ::-1].copy())[None],
        padding_mode="border" if clamp else "zeros",
        align_corners=convention == "corners",
    )[0]
    np.testing.assert_allclose(oracle.bilinear_sample(features, points, clamp), expected, atol=1e-12)


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


def test_a_detection_of_slight_overlap_takes_the_box():
    records = oracle.assign(image([(9, 0, 19, 10), SQUARE], [0.9, 0.8], [SQUARE], [0.5, 0.5]))
    assert [record.first for record in records] == [True, False]
    assert records[0].overlap == pytest.approx(1 / 19)


def test_a_detection_that_overlaps_nothing_takes_no_box_unless_as_published():
    shown = image([(50, 50, 60, 60), SQUARE], [0.9, 0.8], [SQUARE], [0.5, 0.5])
    assert [record.first for record in oracle.assign(shown)] == [False, True]
    assert [record.first for record in oracle.assign(shown, unmatched_takes_last=True)] == [False, False]
