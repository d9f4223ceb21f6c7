"""Models in the format of transformers: their names (`hub:ORG/NAME@REVISION`) and their folders.

Importing this module imports neither torch nor transformers. Only a name that begins with `hub:` opens a connection.
"""

from __future__ import annotations

from pathlib import Path

from limner.files.structured import StructureError, read_json_file

HUB = "hub:"
"""Beginning of the name of a model of the Hugging Face Hub."""


def local_folder(run: Path | str) -> Path | str:
    """Return the folder of a model of the hub, downloaded if it is not yet on this machine; other runs unchanged.

    Raises:
        BackboneError: the hub has no such model or revision, cannot be reached, or has no weights in safetensors.
        MissingExtraError: the library that downloads it is not installed.
    """
    name = str(run)
    if not name.startswith(HUB):
        return run
    try:
        from limner.features.encoders.transformers import download
    except ModuleNotFoundError as error:
        from limner.errors import missing_extra

        raise missing_extra(error, name) from None
    place, _, revision = name.removeprefix(HUB).partition("@")
    patterns = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm")
    return download(place, revision or None, patterns, "check the name and the connection, or name a local folder")


def model_name(run: Path | str) -> str:
    """Return the name under which a model is served: of its folder, or of its repository of the hub."""
    name = str(run)
    return name.partition("@")[0].rpartition("/")[2] if name.startswith(HUB) else Path(run).resolve().name


def model_type(folder: Path) -> str | None:
    """Return the family of a model in the format of transformers, its `model_type`; None for other folders."""
    try:
        config = read_json_file(folder / "config.json")
    except (OSError, StructureError):
        return None
    found = config.get("model_type") if isinstance(config, dict) and "recipe" not in config else None
    return found if isinstance(found, str) else None
