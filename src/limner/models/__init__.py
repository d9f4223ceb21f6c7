"""Models, and their construction from settings.

To add a model, add its module and an entry in `MODELS`; `limner.register` adds the class of another program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Union, cast

from pydantic import Field

from limner.models.bag_of_words import BagOfWords
from limner.models.dense_captioner import DenseCaptioner
from limner.models.hmm import HMM
from limner.models.independent_descriptions import IndependentDescriptions
from limner.models.log_bilinear import LBL
from limner.models.mrnn import MRNN
from limner.models.ngram import NGram
from limner.models.nmt import NMT
from limner.models.phrase_based import PhraseBased
from limner.models.protocols import ConditionalLMSettings, Model, ModelInputs
from limner.models.rnn import RNN
from limner.models.sequence_labeller import SequenceLabeller
from limner.models.show_and_tell import ShowAndTell
from limner.models.show_attend_tell import ShowAttendTell
from limner.models.transformer import Transformer
from limner.models.two_tower import TwoTower
from limner.models.video_captioner import VideoCaptioner

__all__ = ["MODELS", "Model", "ModelInputs", "ModelSettings", "build_model"]

MODELS: dict[type[ConditionalLMSettings], type] = {
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
        PhraseBased,
        RNN,
        SequenceLabeller,
        ShowAndTell,
        ShowAttendTell,
        Transformer,
        TwoTower,
        VideoCaptioner,
    )
}
"""Class of every model by its settings class, which is the attribute `Settings` of the model.

A `PhraseBased` and a `TwoTower` have their own search or joint space in place of `encode`, `start` and `step`.
"""

if TYPE_CHECKING:
    ModelSettings = ConditionalLMSettings
else:
    ModelSettings = Annotated[Union[tuple(MODELS)], Field(discriminator="name")]  # noqa: UP007


def build_model(settings: ModelSettings, inputs: ModelInputs) -> Model:
    """Build the model of its settings, random, in training mode, on the CPU; SettingsError for missing features."""
    return cast(Model, MODELS[type(settings)](settings, inputs))
