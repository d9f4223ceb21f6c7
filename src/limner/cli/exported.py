"""Exported models in the place of runs: recognised without heavy imports, and options that they do not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from limner.cli.options import refuse
from limner.errors import SettingsError

MANIFEST = "generation.json"
"""File by which an exported model is recognised; see `limner.runtime.manifest`, whose import is not needed for runs."""


def is_exported(folder: Path) -> bool:
    """Whether a folder of --model is an exported model."""
    return (folder / MANIFEST).is_file()


def require_exported_options(models: Sequence[Path], options: Mapping[str, object], device: str) -> None:
    """Refuse what an exported model does not do; nothing is refused for a run.

    Args:
        models: folders of --model, of which the first is an exported model.
        options: values of options that need the run itself, by name.
        device: device of --device.

    Raises:
        SettingsError: there are several models, or such an option was given.
    """
    if not is_exported(models[0]):
        return
    if len(models) > 1:
        raise SettingsError(f"--model {models[0]}: an exported model is no part of an ensemble; name runs, or it alone")
    run = f"needs a run, and {models[0]} is an exported model; name the run, or leave the option out"
    refuse({**options, "--device": device if device != "cpu" else None}, run)
