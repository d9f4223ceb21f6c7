"""Models that have no graphs, each with its reason."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from limner.errors import SettingsError
from limner.layers.fused import recurrent as fused
from limner.layers.stack import BidirectionalLayers, RecurrentLayer
from limner.models.protocols import CountBasedModel
from limner.runs.trained_model import TrainedModel
from limner.text.labels import LABEL_LANGUAGES


def require_exportable(trained: TrainedModel) -> None:
    """Check that a model can be recorded as graphs that hold for any input.

    Raises:
        SettingsError: it cannot; the message has the reason.
    """
    if reason := _reason(trained):
        raise SettingsError(
            f"model '{trained.recipe.model.name}' cannot be exported: {reason}; export a neural captioner or translator"
        )


def _reason(trained: TrainedModel) -> str:
    """Return why a model cannot be exported; empty if it can."""
    settings = trained.recipe.model
    if trained.recipe.data.lang in LABEL_LANGUAGES:
        return "it gives labels, not sentences"
    if settings.describes_regions:
        return "it finds regions, whose number differs between images"
    if isinstance(trained.model, CountBasedModel):
        return "its tables of counts are not computed by tensors"
    if "sample" in (settings.latent_choice or ""):
        return "its locations are drawn at random (model.test_attention=sample)"
    for module in cast(nn.Module, trained.model).modules():
        if isinstance(module, BidirectionalLayers):
            for layer in module.forwards:
                assert isinstance(layer, RecurrentLayer)
                if not fused.applies_to(layer.cell, torch.zeros(0)):
                    return f"ONNX has no operator of the cell '{layer.settings.cell.name}' for sentences of any length"
    return ""
