"""Log-bilinear models: scores of all pairs, the initialisation and the convolutional network against the oracle."""

from typing import get_args

import numpy as np
import oracle_kiros as oracle
import pytest
import torch
from parity_models import array, arrays, convnet_weights, randomised

from limner.data.examples import Example, ImageFeatures, collate
from limner.decoding.scoring import sentence_log_probs
from limner.layers import all_pairs
from limner.layers.image_encoder import MapConvnet
from limner.models.log_bilinear import LBL, LBLSettings, Variant
from limner.models.protocols import ModelInputs
from limner.retrieval.all_pairs import pair_log_probs
from limner.retrieval.fast import pair_scorer, tree_log_probs

VOCAB, WORD, IMAGE = 13, 5, 6
SENTENCES = [[4, 5, 6], [7], [4, 5, 12, 11, 10, 4, 9, 9], [], [3, 3]]
SHAPES = {"pooled": (IMAGE,), "maps": (4, 9, 9)}


def settings(variant: str, **changes) -> LBLSettings:
    return LBLSettings.parse({"variant": variant, "word_dim": WORD, "context": 3, "factors": 7, **changes})


def model_and_images(variant: str, kind: str, count: int) -> tuple[LBL, ImageFeatures]:
    """A model in float32 with random weights, and random images."""
    encoder = {"image_encoder": {"convnet_dim": 8}}
    model = randomised(LBL(settings(variant, **encoder), ModelInputs(VOCAB, {kind: SHAPES[kind]})), scale=0.4).float()
    values = np.random.default_rng(3).normal(size=(count, *SHAPES[kind])).astype(np.float16)
    image = collate([Example(str(row), [], image={kind: value}) for row, value in enumerate(values)]).image
    return model, image._replace(**{kind: getattr(image, kind).float()})


@torch.inference_mode()
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("variant", get_args(Variant))
def test_float32_all_pairs_matrix_equals_the_generic_computation(variant, kind) -> None:
    model, image = model_and_images(variant, kind, 9)
    batch = collate([Example("", sentence) for sentence in SENTENCES])
    (fast,) = pair_scorer(model).log_probs([image], batch, all_pairs.PairOptions(1 << 16))
    torch.testing.assert_close(fast, tree_log_probs(model, image, batch, 1 << 20), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("strength", [1.0, 20.0, 100.0])
def test_pairs_that_underflow_are_recomputed(strength, monkeypatch) -> None:
    """Tokens that are probable given the prefix may be improbable given the image, so that the product underflows."""
    model, image = model_and_images("MLBL-B", "pooled", 20)
    with torch.no_grad():
        model.image.weight.mul_(strength)
        model.context.weight.mul_(strength)
    batch = collate([Example("", sentence) for sentence in SENTENCES])
    counts = []
    recompute = all_pairs._recompute_normaliser
    monkeypatch.setattr(
        all_pairs,
        "_recompute_normaliser",
        lambda z, pairs, *rest: (counts.append(len(pairs)), recompute(z, pairs, *rest)),
    )
    with torch.inference_mode():
        (fast,) = pair_scorer(model).log_probs([image], batch, all_pairs.PairOptions(1 << 16))
        general = tree_log_probs(model.double(), image._replace(pooled=image.pooled.double()), batch, 1 << 20)
    assert (sum(counts) > 0) is (strength > 1)
    torch.testing.assert_close(fast, general, rtol=1e-5, atol=1e-4)


@torch.inference_mode()
def test_generic_all_pairs_scores_equal_the_specialised_ones() -> None:
    model, images = model_and_images("MLBL-F", "pooled", 4)

    class Images:
        def take(self, items):
            return [{"pooled": images.pooled[item].numpy()} for item in items]

    matrix = pair_log_probs(model, SENTENCES, [2, 0, 1], Images(), budget=4096)
    for column, row in enumerate([2, 0, 1]):
        batch = collate([Example("", sentence, image={"pooled": images.pooled[row].numpy()}) for sentence in SENTENCES])
        torch.testing.assert_close(matrix[:, column], sentence_log_probs(model(batch), batch), rtol=0, atol=1e-4)


@pytest.mark.parametrize("factors", [3, 5])
def test_mlblf_is_initialised_by_the_svd_of_the_embeddings(factors) -> None:
    model = LBL(settings("MLBL-F", factors=factors), ModelInputs(VOCAB, {"pooled": (IMAGE,)})).double()
    embeddings = np.random.default_rng(0).normal(size=(VOCAB, WORD))
    model.init_word_embeddings(torch.from_numpy(embeddings))
    rows, columns = oracle.svd_start(embeddings, factors)
    np.testing.assert_allclose(model.word_vectors().detach(), rows @ columns, atol=1e-12)
    lengths = np.linalg.norm(model.words.detach().numpy(), axis=0)
    np.testing.assert_allclose(lengths, np.linalg.norm(model.word_factors.weight.detach().numpy(), axis=1))


def test_more_factors_than_dimensions_reconstruct_the_embeddings() -> None:
    model = LBL(settings("MLBL-F", factors=9, init_std=1e-6), ModelInputs(VOCAB, {"pooled": (IMAGE,)})).double()
    embeddings = torch.randn(VOCAB, WORD, dtype=torch.float64)
    model.init_word_embeddings(embeddings)
    torch.testing.assert_close(model.word_vectors(), embeddings, atol=1e-9, rtol=0)


def test_the_convnet_equals_the_equations_of_the_paper() -> None:
    """9 x 9 x 128 maps, 64 filters, 3 x 3 x 64 after pooling, 256 units."""
    net = randomised(MapConvnet((128, 9, 9), 256), scale=0.2)
    assert net.filters.weight.shape == (64, 128, 3, 3)
    assert net.project.weight.shape == (256, 3 * 3 * 64)
    maps = np.random.default_rng(1).random((2, 128, 9, 9)) * 20
    expected = [oracle.convnet(image, convnet_weights(arrays(net), "")) for image in maps]
    np.testing.assert_allclose(array(net(torch.from_numpy(maps))), expected, rtol=1e-9, atol=1e-9)
