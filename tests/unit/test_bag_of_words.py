"""Bag of words: hand-computed values, and training on the tiny collection."""

import math

import numpy as np
import pytest
import torch

from limner.data.examples import Example, ImageFeatures, collate
from limner.evaluation.evaluate import EvaluationOptions, evaluate
from limner.features.store import FeatureStore
from limner.models.bag_of_words import BagOfWords, BagOfWordsSettings
from limner.models.protocols import ModelInputs
from limner.runs.recipe import EvaluationSettings
from limner.runs.trained_model import load_trained_model
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.loop import train
from limner.training.losses import word_loss

VOCAB = 7
PROBS = [0.9, 0.3, 0.8, 0.1, 0.6]
"""Probabilities of the units: end token, <unk>, and the words 4, 5 and 6."""


@pytest.fixture
def certain():
    """A model with probabilities `PROBS` for zero features."""
    model = BagOfWords(BagOfWordsSettings(), ModelInputs(VOCAB, {"pooled": (2,)})).double().eval()
    with torch.no_grad():
        model.units.bias.copy_(torch.tensor(PROBS, dtype=torch.double).logit())
    return model


def zeros(count=1):
    return ImageFeatures(torch.ones(count, dtype=torch.bool), pooled=torch.zeros(count, 2, dtype=torch.double))


def batch(*targets, pooled=(0.0, 0.0)):
    made = collate(
        [Example(str(k), list(target), image={"pooled": np.array(pooled)}) for k, target in enumerate(targets)]
    )
    made.image = ImageFeatures(made.image.present, pooled=made.image.pooled.double())
    return made


def test_the_score_is_the_mean_probability_of_the_words(certain):
    """Words count as often as they occur; the end token does not count."""
    result = certain.pair_scores(zeros(), batch([4], [4, 5, 4], [3, 6]))
    assert result[:, 0].tolist() == pytest.approx([0.8, (0.8 + 0.1 + 0.8) / 3, (0.3 + 0.6) / 2])


def test_the_loss_is_binary_cross_entropy_of_every_word(certain):
    """Repeated words count once, and the mean is over descriptions, not over words."""
    once, twice, other = (4,), (4, 4), (5, 3, 6)

    def loss(*words):
        """Loss of a description with exactly these words."""
        probs = [p if 2 + unit in words else 1 - p for unit, p in enumerate(PROBS)]
        return -sum(math.log(p) for p in probs)

    for example, expected in ((once, loss(2, 4)), (twice, loss(2, 4)), (other, loss(2, 3, 5, 6))):
        made = batch(example)
        assert word_loss(certain(made), made).item() == pytest.approx(expected)
    made = batch(once, other)
    assert word_loss(certain(made), made).item() == pytest.approx((loss(2, 4) + loss(2, 3, 5, 6)) / 2)


def test_next_word_probabilities_are_proportional_to_the_units(certain):
    made = batch([4, 5])
    probs = certain(made).logits.softmax(-1)
    expected = torch.tensor([0, 0, *PROBS], dtype=torch.double) / sum(PROBS)
    torch.testing.assert_close(probs, expected.expand(1, 3, -1))
    assert not probs[..., [SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos]].any()


@pytest.mark.parametrize("features", ["colour", "pixels16"])
def test_a_trained_model_is_saved_and_retrieves_images_by_its_score(features, tiny, recipe_of, tmp_path):
    rate = 0.02 if features == "colour" else 0.002
    recipe = recipe_of(features, epochs=30, validate_every=10, optimizer={"name": "adamw", "lr": rate}).model_dump(
        mode="json"
    )
    recipe["model"] = {"name": "bow", "image_encoder": {"scaling": "layer"}}
    recipe = type(recipe_of()).parse(recipe)
    model = load_trained_model(train(recipe, tiny, tmp_path / "run"))
    result = evaluate(
        [model], tiny, options=EvaluationOptions(metrics=("bleu1",), measures=EvaluationSettings(shortlist=4))
    )
    scores = {score.name: score for score in result.scores}
    assert "score:the model's own" in scores["image_to_text_match_area"].signature
    assert scores["text_to_image_match_area"].value > 70  # two of the eight images have each colour: at most 81
    feature_store = FeatureStore.open(tiny, [features], 64)
    (first, *_), words = tiny.items("test"), model.tokenizer.encode("red green blue white")
    made = collate([Example("", image=features) for features in feature_store.take([first])])
    assert int(model.model.encode(made)[0, words].argmax()) == 0  # the first image is red
