"""First-order expansions of log-probabilities in what a decoder reads of an image, and searches by them."""

import numpy as np
import pytest
import torch

import limner
from limner.data.examples import Example, ImageFeatures, collate
from limner.decoding.scoring import sentence_log_probs
from limner.models import ModelInputs, build_model
from limner.models.log_bilinear import LBLSettings
from limner.models.mrnn import MRNNSettings
from limner.models.show_and_tell import ShowAndTellSettings
from limner.models.show_attend_tell import ShowAttendTellSettings
from limner.retrieval.index import estimated
from limner.retrieval.index.estimated import ExpansionIndex, ImageCodes
from limner.retrieval.index.protocol import SearchOptions
from limner.training.loop import train

TOKENS, VOCAB = (5, 4, 7), 9
POOLED = {"pooled": (4,)}
SMOOTH = {
    "mrnn": MRNNSettings(embedding_dim=5, hidden_dim=6, multimodal_dim=7),
    "mrnn-visual": MRNNSettings(variant="visInRnn", embedding_dim=5, hidden_dim=6, multimodal_dim=7),
    "mlbl-f": LBLSettings(variant="MLBL-F", word_dim=6, factors=8, init_std=0.3),
    "show-and-tell": ShowAndTellSettings(embedding_dim=5, hidden_dim=6),
}
ATTENTION = ShowAttendTellSettings(embedding_dim=5, hidden_dim=6, attention_dim=7)


def build(settings, shapes):
    model = build_model(settings, ModelInputs(VOCAB, shapes)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def images(count, shape, kind="pooled"):
    return ImageFeatures(torch.ones(count, dtype=torch.bool), **{kind: torch.randn(count, *shape, dtype=torch.float64)})


def exact(model, image):
    examples = collate([Example("", TOKENS)] * len(image.present))
    examples.image = image
    return sentence_log_probs(model(examples), examples)


@pytest.mark.parametrize("name", SMOOTH)
def test_an_expansion_has_the_value_and_the_slopes_of_the_log_probability(name):
    model, image = build(SMOOTH[name], POOLED), images(2, (4,))
    codes = ImageCodes(model, image)
    points, step = codes.encode(image).double(), 1e-5
    values, gradients = codes.expand(TOKENS, points)
    with torch.no_grad():
        torch.testing.assert_close(values, codes.log_probs(TOKENS, points))
        for column in range(points.shape[1]):
            moved = torch.zeros_like(points)
            moved[:, column] = step
            slope = (codes.log_probs(TOKENS, points + moved) - codes.log_probs(TOKENS, points - moved)) / (2 * step)
            torch.testing.assert_close(gradients[:, column], slope, rtol=1e-4, atol=1e-6)


def test_the_best_images_are_among_the_candidates(tmp_path, monkeypatch):
    """By estimates in 3 of 7 coordinates, and expansions of the images with the highest of them."""
    torch.manual_seed(0)
    monkeypatch.setattr(estimated, "MIN_REESTIMATED", 100)
    monkeypatch.setattr(estimated, "LEADING_COORDINATES", 3)
    model, image = build(SMOOTH["mrnn"], POOLED).float(), images(400, (4,))
    coder = ImageCodes(model, image._replace(pooled=image.pooled.float()))
    codes = coder.encode(image._replace(pooled=image.pooled.float()))
    order = estimated.write_cells(tmp_path, codes.numpy())
    index = ExpansionIndex.read(tmp_path, coder, torch.device("cpu"))
    np.testing.assert_array_equal(index.codes, codes.numpy()[order])
    scores = index.code_scores(TOKENS, np.arange(400))
    torch.testing.assert_close(torch.from_numpy(scores), coder.log_probs(TOKENS, codes[order]).detach().double())
    assert np.isin(np.argsort(-scores)[:10], index.candidates(TOKENS, 40)).mean() >= 0.9


@pytest.fixture(scope="module")
def retriever(tiny, recipe_of, tmp_path_factory):
    """A trained m-RNN."""
    recipe = recipe_of("colour", epochs=2, validate_every=2)
    run = train(recipe, tiny, tmp_path_factory.mktemp("expansions") / "mrnn")
    return limner.Retriever.load(run, encode_images=False)


def test_a_search_scores_candidates_exactly(retriever, own_tiny):
    everything = retriever.search_images("a red wall", own_tiny, count=5)
    built = retriever.build_index(own_tiny)
    assert (built.kind, built.images) == ("expansions", 48)
    found = retriever.search_images("a red wall", own_tiny, count=5, options=SearchOptions(max_scored=24))
    assert (found.scored, found.exact, found.gap) == (24, False, None)
    scores = {one.id: one.score for one in retriever.search_images("a red wall", own_tiny, count=48).results}
    assert [one.score for one in found.results] == pytest.approx([scores[one.id] for one in found.results], abs=1e-4)
    assert found.results[0].id == everything.results[0].id


def test_a_search_of_fewer_images_than_candidates_is_exact(retriever, own_tiny):
    everything = retriever.search_images("a red wall", own_tiny, count=9, options=SearchOptions(exact=True))
    retriever.build_index(own_tiny)
    found = retriever.search_images("a red wall", own_tiny, count=9)
    assert (found.scored, found.exact, found.gap) == (48, True, 0.0)
    np.testing.assert_allclose(
        [one.score for one in found.results], [one.score for one in everything.results], atol=1e-4
    )


def test_estimates_in_groups_find_the_best_images_of_an_attention_model(monkeypatch):
    """Probabilities that are far from linear: the expansion at the mean of all images misses most of the best."""
    torch.manual_seed(3)
    model = build(ATTENTION, {"grid": (3, 4)})
    image = images(600, (3, 4), "grid")._replace(grid=6 * torch.randn(600, 3, 4, dtype=torch.float64))
    coder = ImageCodes(model, image)
    codes = coder.encode(image).numpy()
    with torch.no_grad():
        best = np.argsort(-coder.log_probs(TOKENS, torch.from_numpy(codes).double()).numpy())[:10]
    centroid = torch.from_numpy(codes.mean(0, keepdims=True)).double()
    index = ExpansionIndex(coder, codes.astype(np.float64), centroid, np.array([0, 600]))
    in_groups = np.isin(best, index.candidates(TOKENS, 30)).mean()
    monkeypatch.setattr(estimated, "NARROWING", ())
    at_the_mean = np.isin(best, index.candidates(TOKENS, 30)).mean()
    assert in_groups >= 0.7 > 0.4 >= at_the_mean, (in_groups, at_the_mean)
