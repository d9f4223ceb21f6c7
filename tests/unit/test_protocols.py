"""Registry of the models, and the optional capabilities that each of them has."""

from typing import get_args

import pytest
import torch

from limner.layers.image_encoder import ImageEncoderSettings
from limner.models import LANGUAGE_MODELS, MODELS, OTHER_MODELS, ModelInputs, ModelSettings, build_model
from limner.models.bag_of_words import BagOfWordsSettings
from limner.models.dense_captioner import DenseCaptionerSettings
from limner.models.hmm import HMMSettings
from limner.models.independent_descriptions import IndependentSettings
from limner.models.log_bilinear import LBLSettings
from limner.models.mrnn import MRNNSettings
from limner.models.ngram import NGramSettings
from limner.models.nmt import NMTSettings
from limner.models.phrase_based import PhraseBasedSettings
from limner.models.protocols import (
    CountBasedModel,
    ImageVectorModel,
    PairRanker,
    PretrainedEmbeddingModel,
    WordEmbeddingModel,
)
from limner.models.rnn import RNNSettings
from limner.models.sequence_labeller import SequenceLabellerSettings
from limner.models.show_and_tell import ShowAndTellSettings
from limner.models.show_attend_tell import ShowAttendTellSettings
from limner.models.transformer import TransformerSettings
from limner.models.two_tower import TwoTowerSettings
from limner.models.video_captioner import VideoCaptionerSettings

CAPABILITIES = {
    BagOfWordsSettings: {ImageVectorModel, PairRanker},
    DenseCaptionerSettings: set(),
    HMMSettings: {CountBasedModel},
    IndependentSettings: set(),
    LBLSettings: {ImageVectorModel, PretrainedEmbeddingModel, WordEmbeddingModel},
    MRNNSettings: {ImageVectorModel, WordEmbeddingModel},
    NGramSettings: {CountBasedModel},
    NMTSettings: set(),
    PhraseBasedSettings: set(),
    RNNSettings: {ImageVectorModel, PretrainedEmbeddingModel, WordEmbeddingModel},
    SequenceLabellerSettings: {PretrainedEmbeddingModel},
    ShowAndTellSettings: {ImageVectorModel, PretrainedEmbeddingModel, WordEmbeddingModel},
    ShowAttendTellSettings: {PretrainedEmbeddingModel, WordEmbeddingModel},
    TransformerSettings: set(),
    TwoTowerSettings: {ImageVectorModel, PairRanker, PretrainedEmbeddingModel, WordEmbeddingModel},
    VideoCaptionerSettings: {ImageVectorModel, PretrainedEmbeddingModel, WordEmbeddingModel},
}


def test_the_registry_and_the_union_of_settings_list_the_same_models():
    union, _ = get_args(ModelSettings)
    assert set(MODELS) == set(get_args(union)) == set(CAPABILITIES)
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
