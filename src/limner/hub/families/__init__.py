"""Families of models, one module each with its class as `FAMILY`; a new family is a new module."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from limner.errors import RunError, did_you_mean
from limner.hub.networks import HubModel
from limner.runs.hub_folders import model_type


def family_of(folder: Path) -> type[HubModel]:
    """Return the class of the family of a folder, by the `model_type` of its config.json.

    Raises:
        RunError: the family is not known.
    """
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    families: dict[str, type[HubModel]] = {
        name: module.FAMILY for module in modules for name in module.FAMILY.model_types
    }
    name = model_type(folder) or ""
    if name not in families:
        raise RunError(
            f"{folder}: model_type '{name}': expected one of {', '.join(sorted(families))}"
            f"{did_you_mean(name, families)}; choose a model of one of them"
        )
    return families[name]
