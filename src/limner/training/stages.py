"""Stages of a training: gradient descent, a single pass of counting, and training on the validation split as well.

A stage trains epoch by epoch until its stop criterion holds. `TrainState.stage` records the current stage, so that an
interrupted training continues within it.
"""

from __future__ import annotations

import logging
import math
from typing import Protocol

from limner.decoding.scoring import score_examples
from limner.errors import TrainingError
from limner.evaluation.validate import validate
from limner.metrics import higher_is_better
from limner.models.phrase_based import PhraseBased
from limner.models.protocols import CountBasedModel
from limner.models.two_tower import TwoTower
from limner.runs.trained_model import load_weights
from limner.storage.tensors import load_tensors
from limner.training.context import TrainingContext
from limner.training.epoch import CrossEntropy, Objective, train_epoch
from limner.training.matching import Matching
from limner.training.scst import SelfCritical
from limner.training.translation_tables import TranslationTableStage

logger = logging.getLogger(__name__)


class Stage(Protocol):
    """A part of a training with its own examples and its own stop criterion."""

    def start(self, run: TrainingContext) -> None:
        """Prepare the stage; not called when a training is resumed within it."""

    def finished(self, run: TrainingContext) -> bool:
        """Whether the stop criterion holds; evaluated between epochs."""

    def run_epoch(self, run: TrainingContext) -> None:
        """Train for one epoch, or for the remainder of an interrupted one, then validate and save the model."""


def schedule_stages(run: TrainingContext) -> list[Stage]:
    """Return the stages of a training in order."""
    count_based = isinstance(run.trained.model, CountBasedModel)
    if count_based:
        first: Stage = CountStage()
    elif isinstance(run.trained.model, PhraseBased):
        first = TranslationTableStage()
    elif isinstance(run.trained.model, TwoTower):
        first = GradientStage(Matching(run))
    elif run.settings.objective == "scst":
        first = GradientStage(SelfCritical(run), improves_model=True)
    else:
        first = GradientStage(CrossEntropy(run, run.training_set))
    stages = [first]
    if run.settings.train_on_val_epochs:
        stages.append(CountStage(joint=True) if count_based else TrainAndValidationStage())
    return stages


class GradientStage:
    """Gradient descent on the training split until `training.epochs` or `training.patience`; saves the best weights."""

    def __init__(self, objective: Objective, improves_model: bool = False) -> None:
        """Create the stage; with `improves_model`, the initial weights are validated too, and kept if the best."""
        self.objective, self.improves_model = objective, improves_model

    def start(self, run: TrainingContext) -> None:
        """Validate a trained model, and warn if the learning rate is still rising for most of the training."""
        if self.improves_model:
            self._validate(run)
        steps = run.settings.epochs * len(self.objective.epoch_batches(0))
        warmup = run.settings.schedule.warmup_steps
        if steps < 2 * warmup:
            logger.warning(
                "the training has %d steps, and the learning rate rises during the first %d: lower "
                "training.schedule.warmup_steps or training.batch_size, or raise training.epochs",
                steps,
                warmup,
            )

    def finished(self, run: TrainingContext) -> bool:
        """Whether all epochs are done, or `patience` validations in a row brought no improvement."""
        state, settings = run.state, run.settings
        if state.epoch >= settings.epochs:
            return True
        if settings.patience is None or state.bad_epochs < settings.patience:
            return False
        logger.info("stopped after %d validations without a better %s", state.bad_epochs, settings.metric)
        return True

    def run_epoch(self, run: TrainingContext) -> None:
        """Train on the training split; every `training.validate_every` epochs validate and save the best weights."""
        train_epoch(run, self.objective)
        if run.state.epoch % run.settings.validate_every == 0 or run.state.epoch == run.settings.epochs:
            self._validate(run)

    def _validate(self, run: TrainingContext) -> None:
        assert run.optimization is not None
        state, settings = run.state, run.settings
        with run.optimization.averaged_weights():
            names = dict.fromkeys((settings.metric, *settings.metrics))
            values = run.processes.broadcast(validate(run.trained, run.validation_set, names, run.processes))
            value = values.get(settings.metric, math.nan)
            if not math.isfinite(value):
                raise TrainingError(
                    f"training.metric: '{settings.metric}' has no finite value after epoch {state.epoch}: either it "
                    "cannot be computed on this machine (see the log), or the weights have diverged (lower "
                    "training.optimizer.lr or set training.clip_norm); the last saved state is unchanged"
                )
            run.log.validation(state, values)
            sign = 1 if higher_is_better(settings.metric) else -1
            if state.best is None or sign * value > sign * state.best:
                state.best, state.best_values, state.bad_epochs = value, values, 0
                run.save_model()
            else:
                state.bad_epochs += 1


