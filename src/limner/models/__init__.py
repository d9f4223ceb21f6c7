"""Models, and their construction from settings.

To add a model, add its module, and an entry in `LANGUAGE_MODELS` (or `OTHER_MODELS`) and in `ModelSettings`.
"""

from __future__ import annotations

from typing import Annotated, cast

from pydantic import Field

from limner.models.bag_of_words import BagOfWords, BagOfWordsSettings
from limner.models.dense_captioner import DenseCaptioner, DenseCaptionerSettings
from limner.models.hmm import HMM, HMMSettings
from limner.models.independent_descriptions import IndependentDescriptions, IndependentSettings
from limner.models.log_bilinear import LBL, LBLSettings
from limner.models.mrnn import MRNN, MRNNSettings
from limner.models.ngram import NGram, NGramSettings
from limner.models.nmt import NMT, NMTSettings
from limner.models.phrase_based import PhraseBased, PhraseBasedSettings
from limner.models.protocols import ConditionalLM, Model, ModelInputs, Output
from limner.models.rnn import RNN, RNNSettings
from limner.models.sequence_labeller import SequenceLabeller, SequenceLabellerSettings
from limner.models.show_and_tell import ShowAndTell, ShowAndTellSettings
from limner.models.show_attend_tell import ShowAttendTell, ShowAttendTellSettings
from limner.models.transformer import Transformer, TransformerSettings
from limner.models.two_tower import TwoTower, TwoTowerSettings
from limner.models.video_captioner import VideoCaptioner, VideoCaptionerSettings
from limner.settings import Settings

__all__ = [
    "LANGUAGE_MODELS",
    "MODELS",
    "OTHER_MODELS",
    "ConditionalLM",
    "Model",
    "ModelInputs",
    "ModelSettings",
    "Output",
    "build_model",
]

LANGUAGE_MODELS: dict[type[Settings], type] = {
    model.Settings: model
    for model in (
        BagOfWords,
        DenseCaptioner,
        HMM,
        IndependentDescriptions,
        LBL,
        MRNN,
        NGram,
        NMT,
        RNN,
        SequenceLabeller,
        ShowAndTell,
        ShowAttendTell,
        Transformer,
        VideoCaptioner,
    )
}
"""Class of each `ConditionalLM` by its settings class, which is the attribute `Settings` of the model."""

OTHER_MODELS: dict[type[Settings], type] = {model.Settings: model for model in (PhraseBased, TwoTower)}
"""Class of each model without `encode`, `start`, `step` and `forward`: of a search or a joint space of its own."""

MODELS = LANGUAGE_MODELS | OTHER_MODELS
"""Class of every model by its settings class."""

ModelSettings = Annotated[
    BagOfWordsSettings
    | DenseCaptionerSettings
    | HMMSettings
    | IndependentSettings
    | LBLSettings
    | MRNNSettings
    | NGramSettings
    | NMTSettings
    | PhraseBasedSettings
    | RNNSettings
    | SequenceLabellerSettings
    | ShowAndTellSettings
    | ShowAttendTellSettings
    | TransformerSettings
    | TwoTowerSettings
    | VideoCaptionerSettings,
    Field(discriminator="name"),
]


def build_model(settings: ModelSettings, inputs: ModelInputs) -> Model:
    """Build the model that the class of its settings selects, with random weights, in training mode, on the CPU.

    Raises:
        SettingsError: the model needs image features that `inputs` does not have.
    """
    return cast(Model, MODELS[type(settings)](settings, inputs))
