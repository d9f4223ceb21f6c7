"""Registry of the models, and the optional capabilities that each of them has."""

import pytest
import torch

from limner.layers.image_encoder import ImageEncoderSettings
from limner.models import MODELS, ModelInputs, build_model
from limner.models.bag_of_words import BagOfWordsSettings
from limner.models.independent_descriptions import IndependentSettings
from limner.models.log_bilinear import LBLSettings
from limner.models.mrnn import MRNNSettings
from limner.models.phrase_based import PhraseBased
from limner.models.two_tower import TwoTower


def test_all_models_but_two_implement_the_protocol_of_the_search():
    for step in ("encode", "start", "step", "forward"):
        assert {model for model in MODELS.values() if step not in vars(model)} == {PhraseBased, TwoTower}


@pytest.mark.parametrize("settings", [BagOfWordsSettings(), MRNNSettings(), LBLSettings(), IndependentSettings()])
def test_dropout_of_image_features_acts_in_training_only(settings):
    changed = settings.model_copy(update={"image_encoder": ImageEncoderSettings(dropout=0.5)})
    encoder = build_model(changed, ModelInputs(11, {"pooled": (64,)}, 9)).image_encoder
    image = type("Image", (), {"pooled": torch.ones(2, 64), "grid": None, "maps": None, "present": torch.ones(2) > 0})
    dropped = encoder.train()(image)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    torch.testing.assert_close(encoder.eval()(image), torch.ones(2, 64))