class TrainAndValidationStage:
    """Gradient descent on the training and the validation split together, Kiros et al. (2014), section 7.2.

    Training continues from the best weights until the perplexity of the validation split has fallen to the perplexity
    that these weights had on the training split, for at most `training.train_on_val_epochs` epochs. The paper records
    "the objective value on the training set" without naming the weights; the best weights are used here.
    """

    def start(self, run: TrainingContext) -> None:
        """Load the best weights, clear the optimizer's state, and compute the perplexity to reach."""
        assert run.optimization is not None
        load_weights(run.trained.model, load_tensors(run.out / "model.safetensors"), str(run.out))
        run.optimization.optimizer.state.clear()
        if run.optimization.ema is not None:
            run.optimization.ema.restart()
        run.state.target_perplexity = score_examples(
            run.trained.model, run.training_set, shards=run.processes
        ).perplexity.value
        logger.info(
            "training on the training and validation splits until the validation perplexity is at most %.3f",
            run.state.target_perplexity,
        )

    def finished(self, run: TrainingContext) -> bool:
        """Whether the validation perplexity has reached the target, or all epochs of the stage are done."""
        state, limit = run.state, run.settings.train_on_val_epochs
        assert state.target_perplexity is not None
        if state.train_on_val_perplexity is not None and state.train_on_val_perplexity <= state.target_perplexity:
            return True
        if state.train_on_val_epochs == limit:
            logger.warning(
                "training.train_on_val_epochs: %d epochs have not reached the perplexity %.3f",
                limit,
                state.target_perplexity,
            )
        return state.train_on_val_epochs == limit

    def run_epoch(self, run: TrainingContext) -> None:
        """Train on both splits, compute the perplexity of the validation split and save the model."""
        assert run.optimization is not None
        state = run.state
        train_epoch(run, CrossEntropy(run, run.joint_set))
        with run.optimization.averaged_weights():
            scores = score_examples(run.trained.model, run.validation_set, shards=run.processes)
            perplexity = scores.perplexity.value
            state.train_on_val_epochs += 1
            state.train_on_val_perplexity = perplexity
            run.log.validation(state, {"perplexity": perplexity})
            run.save_model(train_on_val_epochs=state.train_on_val_epochs, train_on_val_perplexity=round(perplexity, 3))


class CountStage:
    """Estimation of a count-based model in one pass over the training split, or over both splits after a validation."""

    def __init__(self, joint: bool = False) -> None:
        self.joint = joint

    def start(self, run: TrainingContext) -> None:
        """Nothing to prepare."""

    def finished(self, run: TrainingContext) -> bool:
        """Whether the pass is done."""
        return (run.state.train_on_val_epochs if self.joint else run.state.epoch) > 0

    def run_epoch(self, run: TrainingContext) -> None:
        """Fit the model, validate it unless it has seen the validation split, and save it."""
        model, state, validation = run.trained.model, run.state, run.validation_set
        assert isinstance(model, CountBasedModel)
        if self.joint:
            model.fit([*run.training_set.targets, *validation.targets])
            state.train_on_val_epochs = 1
            note = f"refitted on the training split and {len(validation):,} validation sentences"
            return run.save_model(train_on_val=note)
        model.fit(run.training_set.targets)
        state.epoch = 1
        state.best_values = validate(run.trained, validation, dict.fromkeys(("perplexity", *run.settings.metrics)))
        run.log.validation(state, state.best_values)
        run.save_model()
