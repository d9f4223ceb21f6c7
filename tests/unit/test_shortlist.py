"""Retrieval by perplexity and within shortlists, against the definition."""

import itertools

import numpy as np
import pytest
import torch

from limner.data.examples import Item
from limner.errors import SettingsError
from limner.evaluation.evaluate import EvaluationOptions, evaluate
from limner.evaluation.retrieval import nearest_images
from limner.layers.image_encoder import ImageEncoderSettings
from limner.metrics.ranks import chance_area, match_area, match_curve, shortlist_ranks
from limner.models.mrnn import MRNN
from limner.models.protocols import ModelInputs
from limner.runs.recipe import EvaluationSettings


def searched(model, tiny, shortlist):
    result = evaluate(
        [model], tiny, options=EvaluationOptions(metrics=("bleu1",), measures=EvaluationSettings(shortlist=shortlist))
    )
    return {score.name: score for score in result.scores}, result.retrieval


def test_only_the_shortlist_is_ranked():
    scores = np.array([[0.5, 0.1, 0.1], [0.4, 0.9, 0.2], [0.1, 0.3, 0.2], [0.9, 0.8, np.nan]])
    owners = np.array([0, 1, 1, 2])  # image 1 has two sentences, of which the better counts
    alone, two, all_ = ([[0], [1], [2]], [[0, 1], [1, 2], [2, 0]], [[0, 1, 2], [1, 0, 2], [2, 0, 1]])
    assert shortlist_ranks(scores, owners, np.array(alone)).tolist() == [1, 1, 1]
    assert shortlist_ranks(scores, owners, np.array(two)).tolist() == [1, 1, 2]  # NaN ranks last
    assert shortlist_ranks(scores, owners, np.array(all_)).tolist() == [2, 1, 4]


def test_ties_count_against_the_model():
    assert shortlist_ranks(np.ones((3, 3)), np.arange(3), np.array([[0, 1], [1, 2], [2, 0]])).tolist() == [2, 2, 2]


def test_the_area_equals_the_area_under_the_curve_and_chance_the_mean_of_all_orders():
    ranks, candidates = np.array([1, 3, 2, 4]), np.array([4, 4, 4, 4])
    curve = match_curve(ranks, candidates)
    assert curve == ((0.0, 0.0), (0.25, 0.25), (0.5, 0.5), (0.75, 0.75), (1.0, 1.0))
    shares, result = zip(*curve, strict=True)
    assert match_area(ranks, candidates) == pytest.approx(100 * np.trapezoid(result, shares))
    assert match_area(np.array([1, 10]), np.array([5, 10])) == pytest.approx(100 * (0.9 + 0.05) / 2)
    first = [min(places) + 1 for places in itertools.combinations(range(6), 2)]  # two right answers among six
    six = np.full(len(first), 6)
    assert chance_area(np.full(len(first), 2), six) == pytest.approx(match_area(np.array(first), six))
    assert chance_area(np.array([1]), np.array([100])) == pytest.approx(50)


class Stored:
    """Features by the id of the item."""

    def __init__(self, values, kind="pooled"):
        self.values, self.kind = np.asarray(values, dtype=np.float16), kind

    def items(self):
        return [Item(str(row), "test", image="x.png") for row in range(len(self.values))]

    def take(self, items):
        return [{self.kind: self.values[int(item.id)]} for item in items]


def test_nearest_images_start_with_the_image_itself(model):
    source = Stored([[0, 0], [3, 0], [0, 1], [0, 0], [50, 0]])
    near = nearest_images(model, source.items(), source, 3).tolist()
    assert [row[0] for row in near] == [0, 1, 2, 3, 4]  # although images 0 and 3 are equal
    assert near[:2] == [[0, 3, 2], [1, *near[1][1:]]]
    assert near[4] == [4, 1, *near[4][2:]]


@pytest.mark.parametrize("kind", ["pooled", "maps"])
def test_distances_are_between_the_image_vectors_of_the_multimodal_rnn(model, kind):
    """Convnet outputs define the distance of pixel models; stored features are scaled as in the recipe."""
    torch.manual_seed(3)
    shape, random = {"pooled": (6,), "maps": (4, 9, 9)}[kind], np.random.default_rng(4)
    settings = model.recipe.model.model_copy(update={"image_encoder": ImageEncoderSettings(scaling="unit")})
    network = MRNN(settings, ModelInputs(model.model.vocab_size, {kind: shape})).eval()
    values = (random.random((12, *shape)) * random.random((12, *[1] * len(shape))) * 9).astype(np.float16)

    source = Stored(values, kind)
    encoded = torch.from_numpy(values).float()
    if kind == "maps":
        with torch.no_grad():
            expected = network.image_encoder.convnet(encoded)
    else:
        expected = encoded / encoded.norm(dim=1, keepdim=True)
    order = torch.cdist(expected, expected).argsort(1)[:, :5]
    assert torch.equal(nearest_images(model._replace(model=network), source.items(), source, 5), order)
    assert not torch.equal(torch.cdist(encoded.flatten(1), encoded.flatten(1)).argsort(1)[:, :5], order)


def test_a_shortlist_longer_than_the_images_is_an_error_before_decoding(model, tiny, monkeypatch):
    monkeypatch.setattr("limner.inference.generate.Engine", None)
    with pytest.raises(SettingsError, match=r"expected at most 8, .*got 9; set evaluation\.shortlist=8"):
        searched(model, tiny, 9)


def test_a_shortlist_changes_no_other_score(model, tiny):
    scores, shown = searched(model, tiny, None)
    listed, in_shortlists = searched(model, tiny, 1)  # of the image itself
    assert not any("match" in name for name in scores)
    assert shown.shortlist is shown.match_curves is None
    assert {name: score for name, score in listed.items() if "match" not in name} == scores
    assert all(query.rank == 1 and all(one.right for one in query.top) for query in in_shortlists.image_to_text)
    assert not all(one.right for query in shown.image_to_text for one in query.top)
