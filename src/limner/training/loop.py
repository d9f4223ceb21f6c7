"""The training loop: set up a model and its optimizer, then run the stages of the training one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from limner.data.collection import Collection
from limner.errors import RunError
from limner.files import locked
from limner.runs.recipe import Recipe
from limner.runs.trained_model import WEIGHTS, TrainedModel
from limner.training.context import Interruption, Optimization, TrainingContext, TrainProgress
from limner.training.launch import Devices, launch
from limner.training.logging import RunLog
from limner.training.optimizers import ExponentialMovingAverage, build_optimizer
from limner.training.processes import Processes
from limner.training.resume_check import claim, require_run
from limner.training.setup import prepare
from limner.training.stages import Stage, schedule_stages
from limner.training.state import Timestamp, TrainState, find_state, load_rng_state, load_state

logger = logging.getLogger(__name__)


def train(
    recipe: Recipe,
    collection: Collection,
    out: Path,
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
        resume: continue an interrupted run; on a CPU the weights are bit-identical to those of an uninterrupted run.
            Settings that do not affect the weights may differ: `evaluation` except `skip_words`, and `decoding` if
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
    began = Timestamp.now()
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
    """Hold the run directory in the first process; provide the state to resume from to all of them, None for none."""
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
    _require_best_weights(out, state)
    if stored is None or not load_rng_state(stored, processes.rank):
        processes.seed(settings.seed, state.step)
    return Optimization(processes.fabric, wrapped_model, wrapped_optimizer, optimizer, ema), state


def _require_best_weights(out: Path, state: TrainState) -> None:
    """Check that the best weights of a resumed training are there; RunError if not."""
    if state.best is not None and not (out / WEIGHTS).exists():
        raise RunError(
            f"{out}: its best weights, {WEIGHTS}, are gone, and the state to resume from holds the last ones only; "
            "restore the file, or train in another --out"
        )


def _log_origin(trained: TrainedModel) -> None:
    """Log what is left out of the data, and where pre-trained embeddings and weights come from."""
    facts = trained.config.provenance
    for line in facts.get("notes", ()):
        logger.warning("%s", line)
    if "embeddings" in facts:
        logger.info("pre-trained embeddings: %s; the others are drawn from the same distribution", facts["embeddings"])
    for key, weights in (("init", "initial weights"), ("image_encoder", "initial weights of the image encoder")):
        if key in facts:
            logger.info("%s: %s", weights, facts[key])
