"""Boxes, sampling of regions and mean average precision against the NumPy oracle."""

import zlib

import numpy as np
import oracle_regions as oracle
import pytest
import torch

from limner.layers.localisation import apply_offsets, from_corners, iou, nms, offsets_to, sample_regions, to_corners
from limner.metrics import dense_captioning
from limner.metrics.dense_captioning import DenseCaptions, average_precision, dense_captioning_scores, match


def random_boxes(random, count):
    """Boxes in corner form, some of them alike."""
    corners = np.sort(random.uniform(0, 1, (count, 2, 2)), axis=1).reshape(count, 4)
    copies = random.integers(0, count, count // 2)
    corners[: len(copies)] = corners[copies] + random.uniform(-0.03, 0.03, (len(copies), 4))
    return np.sort(corners.reshape(count, 2, 2), axis=1).reshape(count, 4)


@pytest.mark.parametrize("seed", range(3))
def test_boxes(seed):
    random = np.random.default_rng(seed)
    corners = random_boxes(random, 20)
    boxes = from_corners(torch.tensor(corners))
    np.testing.assert_allclose(boxes, [oracle.centre_form(box) for box in corners])
    np.testing.assert_allclose(to_corners(boxes), corners)
    expected = [[oracle.iou(one, other) for other in corners] for one in corners]
    np.testing.assert_allclose(iou(boxes, boxes), expected, atol=1e-12)
    offsets = torch.tensor(random.normal(size=(20, 4)))
    moved = apply_offsets(boxes, offsets)
    np.testing.assert_allclose(
        moved, [oracle.decode(a, t) for a, t in zip(boxes.numpy(), offsets.numpy(), strict=True)]
    )
    np.testing.assert_allclose(
        offsets_to(boxes, moved),
        [oracle.encode(a, b) for a, b in zip(boxes.numpy(), moved.numpy(), strict=True)],
        atol=1e-12,
    )
    scores = random.integers(0, 8, 20) / 8  # with ties
    for threshold, count in ((0.3, 20), (0.7, 20), (0.5, 4), (1.0, 20)):
        kept = nms(boxes, torch.tensor(scores), threshold, count).tolist()
        assert kept == oracle.nms(corners, scores.tolist(), threshold, count)


def test_sampled_regions():
    random = np.random.default_rng(0)
    maps = random.normal(size=(3, 5, 7))
    corners = np.concatenate([random_boxes(random, 6), [[0, 0, 1, 1], [0.4, 0.3, 0.41, 0.32]]])
    regions = sample_regions(torch.tensor(maps), from_corners(torch.tensor(corners)), (4, 3))
    own = sample_regions(
        torch.tensor(maps).expand(len(corners), -1, -1, -1), from_corners(torch.tensor(corners)), (4, 3)
    )
    for region, again, box in zip(regions, own, corners, strict=True):
        expected = oracle.bilinear_sample(maps, oracle.sampling_points(box, 4, 3, (1, 1), (5, 7)))
        np.testing.assert_allclose(region, expected, atol=1e-12)
        np.testing.assert_allclose(again, expected, atol=1e-12)


def corpus(seed):
    """Images of random regions and detections near them, for both implementations; one image has no regions."""
    random = np.random.default_rng(seed)
    ours, theirs = [], []
    similarities = random.choice([0.0, 0.05, 0.1, 0.2, 0.22, 0.3, 0.6], 1000)
    for count in (4, 0, 7, 2):
        truth = random_boxes(random, count) if count else np.zeros((0, 4))
        near = truth[random.integers(0, count, 2 * count)] if count else truth
        near = np.sort((near + random.uniform(-0.05, 0.05, near.shape)).reshape(-1, 2, 2), axis=1).reshape(-1, 4)
        boxes = np.concatenate([near, random_boxes(random, 3)])
        confidences = random.integers(0, 1000, len(boxes)) / 1000
        names = [f"{len(ours)},{number}" for number in range(count)]
        sentences = [f"{len(ours)}/{number}" for number in range(len(boxes))]

        def language(detection, group, sentences=sentences, names=names):
            return similarity(sentences[detection], [names[one] for one in group])

        def similarity(sentence, references):
            return similarities[zlib.crc32("|".join([sentence, *sorted(references)]).encode()) % 1000]

        theirs.append(oracle.Image(boxes, confidences.tolist(), truth, language))
        left_top = [np.concatenate([one[:, :2], one[:, 2:] - one[:, :2]], 1) for one in (boxes, truth)]
        ours.append(DenseCaptions(left_top[0], confidences, sentences, left_top[1], names))
    return ours, theirs, lambda sentences, references: np.array(list(map(similarity, sentences, references)))


@pytest.mark.parametrize("seed", range(4))
def test_mean_average_precision(seed):
    ours, theirs, similarity = corpus(seed)
    expected, boxes_alone, pairs = oracle.evaluate(theirs)
    scores = dense_captioning_scores(ours, similarity, "test")
    assert [score.name for score in scores] == ["map", "localisation_map"]
    assert [score.value for score in scores] == pytest.approx([100 * expected, 100 * boxes_alone])
    assert 0 < expected < boxes_alone < 1
    matches = match(ours)
    values = similarity(matches.sentences, matches.references)
    for (overlap, above), value in pairs.items():
        assert average_precision(matches, values, overlap, above) == pytest.approx(value)


def test_merged_annotations():
    random = np.random.default_rng(5)
    for _ in range(20):
        truth = random_boxes(random, 9)
        sizes = np.concatenate([truth[:, :2], truth[:, 2:] - truth[:, :2]], 1)
        names = [str(number) for number in range(9)]
        merged, references = dense_captioning.merge_annotations(sizes, names)
        groups = oracle.merge_truth(truth)
        assert [tuple(map(int, group)) for group in references] == groups
        np.testing.assert_allclose(merged, [sizes[list(group)].mean(axis=0) for group in groups])
