"""Ownership of a run directory: no run is overwritten, and only the same training is resumed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from limner.errors import RunError, SettingsError
from limner.files import write_text
from limner.runs.recipe import Recipe
from limner.runs.trained_model import ModelConfig
from limner.storage.json_text import to_json
from limner.structured_files import read_json_file


def claim(out: Path, config: ModelConfig, resume: bool) -> None:
    """Record in a new run directory what is trained there, or check that the recorded training is the same.

    Args:
        out: run directory.
        config: configuration of the model to train.
        resume: whether an existing run is to be continued.

    Raises:
        RunError: the directory contains other files, or a run and `resume` is false, or a run of another training.
    """
    recipe_file = out / "recipe.json"
    current = {
        "recipe": config.recipe,
        "data": config.provenance["collection_fingerprint"],
        "features": [spec.fingerprint for spec in config.features],
        "init": config.provenance.get("init_sha256"),  # it determines the vocabularies, too
        "image_encoder": config.provenance.get("image_encoder_sha256"),
    }
    if not recipe_file.exists():
        if any(not file.name.startswith(".") for file in out.iterdir()):
            raise RunError(f"{out}: expected an empty folder or a Limner run, found other files; name another --out")
        write_text(recipe_file, to_json(current, indent=1))
        return
    if not resume:
        raise RunError(f"{out}: already contains a run; add --resume to continue it, or name another --out")
    try:
        recorded = dict(read_json_file(recipe_file))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            f"{recipe_file}: damaged ({error}), so the run cannot be resumed; restore the file, or name another --out"
        ) from None
    with suppress(SettingsError):  # settings that an older version did not have get their defaults
        recorded["recipe"] = Recipe.parse(recorded.get("recipe", {})).model_dump(mode="json")
    for key in current:
        before, now = recorded.get(key), current[key]
        if key == "recipe":
            before, now = _decisive_settings(before), _decisive_settings(now)
        if before != now:
            difference = _first_difference(before, now, key)
            raise RunError(f"{out}: cannot resume, {difference}; use the same {key}, or name another --out")


def _decisive_settings(recipe: Any) -> Any:  # noqa: ANN401  (arbitrary JSON)
    """Return the settings that affect the training.

    Of `evaluation` these are the tokens that perplexity skips; `decoding` only if validation decodes.
    """
    try:
        training, decisive = recipe["training"], dict(recipe)
        if {training["metric"], *training["metrics"]} <= {"perplexity"}:
            decisive.pop("decoding", None)
        return {**decisive, "evaluation": {"skip_words": recipe["evaluation"]["skip_words"]}}
    except (KeyError, TypeError):  # a recipe of another version: the difference is reported
        return recipe


def _first_difference(before: object, now: object, key: str) -> str:
    """Name the first key in which two nested values differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                return _first_difference(before.get(name), now.get(name), f"{key}.{name}")
    return f"{key} was {before!r} and is now {now!r}"
