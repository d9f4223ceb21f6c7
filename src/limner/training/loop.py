"""The training loop: set up a model and its optimizer, then run the stages of the training one after the other.

No run is overwritten, and only the same training is resumed, or one of more epochs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from limner.data.collection import Collection
from limner.errors import RunError, SettingsError, did_you_mean
from limner.files import locked, write_text
from limner.files.structured import read_json_file
from limner.runs.recipe import Recipe
from limner.runs.trained_model import WEIGHTS, ModelConfig, TrainedModel
from limner.storage.json_text import to_json
from limner.training.context import Interruption, Optimization, RunLog, TrainingContext, TrainProgress
from limner.training.optimizers import ExponentialMovingAverage, build_optimizer
from limner.training.processes import Devices, Processes, launch
from limner.training.setup import prepare
from limner.training.stages import Stage, schedule_stages
from limner.training.state import Timestamp, TrainState, find_state, load_rng_state, load_state

logger = logging.getLogger(__name__)


def train(
    recipe: Recipe,
    collection: Collection,
    out: Path | str,
    *,
    resume: bool = False,
    init: Path | None = None,
    device: str | Devices | None = None,
    command: str = "limner.train",
    on_progress: Callable[[TrainProgress], None] | None = None,
) -> Path:
    """Train a model and save its best weights.

    Args:
        recipe: settings of the data, the model and the training.
        collection: collection with the training and the validation split.
        out: run directory: receives the model, the log and the state to resume from.
        resume: continue an interrupted run; on a CPU the weights are bit-identical to the weights of an uninterrupted
            run. Settings that do not affect the weights may differ: `evaluation` except `skip_words`, and `decoding` if
            validation does not decode. Higher `training.epochs` or `training.patience` extend the training.
        init: run whose vocabularies are used, and its weights where names and shapes match.
        device: device to train on: cpu, cuda or cuda:N; None for cuda where it is available, else cpu. Or several, of
            one or more machines: each has a process that runs the whole program, on its share of every batch.
        command: command line, stored with the model.
        on_progress: called after every step.

    Returns:
        `out`.

    Raises:
        RunError: `out` contains a run and `resume` is false, or a run of another recipe, other data or another `init`;
            `resume` is true and `out` does not exist; another process is training it; or a file cannot be written.
        SettingsError: a device is not available, or the model is not trained on several.
        TrainingError: there are no training examples, `training.metric` cannot be computed on this machine, or the
            loss is not finite.
    """
    began, out = Timestamp.now(), Path(out)
    if resume:
        require_run(out)
    devices = device if isinstance(device, Devices) else Devices(device)
    processes = Processes(launch(recipe, devices))
    with processes.ending_together():
        processes.fabric.seed_everything(recipe.training.seed, verbose=False)
        trained, training_set, validation_set = prepare(recipe, collection, command, init, devices)
        with _claimed(out, trained, resume, processes) as stored:
            optimization, state = _set_up(processes, trained, stored, out)
            state.counted_until = began
            records = (out, state, RunLog(out, state, processes.first), Interruption(), optimization, collection)
            shown = on_progress if processes.first else None
            run = TrainingContext(trained, training_set, validation_set, *records, processes, shown)
            stages = schedule_stages(run)
            with run.interruption if optimization else nullcontext():  # Ctrl-C waits only where a state can be saved
                for stage in _remaining_epochs(run, stages):
                    stage.run_epoch(run)
                    run.save_state()
                    if processes.any(run.interruption.requested):
                        raise KeyboardInterrupt
            run.save_times()
            run.log.close()
    return out


def _remaining_epochs(run: TrainingContext, stages: Sequence[Stage]) -> Iterator[Stage]:
    """Yield the stage of every epoch that is not done, and start the stages that follow one another."""
    for number, stage in enumerate(stages):
        if number < run.state.stage:
            continue
        if number > run.state.stage:
            run.state.stage = number
            stage.start(run)
        while not stage.finished(run):
            yield stage


@contextmanager
def _claimed(out: Path, trained: TrainedModel, resume: bool, processes: Processes) -> Iterator[Path | None]:
    """Lock the run directory in the first process; yield the state to resume from in every process, or None."""
    if not processes.first:
        yield processes.broadcast(None)
        return
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, RunError):
        claim(out, trained.config, resume)
        stored = find_state(out) if resume else None
        if stored is None:
            _log_origin(trained)
        yield processes.broadcast(stored)


def _set_up(
    processes: Processes, trained: TrainedModel, stored: Path | None, out: Path
) -> tuple[Optimization | None, TrainState]:
    """Build the optimizer and the weight average, and load the stored state; a count-based model has none of them."""
    if not trained.recipe.model.has_gradients:
        return None, TrainState()
    settings = trained.recipe.training
    optimizer = build_optimizer(trained.model.named_parameters(), settings)
    wrapped_model, wrapped_optimizer = processes.fabric.setup(trained.model, optimizer)
    ema = ExponentialMovingAverage(trained.model.parameters(), settings.ema_decay) if settings.ema_decay else None
    state = load_state(stored, trained.model, optimizer, ema) if stored else TrainState()
    if state.best is not None and not (out / WEIGHTS).exists():
        raise RunError(
            f"{out}: its best weights, {WEIGHTS}, are gone, and the state to resume from holds the last weights only; "
            "restore the file, or train in another --out"
        )
    if stored is None or not load_rng_state(stored, processes.rank):
        processes.seed(settings.seed, state.step)
    return Optimization(processes.fabric, wrapped_model, wrapped_optimizer, optimizer, ema), state


def _log_origin(trained: TrainedModel) -> None:
    """Log the excluded data, and the origin of pre-trained embeddings and weights."""
    facts = trained.config.provenance
    for line in facts.get("notes", ()):
        logger.warning("%s", line)
    if "embeddings" in facts:
        logger.info("pre-trained embeddings: %s; the others are drawn from the same distribution", facts["embeddings"])
    for key, weights in (("init", "initial weights"), ("image_encoder", "initial weights of the image encoder")):
        if key in facts:
            logger.info("%s: %s", weights, facts[key])


INIT = "to train on with these weights, leave --resume out, add '--init {run}' and name another --out"
"""Remedy where a training cannot be extended."""


def require_run(out: Path) -> None:
    """Check that there is a run to resume, so that a mistyped name does not start another training; or RunError."""
    if not out.exists():
        similar = did_you_mean(out.name, (path.name for path in out.parent.glob("*") if path.is_dir()))
        raise RunError(f"{out}: no such run to resume; leave --resume out to start one{similar}")


def claim(out: Path, config: ModelConfig, resume: bool) -> None:
    """Record the training in a new run directory, or check that the recorded training is the same.

    A directory in which a training ended before it saved anything is new. A training may be extended by more
    epochs, or by more validations without improvement (`patience`): the longer one is recorded.

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
    if not recipe_file.exists() or not (resume or (out / WEIGHTS).exists() or find_state(out) is not None):
        if not recipe_file.exists() and any(not file.name.startswith(".") for file in out.iterdir()):
            raise RunError(f"{out}: expected an empty folder or a Limner run, found other files; name another --out")
        write_text(recipe_file, to_json(current, indent=1))
        return
    if not resume:
        raise RunError(f"{out}: already contains a run; add --resume to continue it, or name another --out")
    try:
        recorded = dict(read_json_file(recipe_file))
        recorded["recipe"] = Recipe.parse(recorded["recipe"]).model_dump(mode="json")
    except (OSError, ValueError, TypeError, KeyError, SettingsError) as error:
        raise RunError(
            f"{recipe_file}: damaged ({error}), so the run cannot be resumed; restore the file, or name another --out"
        ) from None
    extended = _extend(recorded, current, out)
    for key in current:
        before, now = recorded.get(key), current[key]
        if key == "recipe":
            before, now = _decisive_settings(recorded[key]), _decisive_settings(now)
        if before != now:
            difference = _first_difference(before, now, key)
            raise RunError(f"{out}: cannot resume, {difference}; use the same {key}, or name another --out")
    if extended:
        write_text(recipe_file, to_json(current, indent=1))


