"""Objects that all stages of a training share, among them its log: JSON lines, and TensorBoard if it is installed."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

from lightning_fabric import Fabric
from torch.optim import Optimizer

from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.data.examples import Batch
from limner.files import write_error, write_text
from limner.models.protocols import Output
from limner.runs.records import LogLine, read_log
from limner.runs.trained_model import ModelConfig, TrainedModel, save_trained_model
from limner.runs.training_settings import TrainingSettings
from limner.storage.json_text import to_json
from limner.training.optimizers import ExponentialMovingAverage
from limner.training.processes import Processes
from limner.training.state import TrainState, rng_state, save_state

logger = logging.getLogger(__name__)


class RunLog:
    """Log of a training, RUN/log.jsonl; on resuming, lines that are newer than the saved state are removed."""

    def __init__(self, run: Path, state: TrainState, enabled: bool = True) -> None:
        self.enabled, self.board = enabled, None
        if not enabled:  # another process writes the log
            return
        self.path = run / "log.jsonl"
        # Lines are written at the end of an epoch, so a line of this very step is older only if its epoch is complete.
        first_removed = state.step + (state.batch == 0 and state.step > 0)
        if self.path.exists():
            older = [line for line in read_log(self.path) if line.step < first_removed]
            write_text(self.path, "".join(line.model_dump_json(exclude_none=True) + "\n" for line in older))
        self.board = _tensorboard(run, first_removed)

    def epoch(self, state: TrainState) -> None:
        """Log the training loss of an epoch at its end."""
        rate = state.tokens_per_second
        self._write(state, epoch=state.epoch + 1, kind="train", loss=state.loss, tokens_per_second=rate)

    def validation(self, state: TrainState, values: dict[str, float]) -> None:
        """Log the metrics of a validation."""
        scores = {name: value for name, value in values.items() if name != "perplexity"}
        self._write(state, epoch=state.epoch, kind="val", perplexity=values.get("perplexity"), metrics=scores)

    def close(self) -> None:
        """Close the TensorBoard log."""
        if self.board is not None:
            self.board.close()

    def _write(self, state: TrainState, **values: Any) -> None:  # noqa: ANN401  (fields of `LogLine`)
        state.count_time()
        if not self.enabled:
            return
        line = LogLine(step=state.step, seconds=state.seconds, step_seconds=state.step_seconds, **values)
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(line.model_dump_json(exclude_none=True) + "\n")
        except OSError as error:
            raise write_error(self.path, error) from None
        logger.info("%s", to_json(_rounded(line.model_dump(exclude_none=True))))
        if self.board is not None:
            numbers = line.model_dump(include={"loss", "perplexity", "tokens_per_second"}) | line.metrics
            for name, value in numbers.items():
                if value is not None:
                    self.board.add_scalar(f"{line.kind}/{name}", value, line.step)


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Round the numbers of a log line for human readers."""
    nested = {key: _rounded(value) for key, value in values.items() if isinstance(value, dict)}
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in {**values, **nested}.items()}


def _tensorboard(run: Path, first_removed: int) -> Any:  # noqa: ANN401  (an untyped class)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        logger.info("no TensorBoard log: the extra 'tensorboard' is not installed")
        return None
    return SummaryWriter(str(run / "tensorboard"), purge_step=first_removed)


SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals of Ctrl-C, and of a machine or a job queue that stops the program."""


class Interruption:
    """Context in which the first Ctrl-C or SIGTERM is recorded; a second one has its usual effect."""

    def __init__(self) -> None:
        self.requested = False
        """Whether a signal was received."""
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only the main thread can handle signals
            self._previous = {number: signal.signal(number, self._record) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


class TrainProgress(NamedTuple):
    """Progress of a training, reported after every step, or of an estimation in parts."""

    state: TrainState
    total_steps: int
    """Number of steps of all epochs."""
    part: str = ""
    """Part of an estimation without gradients, such as 'tuning'; empty for a training in steps."""
    done: int = 0
    """Units of the part that are done, of `total_steps`."""

    @property
    def steps(self) -> int:
        """Number of steps, or of units of the part, that are done."""
        return self.done if self.part else self.state.step


class Optimization(NamedTuple):
    """Optimizer of a model that is trained by gradient descent, as set up by Fabric."""

    fabric: Fabric
    model: Callable[[Batch], Output]
    """The model, wrapped by Fabric for device, precision and the gradients of several processes."""
    wrapped_optimizer: Optimizer
    """The optimizer, wrapped by Fabric: its `step` is called."""
    optimizer: Optimizer
    """The optimizer itself: its state and parameter groups are read and changed."""
    ema: ExponentialMovingAverage | None
    """Moving average of the weights, if `training.ema_decay` is above 0."""

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Context in which the model has its averaged weights, if there is a moving average."""
        if self.ema is None:
            yield
            return
        self.ema.swap()
        try:
            yield
        finally:
            self.ema.swap()


@dataclass
class TrainingContext:
    """A training in progress."""

    trained: TrainedModel
    training_set: Examples
    validation_set: Examples
    out: Path
    """Run directory."""
    state: TrainState
    log: RunLog
    interruption: Interruption
    optimization: Optimization | None
    """None for a count-based model."""
    collection: Collection
    """Collection of both sets."""
    processes: Processes
    on_progress: Callable[[TrainProgress], None] | None

    @property
    def settings(self) -> TrainingSettings:
        """Training settings of the recipe."""
        return self.trained.recipe.training

    @cached_property
    def joint_set(self) -> Examples:
        """Examples of the training and the validation split together."""
        training, max_tokens = self.training_set, self.trained.recipe.data.max_tokens
        items = [*training.items, *self.validation_set.items]
        return Examples(items, training.target, training.features, source=training.source, max_tokens=max_tokens)

    def save_state(self) -> None:
        """Save the state to resume from; a count-based model has none."""
        if self.optimization is None:
            return
        self.state.count_time()
        rng_states = self.processes.collect(rng_state())
        if self.processes.first:
            optimizer, ema = self.optimization.optimizer, self.optimization.ema
            save_state(self.out, self.trained.model, optimizer, ema, self.state, rng_states)

    def save_model(self, **facts: object) -> None:
        """Save the model with its current weights, the metrics of the best validation and further facts about it."""
        if not self.processes.first:
            return
        config, provenance = self.trained.config, {"epochs": self.state.epoch, **self._times()}
        if self.processes.size > 1:
            provenance["processes"] = self.processes.size
        provenance |= {f"validation_{name}": round(value, 3) for name, value in self.state.best_values.items()}
        config = config.model_copy(update={"provenance": config.provenance | provenance | facts})
        save_trained_model(self.out, self.trained._replace(config=config))

    def save_times(self) -> None:
        """Replace the times that were saved with the weights by the times of the whole training."""
        if self.processes.first:
            config = ModelConfig.load(self.out / "config.json")
            provenance = config.provenance | self._times()
            config.model_copy(update={"provenance": provenance}).save(self.out / "config.json")

    def _times(self) -> dict[str, float]:
        self.state.count_time()
        return {name: round(getattr(self.state, name), 1) for name in ("seconds", "step_seconds", "processor_seconds")}
