"""The models: the only list of them. A new model is a file, and an entry here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast

from pydantic import Field

from limner.models.bow import Bow, BowSettings
from limner.models.lbl import LBL, LBLSettings
from limner.models.mrnn import MRNN, MRNNSettings
from limner.models.ngram import NGram, NGramSettings
from limner.models.protocols import ConditionalLM, Model, Output, PairScorer

__all__ = ["MODELS", "ConditionalLM", "Model", "ModelSettings", "Output", "PairScorer", "build_model"]

MODELS = {BowSettings: Bow, LBLSettings: LBL, MRNNSettings: MRNN, NGramSettings: NGram}

ModelSettings = Annotated[BowSettings | LBLSettings | MRNNSettings | NGramSettings, Field(discriminator="name")]


def build_model(settings: ModelSettings, vocab_size: int, visual: Mapping[str, tuple[int, ...]]) -> Model:
    """Build the model its settings name, with fresh weights.

    Args:
        settings: the model's own settings.
        vocab_size: V, signs included.
        visual: shape of each form of picture the batches will hold: vector (D,), grid (L, D), maps (C, H, W).
    """
    return cast(Model, MODELS[type(settings)](settings, vocab_size, visual))
