"""Whose a run folder is: nothing is overwritten, and nothing is resumed but the same training."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from limner.errors import RunError, SettingsError
from limner.files import write_text
from limner.runs.recipe import Recipe
from limner.runs.trained_model import Config


def claim(out: Path, config: Config, resume: bool) -> None:
    """Make the run folder this run's: refuse to overwrite another one, or to resume something else."""
    recipe_file = out / "recipe.json"
    mine = {
        "recipe": config.recipe,
        "data": config.provenance["collection_fingerprint"],
        "features": _prints(config),
        "init": config.provenance.get("init_sha256"),  # a run has the words of the one it began with
    }
    if not recipe_file.exists():
        if any(not file.name.startswith(".") for file in out.iterdir()):
            raise RunError(f"{out}: not empty and not a run of Limner; name another --out")
        write_text(recipe_file, json.dumps(mine, indent=1))
        return
    if not resume:
        raise RunError(f"{out}: holds a run already; add --resume to go on with it, or name another --out")
    try:
        theirs = dict(json.loads(recipe_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            f"{recipe_file}: damaged ({error}), so nobody knows what to resume; restore it, or name another --out"
        ) from None
    with suppress(SettingsError):  # settings that came since have their defaults in an older run
        theirs["recipe"] = Recipe.parse(theirs.get("recipe", {})).model_dump(mode="json")
    for what in mine:
        before, now = (_deciding(of.get(what)) if what == "recipe" else of.get(what) for of in (theirs, mine))
        if before != now:
            difference = _first_difference(before, now, what)
            raise RunError(f"{out}: cannot resume, {difference}; use the same {what}, or name another --out")


def _deciding(recipe: Any) -> Any:  # noqa: ANN401  (whatever JSON holds)
    """What of a recipe decides how it trains.

    Of `evaluation` these are the words that perplexity counts; `search` only where validation writes sentences.
    """
    try:
        training, kept = recipe["training"], dict(recipe)
        if {training["metric"], *training["metrics"]} <= {"perplexity"}:
            kept.pop("decoding", None)
        return {**kept, "evaluation": {"skip_words": recipe["evaluation"]["skip_words"]}}
    except (KeyError, TypeError):  # of another version: the difference is told
        return recipe


def _prints(config: Config) -> list[str]:
    return [spec.fingerprint for spec in config.features]


def _first_difference(theirs: object, mine: object, key: str) -> str:
    """Name the first key in which two nested values differ."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for name in sorted({*theirs, *mine}):
            if theirs.get(name) != mine.get(name):
                return _first_difference(theirs.get(name), mine.get(name), f"{key}.{name}")
    return f"{key} was {theirs!r} and is now {mine!r}"
