"""Ownership of a run directory: no run is overwritten, and only the same training is resumed, or one of more epochs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from limner.errors import RunError, SettingsError, did_you_mean
from limner.files import write_text
from limner.files.structured import read_json_file
from limner.runs.recipe import Recipe
from limner.runs.trained_model import WEIGHTS, ModelConfig
from limner.storage.json_text import to_json
from limner.training.state import find_state

INIT = "to train on with these weights, leave --resume out, add '--init {run}' and name another --out"
"""Remedy where a training cannot be extended."""


def require_run(out: Path) -> None:
    """Check that there is a run to resume, so that a mistyped name does not start another training.

    Raises:
        RunError: the folder does not exist.
    """
    if not out.exists():
        similar = did_you_mean(out.name, (path.name for path in out.parent.glob("*") if path.is_dir()))
        raise RunError(f"{out}: no such run to resume; leave --resume out to start one{similar}")


def has_results(out: Path) -> bool:
    """Whether a training saved weights or a state in its run directory; one that failed before may start again."""
    return (out / WEIGHTS).exists() or find_state(out) is not None


def claim(out: Path, config: ModelConfig, resume: bool) -> None:
    """Record in a new run directory what is trained there, or check that the recorded training is the same.

    A directory in which a training ended before it saved anything is a new one. A training may be extended by more
    epochs, or by more validations without improvement (`patience`): the longer one is recorded.

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
    if not recipe_file.exists() or not (resume or has_results(out)):
        if not recipe_file.exists() and any(not file.name.startswith(".") for file in out.iterdir()):
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
    extended = _extend(recorded, current, out)
    for key in current:
        before, now = recorded.get(key), current[key]
        if key == "recipe":
            before, now = _decisive_settings(before), _decisive_settings(now)
        if before != now:
            difference = _first_difference(before, now, key)
            raise RunError(f"{out}: cannot resume, {difference}; use the same {key}, or name another --out")
    if extended:
        write_text(recipe_file, to_json(current, indent=1))


def _extend(recorded: dict[str, Any], current: dict[str, Any], run: Path) -> bool:
    """Record the epochs and the patience of a longer training in place of those of the recorded one.

    Raises:
        RunError: there are more epochs, and the learning rate or a later stage depends on their number.
    """
    try:
        before, now = recorded["recipe"]["training"], current["recipe"]["training"]
        longer = {name for name in ("epochs", "patience") if _is_longer(before[name], now[name])}
    except (KeyError, TypeError):  # a recipe of another version: the difference is reported
        return False
    schedule = now["schedule"]["name"]
    if "epochs" in longer and schedule in ("cosine", "linear"):
        raise RunError(
            f"{run}: cannot resume with training.epochs={now['epochs']} in place of {before['epochs']}: the learning "
            f"rate of the schedule '{schedule}' depends on the number of epochs; {INIT.format(run=run)}"
        )
    if longer and now["train_on_val_epochs"]:
        raise RunError(
            f"{run}: cannot resume with another training.{min(longer)}: training on the validation split follows the "
            f"last epoch; {INIT.format(run=run)}"
        )
    before.update({name: now[name] for name in longer})
    return bool(longer)


def _is_longer(before: int | None, now: int | None) -> bool:
    """Whether a limit is higher than before; None is no limit."""
    return before is not None and (now is None or now > before)


def _decisive_settings(recipe: Any) -> Any:  # noqa: ANN401  (arbitrary JSON)
    """Return the settings that affect the training.

    Of `evaluation` these are the tokens that perplexity skips; `decoding` only if validation decodes. The description
    and how often the training is saved do not affect it.
    """
    try:
        training, decisive = dict(recipe["training"]), dict(recipe)
        decisive.pop("description", None)
        training.pop("save_every", None)
        if {training["metric"], *training["metrics"]} <= {"perplexity"}:
            decisive.pop("decoding", None)
        return {**decisive, "training": training, "evaluation": {"skip_words": recipe["evaluation"]["skip_words"]}}
    except (KeyError, TypeError):  # a recipe of another version: the difference is reported
        return recipe


def _first_difference(before: object, now: object, key: str) -> str:
    """Name the first key in which two nested values differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                return _first_difference(before.get(name), now.get(name), f"{key}.{name}")
    return f"{key} was {before!r} and is now {now!r}"
