"""Image encoders: scaling, pooling over locations, masks of missing images and locations."""

import math

import pytest
import torch

from limner.data.examples import ImageFeatures
from limner.errors import SettingsError
from limner.layers.image_encoder import (
    GridEncoder,
    ImageEncoder,
    ImageEncoderSettings,
    location_mask,
    mean_over_locations,
    scale,
)

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


def test_every_location_of_a_scanned_grid_depends_on_the_whole_grid():
    encoder = GridEncoder({"grid": (9, 4)}, ImageEncoderSettings(grid_rnn_dim=3))
    grid = torch.randn(1, 9, 4, requires_grad=True)
    scanned, _ = encoder(ImageFeatures(torch.tensor([True]), grid=grid))
    assert scanned.shape == (1, 9, 12)
    for location in range(9):
        assert torch.autograd.grad(scanned[0, location].sum(), grid, retain_graph=True)[0].any(-1).all()
