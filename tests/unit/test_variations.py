"""Variations of feature vectors."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from variations import BLOCK, FeatureVariations


@pytest.fixture(scope="module")
def real():
    random = np.random.default_rng(0)
    return np.maximum(random.normal(size=(200, 6)) @ random.normal(size=(6, 32)), 0).astype(np.float16)


def test_any_part_can_be_made_again(real):
    variations = FeatureVariations(real, seed=3)
    whole = variations.rows(0, 2 * BLOCK + 10)
    assert whole.shape == (2 * BLOCK + 10, 32)
    assert np.array_equal(variations.rows(BLOCK - 5, BLOCK + 7), whole[BLOCK - 5 : BLOCK + 7])
    assert np.array_equal(FeatureVariations(real, seed=3).rows(0, 4), whole[:4])
    assert not np.array_equal(FeatureVariations(real, seed=4).rows(0, 4), whole[:4])


def test_variations_are_distributed_like_the_real_vectors_and_differ_from_them(real):
    made = FeatureVariations(real).rows(0, BLOCK).astype(np.float32)
    assert np.isfinite(made).all()
    assert made.min() == 0
    assert made.var(0).sum() == pytest.approx(real.astype(np.float32).var(0).sum(), rel=0.5)
    assert len(np.unique(made, axis=0)) == BLOCK