def _extend(recorded: dict[str, Any], current: dict[str, Any], run: Path) -> bool:
    """Record the epochs and the patience of a longer training in place of the recorded values.

    Raises:
        RunError: there are more epochs, and the learning rate depends on their number; or training on the validation
            split follows the last epoch.
    """
    before, now = recorded["recipe"]["training"], current["recipe"]["training"]
    limits = [name for name in ("epochs", "patience") if before[name] is not None]  # None is no limit
    longer = {name for name in limits if now[name] is None or now[name] > before[name]}
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


def _decisive_settings(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that affect the training.

    Of `evaluation` these are the tokens that perplexity skips; `decoding` only if validation decodes. The description
    and how often the training is saved do not affect it.
    """
    training, decisive = dict(recipe["training"]), dict(recipe)
    decisive.pop("description", None)
    training.pop("save_every", None)
    if {training["metric"], *training["metrics"]} <= {"perplexity"}:
        decisive.pop("decoding", None)
    return {**decisive, "training": training, "evaluation": {"skip_words": recipe["evaluation"]["skip_words"]}}


def _first_difference(before: object, now: object, key: str) -> str:
    """Name the first key in which two nested values differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                return _first_difference(before.get(name), now.get(name), f"{key}.{name}")
    return f"{key} was {before!r} and is now {now!r}"
