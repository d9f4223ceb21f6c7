"""Training, one page for every model."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from limner.data.batching import epoch_order, prefetch
from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.data.examples import Batch
from limner.decoding.scoring import score_examples
from limner.device import native_bf16
from limner.errors import RunError, TrainingError
from limner.evaluation.evaluate import validate
from limner.files import locked
from limner.metrics import higher_is_better
from limner.models import Output
from limner.models.protocols import CountBasedModel
from limner.runs.recipe import Recipe
from limner.runs.trained_model import (
    TrainedModel,
    load_tensors,
    load_weights,
    save_trained_model,
)
from limner.runs.training_settings import TrainingSettings
from limner.training.interruption import Interruption
from limner.training.logging import RunLog
from limner.training.losses import word_loss
from limner.training.optimizers import WeightAverage, build_optimizer, set_rates, squared_norm
from limner.training.resume_check import claim
from limner.training.setup import prepare
from limner.training.state import TrainState, find_state, load_state, save_state

logger = logging.getLogger(__name__)


class Progress(NamedTuple):
    """What a training tells after every step."""

    place: TrainState
    steps: int
    """Steps of all epochs."""


def train(
    recipe: Recipe,
    collection: Collection,
    out: Path,
    *,
    resume: bool = False,
    init: Path | None = None,
    command: str = "limner.train",
    note: Callable[[str], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Path:
    """Train a model and keep its best weights.

    Args:
        recipe: all settings.
        collection: its train split is learned from, its val split decides.
        out: the run folder: the model, its log, and the state to resume from.
        resume: go on with a run that was stopped; on a CPU the result is bit for bit that of one that was not. What
            is measured later (`evaluation`, but for skip_words) may be other than before, and so may `search` where
            validation writes no sentences.
        init: another run, whose vocabularies and, where name and shape agree, weights it begins with.
        command: how this was called, for the records.
        note: told in a line, before the first step, how many words the pre-trained vectors know, and which weights
            were taken from `init`; a run that goes on from a state has left them behind.
        progress: told after every step.

    Returns:
        `out`.

    Raises:
        RunError: `out` holds a run and `resume` is false, or a run of another recipe or other data, or one that
            began with another `init`, or that another process is training; or the disk refuses.
        TrainingError: there is nothing to learn from, the metric that decides cannot be measured here, or the loss
            stopped being a number.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it tells the precision on standard error
    fabric = Fabric(accelerator=device, devices=1, precision=precision(recipe.training, device))
    fabric.seed_everything(recipe.training.seed, verbose=False)
    learner, training_set, validation_set = prepare(recipe, collection, command, init)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, RunError):
        claim(out, learner.config, resume)
        stored = find_state(out) if resume else None
        if note is not None and stored is None and "embeddings" in learner.config.provenance:
            note(f"begins with {learner.config.provenance['embeddings']}; the others are drawn likewise")
        if note is not None and stored is None and "init" in learner.config.provenance:
            note(f"begins with {learner.config.provenance['init']}")
        if isinstance(learner.model, CountBasedModel):
            _count(learner, training_set, validation_set, out)
            return out
        _learn(fabric, learner, training_set, validation_set, out, stored, progress)
    return out


class _Run(NamedTuple):
    """What all epochs of a training share."""

    fabric: Fabric
    learner: TrainedModel
    optimizer: Optimizer
    average: WeightAverage | None
    place: TrainState
    log: RunLog
    out: Path
    interruption: Interruption
    progress: Callable[[Progress], None] | None

    @property
    def settings(self) -> TrainingSettings:
        return self.learner.recipe.training

    def save(self) -> None:
        save_state(self.out, self.learner.model, self.optimizer, self.average, self.place)


