"""The models: the only list of them. A new model is a file, and an entry here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast

from pydantic import Field

from limner.models.bag_of_words import Bow, BowSettings
from limner.models.independent_descriptions import IndependentDescriptions, IndependentSettings
from limner.models.log_bilinear import LBL, LBLSettings
from limner.models.mrnn import MRNN, MRNNSettings
from limner.models.ngram import NGram, NGramSettings
from limner.models.nmt import NMT, NMTSettings
from limner.models.protocols import ConditionalLM, Model, Output, PairScorer

__all__ = ["MODELS", "ConditionalLM", "Model", "ModelSettings", "Output", "PairScorer", "build_model"]

MODELS = {BowSettings: Bow, LBLSettings: LBL, MRNNSettings: MRNN, NGramSettings: NGram}

TRANSLATORS = {IndependentSettings: IndependentDescriptions, NMTSettings: NMT}
"""Models that read a source sentence, so their settings say `translates`, and are told the size of its vocabulary."""

ModelSettings = Annotated[
    BowSettings | IndependentSettings | LBLSettings | MRNNSettings | NGramSettings | NMTSettings,
    Field(discriminator="name"),
]


def build_model(
    settings: ModelSettings,
    vocab_size: int,
    image: Mapping[str, tuple[int, ...]],
    source_vocab_size: int | None = None,
) -> Model:
    """Build the model its settings name, with fresh weights.

    Args:
        settings: the model's own settings.
        vocab_size: V, signs included.
        image: shape of each form of picture the batches will hold: vector (D,), grid (L, D), maps (C, H, W).
        source_vocab_size: V of the language that is translated from; None for a model that translates nothing.
    """
    if source_vocab_size is not None:
        return cast(Model, TRANSLATORS[type(settings)](settings, vocab_size, image, source_vocab_size))
    return cast(Model, MODELS[type(settings)](settings, vocab_size, image))
