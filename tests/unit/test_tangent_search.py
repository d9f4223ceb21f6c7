"""The tangent index: no bound is violated, and the results are those of an exhaustive ranking in float64."""

import numpy as np
import pytest
import torch

from limner.errors import RunError
from limner.models.log_bilinear import LBL, LBLSettings
from limner.models.protocols import ModelInputs
from limner.retrieval.index import tangents
from limner.retrieval.index.concave import ConcaveScore, JensenBound, Points
from limner.retrieval.index.protocol import SearchOptions
from limner.retrieval.index.tangents import (
    TangentIndex,
    jensen_bounds,
    leading_bounds,
    search_cells,
    tangent_bounds,
    write_cells,
)

CASES = [
    # seed, images, size of z, vocabulary, cells, scale of the weights, duplicates
    (0, 300, 8, 30, 1, 1.0, False),
    (1, 300, 8, 30, 9, 1.0, True),
    (2, 400, 100, 50, 16, 0.3, False),
    (3, 200, 5, 12, 4, 4.0, True),
    (4, 64, 70, 40, 64, 1.0, False),
    (5, 300, 3, 20, 8, 12.0, False),
    (6, 300, 6, 20, 3, 0.0, True),
    (7, 2, 6, 20, 1, 1.0, False),
]


class Oracle:
    """log P(sentence | z) from the equations, position by position in float64."""

    def __init__(self, seed, size, vocabulary, scale):
        random = np.random.default_rng(seed)
        self.weight = scale * random.normal(size=(vocabulary, size))
        self.bias = random.normal(size=vocabulary)
        self.targets = random.integers(vocabulary, size=random.integers(1, 9)).tolist()
        self.prefixes = random.normal(size=(len(self.targets), size))

    def __call__(self, term):
        total = 0.0
        for prefix, target in zip(self.prefixes, self.targets, strict=True):
            logits = self.weight @ (prefix + term.astype(np.float64)) + self.bias
            largest = logits.max()
            total += logits[target] - largest - np.log(np.exp(logits - largest).sum())
        return total

    def model(self):
        vocabulary, size = self.weight.shape
        model = LBL(LBLSettings(word_dim=size), ModelInputs(vocabulary, {"pooled": (4,)})).double()
        model.words.data = torch.from_numpy(self.weight)
        return model

    def score(self):
        return ConcaveScore(self.weight, self.prefixes, self.bias, self.targets)


