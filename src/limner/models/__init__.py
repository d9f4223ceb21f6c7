"""Models, and their construction from settings.

To add a model, add its module, and an entry in `LANGUAGE_MODELS` (or `OTHER_MODELS`) and in `ModelSettings`.
"""

from __future__ import annotations

from typing import Annotated, cast

from pydantic import Field

from limner.device import AllocationLimit
from limner.models.bag_of_words import BagOfWords, BagOfWordsSettings
from limner.models.capabilities import CountBasedModel
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
    "has_gradients",
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


def build_model(settings: ModelSettings, inputs: ModelInputs, copies: int = 1) -> Model:
    """Build the model of the given settings, with randomly initialised weights.

    Args:
        settings: settings of the model, whose class selects the model.
        inputs: sizes of the vocabularies and shapes of the image features.
        copies: number of copies of the weights that memory is needed for, as a training has gradients and moments.

    Returns:
        Model in training mode, on the CPU.

    Raises:
        SettingsError: the model needs image features that `inputs` does not have.
        ResourceError: its weights do not fit into the memory of the machine.
    """
    with AllocationLimit(f"weights of model '{settings.name}'", f"lower {largest_size(settings)}", copies):
        return cast(Model, MODELS[type(settings)](settings, inputs))


def has_gradients(settings: ModelSettings) -> bool:
    """Whether the model of the given settings is trained by gradient descent, rather than estimated from counts."""
    return not issubclass(MODELS[type(settings)], CountBasedModel | PhraseBased)


def largest_size(settings: ModelSettings) -> str:
    """Return the assignment of the largest size of a model, for messages about memory."""
    sizes = {name: value for name, value in settings if isinstance(value, int) and not isinstance(value, bool)}
    name = max(sizes, key=sizes.__getitem__, default=None)
    return "the sizes of the model (model.*)" if name is None else f"model.{name} ({sizes[name]:,})"
