"""Families of models: a new family is a class in a module of this package, and an entry of `FAMILIES`."""

from __future__ import annotations

from pathlib import Path

from limner.errors import RunError, did_you_mean
from limner.hub.families.joint_space import HubSpace
from limner.hub.families.text_generation import (
    Blip,
    Blip2,
    Git,
    MBart50,
    PromptedModel,
    TextTranslator,
    VisionEncoderDecoder,
)
from limner.hub.networks import HubModel
from limner.runs.pretrained import model_type

FAMILIES: dict[str, type[HubModel]] = {
    name: family
    for family in (Blip, Blip2, Git, HubSpace, MBart50, PromptedModel, TextTranslator, VisionEncoderDecoder)
    for name in family.model_types
}
"""Class of each `model_type`."""


def family_of(folder: Path) -> type[HubModel]:
    """Return the class of the family of a folder, by the `model_type` of its config.json; RunError if unknown."""
    name = model_type(folder) or ""
    if name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise RunError(f"{folder}: model_type '{name}': expected one of {known}{did_you_mean(name, FAMILIES)}")
    return FAMILIES[name]
