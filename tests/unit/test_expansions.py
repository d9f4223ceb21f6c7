"""First-order expansions of log-probabilities in what a decoder reads of an image, and searches by them."""

import math

import numpy as np
import pytest
import torch

import limner
from limner.data.examples import Example, ImageFeatures, collate
from limner.decoding.scoring import sentence_log_probs
from limner.errors import RunError, SettingsError
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.layers.image_encoder import (
    GridEncoder,
    ImageEncoder,
    ImageEncoderSettings,
    MapEncoder,
    location_mask,
    mean_over_locations,
    scale,
)
from limner.models import ModelInputs, build_model
from limner.models.log_bilinear import LBLSettings
from limner.models.mrnn import MRNNSettings
from limner.models.show_and_tell import ShowAndTellSettings
from limner.models.show_attend_tell import ShowAttendTellSettings
from limner.retrieval.index import estimated
from limner.retrieval.index.estimated import ExpansionIndex, ImageCodes
from limner.retrieval.index.protocol import SearchOptions
from limner.runs.recipe import load_recipe
from limner.runs.trained_model import load_trained_model
from limner.storage.tensors import load_tensors
from limner.synthetic.scenes import SceneSettings
from limner.synthetic.storage import generate_collection
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


SETTINGS = ImageEncoderSettings(convnet_width=4, convnet_dim=6)
PRESENT = torch.tensor([True, False])