@pytest.fixture(params=CASES, ids=str)
def case(request, tmp_path):
    """Cells of an index, f, and the exhaustive scores in the order of the collection."""
    seed, images, size, vocabulary, cells, scale, duplicates = request.param
    oracle = Oracle(seed, size, vocabulary, scale)
    random = np.random.default_rng(seed + 100)
    terms = (random.normal(size=(images, size)) * np.linspace(2, 0.1, size)).astype(np.float32)
    if duplicates:
        terms[images // 2 :] = terms[: images - images // 2]
    order = write_cells(tmp_path, terms, oracle.weight, cells)
    assert sorted(order.tolist()) == list(range(images))
    opened = TangentIndex(tmp_path, oracle.model())
    assert np.array_equal(opened.cells.terms, terms[order])
    return opened.cells, oracle.score(), np.array([oracle(term) for term in terms])


def test_no_bound_is_violated(case):
    cells, score, exhaustive = case
    scores = exhaustive[cells.order]
    assert score.scores(cells.terms) == pytest.approx(scores, abs=1e-9)
    values, gradients = score.tangents(cells.points)
    all_rows = np.arange(len(scores))
    lead = leading_bounds(cells, values, gradients)
    full = tangent_bounds(cells, all_rows, values, gradients)
    assert (lead >= scores).all()
    assert (full >= scores).all()
    for groups in (0, 3, 1000):
        for point in (cells.terms[0], cells.terms.mean(0)):
            jensen = jensen_bounds(cells, JensenBound(score, point, groups), all_rows)
            assert (jensen >= scores).all()


def test_gradients_are_those_of_finite_differences(case):
    cells, score, _ = case
    point = cells.points.terms[0]
    value, (gradient,) = score.tangents(Points.from_terms(point[None], score.weight))
    step = 1e-5
    moved = point + step * np.eye(len(point))
    numeric = (score.scores(moved) - score.scores(2 * point - moved)) / (2 * step)
    assert value == pytest.approx(score.scores(point[None]))
    assert gradient == pytest.approx(numeric, abs=1e-4)


@pytest.mark.parametrize("count", [1, 2, 10, 150])  # 150: more than the pool
@pytest.mark.parametrize("seeds", [0, 6])
def test_results_are_those_of_the_exhaustive_ranking(case, count, seeds, monkeypatch):
    cells, score, exhaustive = case
    monkeypatch.setattr(tangents, "SEEDS", seeds)
    monkeypatch.setattr(tangents, "POOL", 40)
    count = min(count, len(exhaustive))
    found = search_cells(cells, score, count, SearchOptions())
    expected = np.lexsort((np.arange(len(exhaustive)), -exhaustive.round(9)))[:count]
    assert cells.order[found.rows].tolist() == expected.tolist()
    assert found.scores == pytest.approx(exhaustive[expected], abs=1e-9)
    assert (found.exact, found.gap) == (True, 0.0)
    assert count <= found.scored <= len(exhaustive)


@pytest.mark.parametrize(
    "options", [SearchOptions(max_scored=12), SearchOptions(slack=0.5), SearchOptions(False, 20, 2)]
)
def test_what_a_limited_search_reports_is_true(case, options):
    cells, score, exhaustive = case
    count = min(10, len(exhaustive))
    found = search_cells(cells, score, count, options)
    left = np.delete(exhaustive, cells.order[found.rows])
    assert options.max_scored is None or found.scored <= options.max_scored
    if len(left):
        assert left.max() - found.scores[-1] <= found.gap + 1e-9
    if found.exact:
        assert not len(left) or left.max() <= found.scores[-1] + 1e-9
    elif options.max_scored is None:
        assert found.gap <= options.slack + 1e-4


def test_gradients_where_the_image_and_the_prefix_prefer_different_tokens_strongly():
    """The product of the exponentials underflows at one position: its softmax is computed by itself."""
    weight = np.array([[900.0], [-900.0], [0.0]])
    score = ConcaveScore(weight, np.array([[-1.0], [0.1]]), np.zeros(3), [2, 0])
    value, gradient = score.tangents(Points.from_terms(np.array([[1.0]]), weight))
    # Logits are 0, 0, 0 at the first position, and 990, -990, 0 at the second one, whose target is certain.
    assert value == pytest.approx([-np.log(3.0)])
    assert gradient == pytest.approx(np.array([[0.0]]), abs=1e-9)


@pytest.mark.parametrize(
    ("weight", "bias"),
    [
        ([-80.0, 59.0], [0.0, -103.84]),  # the probability of a token is 0.8e-45, which float32 rounds to 1.4e-45
        ([-103.84, -103.84], [0.0, 0.0]),  # the exponentials are
    ],
)
def test_bounds_hold_where_float32_has_absolute_errors(weight, bias):
    score = ConcaveScore(np.array(weight)[:, None], np.zeros((1, 1)), np.array(bias), [0])
    terms = np.array([[0.5], [1.0], [1.01], [2.0]], np.float32)
    bounds = JensenBound(score, np.zeros(1, np.float32), 2)(terms)
    assert (bounds >= score.scores(terms)).all()


def test_scores_that_are_not_numbers_are_no_proof():
    oracle = Oracle(0, 4, 12, 1.0)
    with pytest.raises(RunError, match="not numbers"):
        oracle.score().tangents(Points.from_terms(np.full((1, 4), np.nan), oracle.weight))