def _learn(
    fabric: Fabric,
    learner: TrainedModel,
    training_set: Examples,
    validation_set: Examples,
    out: Path,
    stored: Path | None,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Step by step through all epochs, from the beginning or from a stored state."""
    settings = learner.recipe.training
    optimizer = build_optimizer(learner.model.named_parameters(), settings)
    model, wrapped = fabric.setup(learner.model, optimizer)
    average = WeightAverage(learner.model.parameters(), settings.average) if settings.average else None
    place = load_state(stored, learner.model, optimizer, average) if stored else TrainState()
    _warn_of_few_updates(settings, math.ceil(len(training_set.epoch_rows(settings.seed, 0)) / settings.batch_size))
    with Interruption() as interruption:
        run = _Run(fabric, learner, optimizer, average, place, RunLog(out, place), out, interruption, progress)
        while place.target is None and not _finished(place, settings):
            _learn_epoch(run, model, wrapped, training_set)
            if place.epoch % settings.validate_every == 0 or place.epoch == settings.epochs:
                _validate(run, validation_set)
            if settings.fuse and _finished(place, settings):
                _begin_fused(run, training_set)
            run.save()
            interruption.obey()
        if settings.fuse:
            fused = Examples(
                [*training_set.items, *validation_set.items],
                training_set.target,
                training_set.features,
                source=training_set.source,
                max_tokens=learner.recipe.data.max_tokens,
            )
            while not _as_probable(place, settings):
                _learn_epoch(run, model, wrapped, fused)
                _keep_fused(run, validation_set)
                run.save()
                interruption.obey()
        run.log.close()


def _learn_epoch(run: _Run, model: Callable[[Batch], Output], wrapped: Optimizer, examples: Examples) -> None:
    """One epoch, or what is left of it; `model` and `wrapped` are Fabric's model and optimizer."""
    settings, place = run.settings, run.place
    rows, lengths = examples.epoch_rows(settings.seed, place.epoch), examples.lengths
    total = settings.epochs * math.ceil(len(rows) / settings.batch_size)
    order = epoch_order(
        [lengths[row] for row in rows], settings.batch_size, settings.bucket, settings.seed, place.epoch
    )
    batches = [[rows[k] for k in batch] for batch in order]
    run.learner.model.train()
    for batch in prefetch(examples.batch, batches[place.batch :], settings.prefetch):
        began = time.perf_counter()
        set_rates(run.optimizer, settings, place.step, place.epoch, total)
        batch = batch.to(run.fabric.device)
        loss = word_loss(model(batch), batch, settings.label_smoothing)
        _require_finite("loss", loss, place, batch.ids)
        weights = list(run.learner.model.parameters())
        cost = loss + settings.l2 * squared_norm(weights) if settings.l2 else loss
        run.optimizer.zero_grad()
        run.fabric.backward(cost)
        norm = clip_grad_norm_(weights, settings.clip_norm or math.inf)
        _require_finite("norm of the gradient", norm, place, batch.ids)
        wrapped.step()
        if run.average is not None:
            run.average.update(place.step)
        _advance(place, float(loss.detach()), int(batch.target_mask.sum()), time.perf_counter() - began)
        if place.step % settings.save_every == 0 or run.interruption.asked:
            run.save()
        run.interruption.obey()
        if run.progress is not None:
            run.progress(Progress(place, total))
    run.log.epoch(place)
    place.begin_epoch()


def _begin_fused(run: _Run, training_set: Examples) -> None:
    """Back to the best weights, noting how well they fit the training sentences.

    The paper says 'the objective value on the training set was recorded', not of which weights: those that are kept.
    """
    load_weights(run.learner.model, load_tensors(run.out / "model.safetensors"), str(run.out))
    run.optimizer.state.clear()
    if run.average is not None:
        run.average.restart()
    run.place.target = score_examples(run.learner.model, training_set).perplexity.value
    logger.info("training and validation data are fused until the latter's perplexity is %.3f", run.place.target)


def _keep_fused(run: _Run, validation_set: Examples) -> None:
    """Keep the weights after an epoch of fused data, and note how well they fit the validation sentences by now."""
    place = run.place
    if run.average is not None:
        run.average.swap()
    place.fused, place.reached = place.fused + 1, score_examples(run.learner.model, validation_set).perplexity.value
    run.log.validation(place, {"perplexity": place.reached})
    values = {"fused_epochs": place.fused, "perplexity_of_fused_validation_data": place.reached}
    _keep(run, values | ({} if place.best is None else {f"validation_{run.settings.metric}": place.best}))
    if run.average is not None:
        run.average.swap()


def _as_probable(place: TrainState, settings: TrainingSettings) -> bool:
    """Whether the validation sentences, now learned too, fit as the training sentences did when they were alone."""
    assert place.target is not None
    if place.reached is not None and place.reached <= place.target:
        return True
    if place.fused == settings.fuse:
        logger.warning("training.fuse: %d epochs have not reached the perplexity %.3f", place.fused, place.target)
    return place.fused == settings.fuse


def _warn_of_few_updates(settings: TrainingSettings, steps_per_epoch: int) -> None:
    """A recipe made for thousands of sentences teaches nothing to a model that is shown a few dozen."""
    steps, warmup = steps_per_epoch * settings.epochs, settings.schedule.warmup_steps
    if steps < 2 * warmup:
        logger.warning(
            "only %d updates, and the learning rate rises over the first %d: lower training.schedule.warmup_steps "
            "and training.batch_size, or raise training.epochs (the recipe own/photos suits small collections)",
            steps,
            warmup,
        )


def precision(settings: TrainingSettings, device: str) -> Literal["32-true", "bf16-mixed"]:
    """The precision Fabric is given."""
    if settings.precision == "auto":
        return "bf16-mixed" if native_bf16(torch.device(device)) else "32-true"
    return "bf16-mixed" if settings.precision == "bf16" else "32-true"


def _finished(place: TrainState, settings: TrainingSettings) -> bool:
    if place.epoch >= settings.epochs:
        return True
    if settings.patience is None or place.bad_epochs < settings.patience:
        return False
    logger.info("stopped after %d validations without a better %s", place.bad_epochs, settings.metric)
    return True


def _require_finite(what: str, value: Tensor, place: TrainState, ids: tuple[str, ...]) -> None:
    if not torch.isfinite(value):
        raise TrainingError(
            f"the {what} is {float(value.detach())} at step {place.step} (epoch {place.epoch}; "
            f"the batch begins with item '{ids[0]}'): lower training.optimizer.lr "
            "or set training.clip_norm; the last saved state is untouched"
        )


def _advance(place: TrainState, loss: float, words: int, seconds: float) -> None:
    place.step, place.batch = place.step + 1, place.batch + 1
    place.loss_sum, place.words = place.loss_sum + loss * words, place.words + words
    place.seconds += seconds


def _validate(run: _Run, examples: Examples) -> None:
    """Score and decode the validation split with the weights that would be kept, and keep them if they are better."""
    settings, place = run.settings, run.place
    if run.average is not None:
        run.average.swap()
    values = validate(run.learner, examples, tuple(dict.fromkeys((settings.metric, *settings.metrics))))
    value = values.get(settings.metric, math.nan)
    if not math.isfinite(value):
        raise TrainingError(
            f"training.metric: '{settings.metric}' has no finite value after epoch {place.epoch}: either it cannot be "
            "measured on this machine (the log says why), or the weights have grown beyond all bounds (lower "
            "training.optimizer.lr, or set training.clip_norm); the last saved state is untouched"
        )
    run.log.validation(place, values)
    sign = 1 if higher_is_better(settings.metric) else -1
    if place.best is None or sign * value > sign * place.best:
        place.best, place.bad_epochs = value, 0
        _keep(run, {f"validation_{name}": value for name, value in values.items()})
    else:
        place.bad_epochs += 1
    if run.average is not None:
        run.average.swap()


def _keep(run: _Run, values: dict[str, float]) -> None:
    """Save the model as it is now, with what is known of it."""
    facts = {**run.learner.config.provenance, "epochs": run.place.epoch, "seconds": round(run.place.seconds, 1)}
    facts |= {name: round(value, 3) for name, value in values.items()}
    config = run.learner.config.model_copy(update={"provenance": facts})
    save_trained_model(run.out, run.learner._replace(config=config))


def _count(learner: TrainedModel, training_set: Examples, validation_set: Examples, out: Path) -> None:
    """A model that is counted is done at once; it is measured and kept like one that learns.

    With `training.fuse` it is counted again once it is measured, now on training and validation sentences, which is all
    that going on with both can mean here.
    """
    assert isinstance(learner.model, CountBasedModel)
    settings, place = learner.recipe.training, TrainState(epoch=1)
    began = time.perf_counter()
    learner.model.fit(training_set.targets)
    place.seconds = time.perf_counter() - began
    values = validate(learner, validation_set, tuple(dict.fromkeys(("perplexity", *settings.metrics))))
    log = RunLog(out, TrainState())
    log.validation(place, values)
    log.close()
    facts: dict[str, object] = {f"validation_{name}": round(value, 3) for name, value in values.items()}
    if settings.fuse:
        began = time.perf_counter()
        learner.model.fit([*training_set.targets, *validation_set.targets])
        place.seconds += time.perf_counter() - began
        facts["fused"] = f"counted again together with the {len(validation_set):,} validation sentences"
    facts = {**learner.config.provenance, "epochs": 1, "seconds": round(place.seconds, 1), **facts}
    save_trained_model(out, learner._replace(config=learner.config.model_copy(update={"provenance": facts})))
