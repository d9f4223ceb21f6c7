"""Families of models: the classes with `model_types` in the modules of this package; a new family is a new class."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from limner.errors import RunError, did_you_mean
from limner.hub.networks import HubModel
from limner.runs.pretrained import model_type


def family_of(folder: Path) -> type[HubModel]:
    """Return the class of the family of a folder, by the `model_type` of its config.json; RunError for unknown ones."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    members = [member for module in modules for member in vars(module).values() if isinstance(member, type)]
    families: dict[str, type[HubModel]] = {
        name: member
        for member in members
        if issubclass(member, HubModel)
        for name in vars(member).get("model_types", ())
    }
    name = model_type(folder) or ""
    if name not in families:
        known = ", ".join(sorted(families))
        raise RunError(f"{folder}: model_type '{name}': expected one of {known}{did_you_mean(name, families)}")
    return families[name]
