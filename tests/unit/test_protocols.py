"""Registry of the models, and the optional capabilities that each of them has."""

from typing import get_args

import pytest
import torch

from limner.layers.image_encoder import ImageEncoderSettings
from limner.models import LANGUAGE_MODELS, MODELS, OTHER_MODELS, ModelInputs, ModelSettings, build_model
from limner.models.bag_of_words import BagOfWordsSettings
from limner.models.independent_descriptions import IndependentSettings
from limner.models.log_bilinear import LBLSettings
from limner.models.mrnn import MRNNSettings


def test_the_registry_and_the_union_of_settings_list_the_same_models():
    union, _ = get_args(ModelSettings)
    assert set(MODELS) == set(get_args(union))
    assert all(model.Settings is settings for settings, model in MODELS.items())


def test_language_models_alone_implement_the_protocol_of_the_search():
    for step in ("encode", "start", "step", "forward"):
        assert all(step in vars(model) for model in LANGUAGE_MODELS.values())
        assert not any(step in vars(model) for model in OTHER_MODELS.values())


@pytest.mark.parametrize("settings", [BagOfWordsSettings(), MRNNSettings(), LBLSettings(), IndependentSettings()])
def test_dropout_of_image_features_acts_in_training_only(settings):
    changed = settings.model_copy(update={"image_encoder": ImageEncoderSettings(dropout=0.5)})
    encoder = build_model(changed, ModelInputs(11, {"pooled": (64,)}, 9)).image_encoder
    image = type("Image", (), {"pooled": torch.ones(2, 64), "grid": None, "maps": None, "present": torch.ones(2) > 0})
    dropped = encoder.train()(image)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    torch.testing.assert_close(encoder.eval()(image), torch.ones(2, 64))
