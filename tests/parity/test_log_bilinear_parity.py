"""Our log-bilinear models against the oracle written from the paper's equations in NumPy float64."""

import dataclasses
import math
from typing import get_args

import numpy as np
import oracle_kiros as oracle
import pytest
import torch

from limner.data.examples import Example, collate
from limner.decoding.scoring import sentence_log_probs
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import beam_search
from limner.layers import all_pairs
from limner.layers.image_encoder import MapConvnet
from limner.models.log_bilinear import LBL, LBLSettings, Variant
from limner.models.protocols import ModelInputs
from limner.retrieval.all_pairs import pair_log_probs
from limner.retrieval.fast import pair_scorer
from limner.retrieval.prefix_tree import tree_log_probs
from limner.text.vocab import SPECIAL_TOKENS

VOCAB, WORD, CONTEXT, FACTORS, IMAGE, CONVNET_DIM = 13, 5, 3, 7, 6, 8
SENTENCES = [[4, 5, 6], [7], [4, 5, 12, 11, 10, 4, 9, 9], [], [3, 3]]


def build(variant: Variant, kind: str) -> LBL:
    settings = LBLSettings(
        variant=variant, word_dim=WORD, context=CONTEXT, factors=FACTORS, image_encoder={"convnet_dim": CONVNET_DIM}
    )
    shapes = {"pooled": (IMAGE,), "maps": (4, 9, 9)}
    model = LBL(settings, ModelInputs(VOCAB, {kind: shapes[kind]})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return model


@pytest.fixture(params=[(v, f) for v in get_args(Variant) for f in ("pooled", "maps")], ids="-".join)
def pair(request):
    """Ours in float64 with random weights, and the oracle's distribution of the next word with the same weights."""
    variant, kind = request.param
    model = build(variant, kind)
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    per_word = np.split(weights["context.weight"], CONTEXT, axis=1)  # C_1 … C_(n-1), the nearest word's last
    bias = weights["bias"]

    def encoded(image):
        if kind == "pooled":
            return image
        return oracle.convnet(
            image,
            {
                "filters": weights["image_encoder.convnet.filters.weight"],
                "filter_bias": weights["image_encoder.convnet.filters.bias"],
                "weight": weights["image_encoder.convnet.project.weight"],
                "bias": weights["image_encoder.convnet.project.bias"],
            },
        )

    def distribution(context, image):
        if variant == "LBL":
            return oracle.lbl_distribution(weights["words"], per_word, bias, context)
        image_features = encoded(image)
        if variant == "MLBL-B":
            return oracle.mlblb_distribution(
                weights["words"], per_word, weights["image.weight"], bias, context, image_features
            )
        factored = weights["words"], weights["visual_factors.weight"], weights["word_factors.weight"]
        return oracle.mlblf_distribution(*factored, per_word, weights["image.weight"], bias, context, image_features)

    return model, distribution, kind


def random_images(kind: str, count: int) -> np.ndarray:
    shape = (IMAGE,) if kind == "pooled" else (4, 9, 9)
    return np.random.default_rng(3).normal(size=(count, *shape)).astype(np.float16)


def batch_of(kind, sentences, images):
    batch = collate(
        [Example(str(k), s, image={kind: i}) for k, (s, i) in enumerate(zip(sentences, images, strict=True))]
    )
    return dataclasses.replace(batch, image=batch.image._replace(**{kind: getattr(batch.image, kind).double()}))


def test_distribution_of_every_word(pair) -> None:
    model, distribution, kind = pair
    images = random_images(kind, len(SENTENCES))
    ours = model(batch_of(kind, SENTENCES, images)).logits.softmax(2).detach().numpy()
    for row, (sentence, image) in enumerate(zip(SENTENCES, images.astype(float), strict=True)):
        for position, context in enumerate(
            oracle.contexts([*sentence, SPECIAL_TOKENS.eos], CONTEXT, SPECIAL_TOKENS.bos)
        ):
            np.testing.assert_allclose(ours[row, position], distribution(context, image), atol=1e-12)


def test_perplexity_eq_10(pair) -> None:
    model, distribution, kind = pair
    images = random_images(kind, len(SENTENCES))
    batch = batch_of(kind, SENTENCES, images)
    ours = torch.exp2(-sentence_log_probs(model(batch), batch) / batch.target_mask.sum(1) / math.log(2)).tolist()
    for row, (sentence, image) in enumerate(zip(SENTENCES, images.astype(float), strict=True)):
        conditional = lambda context, image=image: distribution(context, image)  # noqa: E731
        expected = oracle.perplexity([*sentence, SPECIAL_TOKENS.eos], conditional, CONTEXT, SPECIAL_TOKENS.bos)
        assert ours[row] == pytest.approx(expected)


def test_greedy_decoding_takes_the_most_probable_word(pair) -> None:
    model, distribution, kind = pair
    images = random_images(kind, 3)
    result = beam_search([model], batch_of(kind, [[]] * 3, images), DecodingSettings(max_length=6), [[], [4], [5, 9]])
    for (best, *_), given, image in zip(result, ([], [4], [5, 9]), images.astype(float), strict=True):
        words = list(given)
        while len(words) < 6:
            context = oracle.contexts([*words, SPECIAL_TOKENS.eos], CONTEXT, SPECIAL_TOKENS.bos)[-1]
            likely = distribution(context, image)
            likely[[SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos]] = 0
            if (word := int(likely.argmax())) == SPECIAL_TOKENS.eos:
                break
            words.append(word)
        assert best.tokens == tuple(words)


def test_float32_all_pairs_matrix_equals_the_generic_computation(pair) -> None:
    model, _, kind = pair
    model = model.float()
    images = random_images(kind, 9)
    batch = collate([Example("", s) for s in SENTENCES])
    image = batch_of(kind, [[]] * 9, images).image
    image = image._replace(**{kind: getattr(image, kind).float()})
    with torch.inference_mode():
        (fast,) = pair_scorer(model).log_probs([image], batch, 1 << 16, torch.float32)
        general = tree_log_probs(model, image, batch, 1 << 20)
    torch.testing.assert_close(fast, general, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("strength", [1.0, 20.0, 100.0])
def test_pairs_that_underflow_are_recomputed(strength, monkeypatch) -> None:
    """Tokens that are probable given the prefix may be improbable given the image, so that the product underflows."""
    model = build("MLBL-B", "pooled").float()
    with torch.no_grad():
        model.image.weight.mul_(strength)
        model.context.weight.mul_(strength)
    images = random_images("pooled", 20)
    batch = collate([Example("", s) for s in SENTENCES])
    image = batch_of("pooled", [[]] * 20, images).image
    image = image._replace(pooled=image.pooled.float())
    counts = []
    recompute = all_pairs._recompute_normaliser
    monkeypatch.setattr(
        all_pairs,
        "_recompute_normaliser",
        lambda z, pairs, *rest: (counts.append(len(pairs)), recompute(z, pairs, *rest)),
    )
    with torch.inference_mode():
        (fast,) = pair_scorer(model).log_probs([image], batch, 1 << 16, torch.float32)
        general = tree_log_probs(model.double(), image._replace(pooled=image.pooled.double()), batch, 1 << 20)
    assert (sum(counts) > 0) is (strength > 1)
    torch.testing.assert_close(fast, general, rtol=1e-5, atol=1e-4)


def test_generic_all_pairs_scores_equal_the_specialised_ones() -> None:
    model = build("MLBL-F", "pooled").float()
    images = random_images("pooled", 4)

    class SourceLanguage:
        def take(self, items):
            return [{"pooled": images[item]} for item in items]

    with torch.inference_mode():
        matrix = pair_log_probs(model, SENTENCES, [2, 0, 1], SourceLanguage(), budget=4096)
        for column, row in enumerate([2, 0, 1]):
            batch = collate([Example("", s, image={"pooled": images[row]}) for s in SENTENCES])
            torch.testing.assert_close(matrix[:, column], sentence_log_probs(model(batch), batch), rtol=0, atol=1e-4)


@pytest.mark.parametrize("factors", [3, 5])
def test_mlblf_is_initialised_by_the_svd_of_the_embeddings(factors) -> None:
    settings = LBLSettings(variant="MLBL-F", word_dim=WORD, factors=factors)
    model = LBL(settings, ModelInputs(VOCAB, {"pooled": (IMAGE,)})).double()
    embeddings = np.random.default_rng(0).normal(size=(VOCAB, WORD))
    model.init_word_embeddings(torch.from_numpy(embeddings))
    rows, columns = oracle.svd_start(embeddings, factors)
    np.testing.assert_allclose(model.word_vectors().detach(), rows @ columns, atol=1e-12)
    lengths = np.linalg.norm(model.words.detach().numpy(), axis=0)
    np.testing.assert_allclose(lengths, np.linalg.norm(model.word_factors.weight.detach().numpy(), axis=1))


def test_more_factors_than_dimensions_reconstruct_the_embeddings() -> None:
    settings = LBLSettings(variant="MLBL-F", word_dim=WORD, factors=9, init_std=1e-6)
    model = LBL(settings, ModelInputs(VOCAB, {"pooled": (IMAGE,)})).double()
    embeddings = torch.randn(VOCAB, WORD, dtype=torch.float64)
    model.init_word_embeddings(embeddings)
    torch.testing.assert_close(model.word_vectors(), embeddings, atol=1e-9, rtol=0)


def test_the_convnet_equals_the_equations_of_the_paper() -> None:
    """9 x 9 x 128 maps, 64 filters, 3 x 3 x 64 after pooling, 256 units."""
    net = MapConvnet((128, 9, 9), 256).double()
    assert net.filters.weight.shape == (64, 128, 3, 3)
    assert net.project.weight.shape == (256, 3 * 3 * 64)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    maps = np.random.default_rng(1).random((2, 128, 9, 9)) * 20
    theta = {
        "filters": net.filters.weight.detach().numpy(),
        "filter_bias": net.filters.bias.detach().numpy(),
        "weight": net.project.weight.detach().numpy(),
        "bias": net.project.bias.detach().numpy(),
    }
    ours = net(torch.from_numpy(maps)).detach().numpy()
    for row in range(2):
        np.testing.assert_allclose(ours[row], oracle.convnet(maps[row], theta), rtol=1e-9, atol=1e-9)
