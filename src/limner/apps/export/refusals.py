"""Models that have no graphs, each with its reason."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from limner.errors import SettingsError
from limner.layers import kernels
from limner.layers.stack import BidirectionalLayers, RecurrentLayer
from limner.models import Model
from limner.models.capabilities import CountBasedModel, PairRanker
from limner.models.phrase_based import PhraseBased
from limner.models.protocols import ConditionalLMSettings
from limner.runs.trained_model import TrainedModel
from limner.text.labels import LABEL_LANGUAGES


def require_exportable(trained: TrainedModel) -> None:
    """Check that a model can be recorded as graphs that hold for any input.

    Raises:
        SettingsError: it cannot; the message has the reason.
    """
    settings, labels = trained.recipe.model, trained.recipe.data.lang in LABEL_LANGUAGES
    if reason := refusal(settings, trained.model, labels=labels):
        raise SettingsError(
            f"model '{settings.name}' cannot be exported: {reason}; choose a neural captioner or translator"
        )


def refusal(settings: ConditionalLMSettings, model: Model, *, labels: bool) -> str:
    """Return why a model cannot be exported; empty if it can."""
    if labels:
        return "it gives labels, not sentences"
    if settings.describes_regions:
        return "it finds regions, whose number differs between images"
    if isinstance(model, PairRanker):
        return "it ranks images and sentences, and generates none"
    if isinstance(model, PhraseBased):
        return "it has a search of its own"
    if isinstance(model, CountBasedModel):
        return "its probabilities are looked up in tables of counts"
    if settings.has_growing_state:
        return "its state grows with the sentence"
    if "sample" in (settings.hard_attention or ""):
        return "its locations are drawn at random (model.test_attention=sample)"
    modules = list(cast(nn.Module, model).modules())
    encoders = [module for module in modules if isinstance(module, BidirectionalLayers)]
    if settings.translates and not encoders and any(isinstance(module, RecurrentLayer) for module in modules):
        return "its source sentences are read word by word, in a loop of any length"
    cells = [layer.cell for encoder in encoders for layer in encoder.forwards if isinstance(layer, RecurrentLayer)]
    if loops := [type(cell).__name__ for cell in cells if not kernels.applies_to(cell, torch.zeros(0))]:
        return f"ONNX has no operator of its encoder's {loops[0]} for sentences of any length"
    return ""