def test_scaling_of_vectors_and_of_each_location():
    features = torch.randn(2, 3, 5)
    assert scale(features, "none") is features
    torch.testing.assert_close(scale(features, "unit").norm(dim=-1), torch.ones(2, 3))
    torch.testing.assert_close(scale(features, "l2").norm(dim=-1), torch.full((2, 3), math.sqrt(5)))
    standardised = scale(features, "layer")
    torch.testing.assert_close(standardised.mean(-1), torch.zeros(2, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(standardised.var(-1, unbiased=False), torch.ones(2, 3), atol=1e-3, rtol=0)


def test_zero_rows_are_padding_unless_all_rows_are_zero():
    grid = torch.tensor([[[1.0, 0.0], [3.0, 4.0], [0.0, 0.0]], [[0.0, 0.0]] * 3])
    assert location_mask(grid).tolist() == [[True, True, False], [True] * 3]
    torch.testing.assert_close(mean_over_locations(grid), torch.tensor([[2.0, 2.0], [0.0, 0.0]]))


@pytest.mark.parametrize(
    ("shapes", "locations", "dim"),
    [({"pooled": (4,)}, 1, 4), ({"grid": (3, 5)}, 3, 5), ({"maps": (3, 32, 32)}, 4, 16)],
    ids=str,
)
def test_grid_features_are_encoded_to_one_vector_per_location(shapes, locations, dim):
    encoder = GridEncoder(shapes, SETTINGS)
    grid, mask = encoder(ImageFeatures(PRESENT, **{name: torch.rand(2, *shape) for name, shape in shapes.items()}))
    assert (encoder.dim, grid.shape) == (dim, (2, locations, dim))
    assert mask.tolist() == [[True] * locations, [False] * locations]
    assert encoder(ImageFeatures(torch.zeros(2, dtype=torch.bool))) is None


@pytest.mark.parametrize(
    ("encoder_type", "shapes", "settings", "message"),
    [
        (ImageEncoder, {}, SETTINGS, "the recipe names no features"),
        (ImageEncoder, {"maps": (5, 4, 4)}, SETTINGS, "expected at least 5x5"),
        (GridEncoder, {"maps": (5, 9, 9)}, SETTINGS, "expected features of kind 'grid', got maps"),
        (GridEncoder, {"grid": (6, 4)}, ImageEncoderSettings(grid_rnn_dim=3), "a square grid, got 6 locations"),
        (GridEncoder, {"grid": (9, 4)}, ImageEncoderSettings(grid_pooling=2), "a multiple of 2, got 9 locations"),
        (MapEncoder, {"grid": (9, 4)}, ImageEncoderSettings(projection_dim=3), "projection_dim: has no effect on maps"),
    ],
)
def test_features_that_do_not_fit_are_named(encoder_type, shapes, settings, message):
    with pytest.raises(SettingsError, match=message):
        encoder_type(shapes, settings)


@pytest.mark.parametrize("encoder_type", [ImageEncoder, GridEncoder])
def test_projected_features_are_relu_of_a_linear_layer(encoder_type):
    settings = ImageEncoderSettings(projection_dim=3, scaling="unit")
    encoder = encoder_type({"pooled": (4,)}, settings)
    pooled = torch.randn(2, 4)
    encoded = encoder(ImageFeatures(torch.ones(2, dtype=torch.bool), pooled=pooled))
    values = encoded if encoder_type is ImageEncoder else encoded[0][:, 0]
    layer = encoder.projection
    expected = (pooled / pooled.norm(dim=-1, keepdim=True)) @ layer.weight.T + layer.bias
    torch.testing.assert_close(values, expected.clamp(min=0))
    assert encoder.dim == 3


def test_pooled_locations_are_the_means_of_windows():
    encoder = GridEncoder({"grid": (16, 1)}, ImageEncoderSettings(grid_pooling=2))
    grid, mask = encoder(ImageFeatures(torch.tensor([True]), grid=torch.arange(16.0).view(1, 16, 1)))
    assert grid.flatten().tolist() == [2.5, 4.5, 10.5, 12.5] and mask.all()


def test_every_location_of_a_scanned_grid_depends_on_the_whole_grid():
    encoder = GridEncoder({"grid": (9, 4)}, ImageEncoderSettings(grid_rnn_dim=3))
    grid = torch.randn(1, 9, 4, requires_grad=True)
    scanned, _ = encoder(ImageFeatures(torch.tensor([True]), grid=grid))
    assert scanned.shape == (1, 9, 12)
    for location in range(9):
        assert torch.autograd.grad(scanned[0, location].sum(), grid, retain_graph=True)[0].any(-1).all()


NO_LEARNING = ["training.epochs=1", "training.optimizer={name: sgd, lr: 1e-12, momentum: 0.0}"]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    settings = SceneSettings(train=12, val=3, test=2, size=32, ambiguous=1.0, max_objects=1)
    collection = generate_collection(tmp_path_factory.mktemp("scenes") / "c", settings)
    extract(collection, load_backbone("pixels:32"))
    return collection


@pytest.fixture(scope="module")
def captioner(scenes, tmp_path_factory):
    recipe = load_recipe("scenes/demo-caption", ["features.tables=[pixels32]", "training.epochs=1"])
    return train(recipe, scenes, tmp_path_factory.mktemp("runs") / "captioner")


def translation(encoder, *changes):
    given = ["features.tables=[pixels32]", f"training.pretrained_image_encoder={encoder}", *NO_LEARNING, *changes]
    return load_recipe("scenes/demo-translate", given)


def test_the_translator_starts_from_the_convolutions_of_the_captioner(scenes, captioner, tmp_path, caplog):
    caplog.set_level("INFO", "limner.training.loop")
    run = train(translation(captioner), scenes, tmp_path / "run")
    stored, own = (load_tensors(folder / "model.safetensors") for folder in (captioner, run))
    names = [name for name in own if name.startswith("grid_encoder.convnet.")]
    assert len(names) == 16
    for name in names:
        other = name.replace("grid_encoder", "image_encoder")
        torch.testing.assert_close(own[name], stored[other], rtol=0, atol=1e-9)
    summary = load_trained_model(run).config.provenance["image_encoder"]
    assert summary == f"{captioner}: 16 weights of the convolutions"
    assert f"initial weights of the image encoder: {summary}" in caplog.messages


def test_a_run_is_resumed_with_the_same_image_encoder_only(scenes, captioner, tmp_path):
    run = train(translation(captioner), scenes, tmp_path / "run")
    recipe = translation(captioner)
    other = recipe.model_copy(
        update={"training": recipe.training.model_copy(update={"pretrained_image_encoder": None})}
    )
    with pytest.raises(RunError, match="pretrained_image_encoder"):
        train(other, scenes, run, resume=True)


def test_an_image_encoder_of_another_width_is_refused(scenes, captioner, tmp_path):
    with pytest.raises(SettingsError, match="convolutions have other shapes"):
        train(translation(captioner, "model.image_encoder.convnet_width=8"), scenes, tmp_path / "run")


def test_a_run_without_an_image_encoder_is_refused(scenes, captioner, tmp_path):
    text_only = load_recipe(
        "scenes/demo-translate", ["features.tables=[]", "model.image=[]", "training.lr_factors={}", *NO_LEARNING]
    )
    run = train(text_only, scenes, tmp_path / "text")
    with pytest.raises(SettingsError, match="found none"):
        train(translation(run), scenes, tmp_path / "run")


def test_a_model_without_convolutions_does_not_take_them(captioner, scenes, tmp_path):
    text_only = ["features.tables=[]", "model.image=[]", "training.lr_factors={}"]
    with pytest.raises(SettingsError, match="this model trains no convolutions"):
        train(translation(captioner, *text_only), scenes, tmp_path / "run")
