"""Feature maps of k-means against the slow oracle of the equations, one patch at a time in float64."""

import numpy as np
import oracle_kiros as oracle
import pytest
import torch

from limner.features.encoders.kmeans import KMeansBackbone
from limner.features.kmeans import Filters, KMeansSettings, fit_whitening, normalise, save_filters, spherical_kmeans

SIZE, PATCH, COUNT, GRID = 12, 3, 7, 4
DEPTH = 3 * PATCH**2
CHANNELS_LAST = np.arange(DEPTH).reshape(3, PATCH, PATCH).transpose(1, 2, 0).ravel()  # the oracle's order of a patch


@pytest.fixture
def random():
    return np.random.default_rng(3)


def whitened_filters(random, **activation):
    """A whitening fitted to patches, by the oracle, and centroids drawn at random, in our order."""
    patches = np.stack([oracle.contrast_normalise(row) for row in random.integers(0, 256, (200, DEPTH))])
    mean, whitening = oracle.whitening(patches)
    centroids = random.normal(size=(COUNT, DEPTH))
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    settings = KMeansSettings(size=SIZE, patch=PATCH, filters=COUNT, grid=GRID, patches=200, **activation)
    tensors = (torch.from_numpy(values).float() for values in (mean, whitening, centroids))
    return Filters(settings, *tensors), (mean, whitening, centroids)


def random_images(random):
    noise = random.integers(0, 256, (SIZE, SIZE, 3))
    ramp = np.linspace(0, 255, SIZE)[:, None, None] * np.array([1, 0.5, 0]) + np.zeros((SIZE, SIZE, 3))
    almost_white = 255 - random.integers(0, 2, (SIZE, SIZE, 3))
    return np.stack([noise, ramp.round(), almost_white]).astype(np.uint8)


@pytest.mark.parametrize("alpha", [None, 0.0, 0.6])
def test_maps_equal_the_equations(random, tmp_path, alpha):
    activation = {} if alpha is None else {"activation": "soft-threshold", "alpha": alpha}
    filters, (mean, whitening, centroids) = whitened_filters(random, **activation)
    save_filters(tmp_path / "filters.safetensors", filters)
    shown = random_images(random)
    maps = KMeansBackbone(tmp_path / "filters.safetensors")(shown[:, None])["maps"]
    assert maps.shape == (3, COUNT, GRID, GRID) and (maps[0] > 0).any()
    order = CHANNELS_LAST
    for image, ours in zip(shown, maps, strict=True):
        full = oracle.encode(
            image.astype(np.float64), PATCH, mean[order], whitening[np.ix_(order, order)], centroids[:, order], alpha
        )
        expected = oracle.max_pool_grid(full, GRID).transpose(2, 0, 1)
        # float16 keeps eleven binary digits
        np.testing.assert_allclose(ours, expected, rtol=2**-10, atol=2e-4)


def test_whitening_equals_the_equations_for_every_batch_size(random):
    bytes_ = random.integers(0, 256, (60, DEPTH))
    normalised = normalise(torch.from_numpy(bytes_).float())
    expected = np.stack([oracle.contrast_normalise(row) for row in bytes_])
    np.testing.assert_allclose(normalised, expected, rtol=1e-5, atol=1e-6)
    for sizes in ([60], [1, 29, 30]):
        ours = fit_whitening(normalised.split(sizes))
        for one, other in zip(ours, oracle.whitening(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_learned_centroids_are_a_fixed_point_of_the_equations(random):
    patches = random.integers(0, 256, (120, DEPTH)).astype(np.uint8)
    mean, whitening = fit_whitening([normalise(torch.from_numpy(patches).float())])
    settings = KMeansSettings(size=SIZE, patch=PATCH, filters=COUNT, grid=GRID, patches=120, passes=60)
    centroids = spherical_kmeans(patches, mean, whitening, settings, random, lambda: None).double().numpy()
    whitened = np.stack([oracle.contrast_normalise(row) for row in patches.astype(float)]) - mean.double().numpy()
    moved = oracle.spherical_kmeans_step(whitened @ whitening.double().numpy(), centroids)
    np.testing.assert_allclose(moved, centroids, atol=1e-5)
