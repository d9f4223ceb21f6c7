"""The saved state of a training: weights, optimizer, moving average, random state and progress."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.optim import Optimizer

from limner.errors import RunError
from limner.files import PARTIAL, sync, temporary_path, write_error, write_text
from limner.files.structured import read_json_file
from limner.models.protocols import Model
from limner.runs.trained_model import load_weights
from limner.storage.json_text import to_json
from limner.storage.tensors import load_tensors, save_tensors
from limner.training.optimizers import ExponentialMovingAverage

STATE_FILE = "train_state.json"


class Timestamp(NamedTuple):
    """A point in time, by the clock of the machine and by the clock of the process."""

    seconds: float
    processor_seconds: float

    @classmethod
    def now(cls) -> Self:
        """Return the current time."""
        return cls(time.perf_counter(), time.process_time())


@dataclass
class TrainState:
    """Progress of a training."""

    stage: int = -1
    """Index of the current stage; -1 before the first one."""
    step: int = 0
    """Number of steps done."""
    epoch: int = 0
    """Number of epochs done."""
    batch: int = 0
    """Number of batches of the current epoch done."""
    best: float | None = None
    """Best value of `training.metric` so far."""
    best_values: dict[str, float] = field(default_factory=dict)
    """All metrics of the validation with the best value."""
    bad_epochs: int = 0
    """Number of validations since the best value."""
    target_perplexity: float | None = None
    """Perplexity of the validation split at which training on both splits stops; None before that stage."""
    train_on_val_perplexity: float | None = None
    """Perplexity of the validation split after the last epoch on both splits."""
    train_on_val_epochs: int = 0
    """Number of epochs done on both splits."""
    seconds: float = 0.0
    """Duration of the training by the clock on the wall, preparation, validations and saving included."""
    processor_seconds: float = 0.0
    """Processor time of the training, summed over the threads of this process."""
    step_seconds: float = 0.0
    """Part of `seconds` that the training steps took."""
    seconds_before_epoch: float = 0.0
    """Value of `step_seconds` at the start of the current epoch."""
    loss_sum: float = 0.0
    """Loss of the current epoch summed over its tokens, in nats."""
    tokens: int = 0
    """Number of target tokens of the current epoch so far."""

    def __post_init__(self) -> None:
        self.counted_until = Timestamp.now()

    @property
    def loss(self) -> float:
        """Mean loss of the current epoch so far, in nats per token."""
        return self.loss_sum / max(1, self.tokens)

    @property
    def tokens_per_second(self) -> float:
        """Target tokens per second of the current epoch so far."""
        return self.tokens / max(1e-9, self.step_seconds - self.seconds_before_epoch)

    def add_step(self, loss: float, tokens: int, began: Timestamp) -> None:
        """Count a step that ends now, with its mean loss, its number of target tokens and its beginning."""
        self.step_seconds += Timestamp.now().seconds - began.seconds
        self.step, self.batch = self.step + 1, self.batch + 1
        self.loss_sum, self.tokens = self.loss_sum + loss * tokens, self.tokens + tokens

    def count_time(self) -> None:
        """Add the time since the last call, or since the training began."""
        now, before = Timestamp.now(), self.counted_until
        self.seconds += now.seconds - before.seconds
        self.processor_seconds += now.processor_seconds - before.processor_seconds
        self.counted_until = now

    def begin_epoch(self) -> None:
        """Count the current epoch and begin the next one."""
        self.epoch, self.batch = self.epoch + 1, 0
        self.seconds_before_epoch, self.loss_sum, self.tokens = self.step_seconds, 0.0, 0


def save_state(
    run: Path,
    model: Model,
    optimizer: Optimizer,
    ema: ExponentialMovingAverage | None,
    state: TrainState,
    rng_states: Sequence[dict[str, Tensor]],
) -> None:
    """Write RUN/state-STEP-EPOCH atomically, then remove the previous state.

    The end of an epoch may be saved twice, before and after validation; the epoch in the name keeps the two apart, so
    that a complete state exists at every moment. The random states of all processes are included (`rng_state`).

    Raises:
        RunError: a file cannot be written; the previous state is unchanged.
    """
    folder = run / f"state-{state.step:09d}-{state.epoch:05d}"
    partial = temporary_path(folder)
    tensors, plain = _flatten_optimizer(optimizer)
    try:
        partial.mkdir(parents=True)
        save_tensors(partial / "model.safetensors", model.state_dict())
        save_tensors(partial / "optimizer.safetensors", tensors)
        of_processes = {  # 'cpu', 'cuda' of the first process, 'cpu.1' … of others
            f"{device}.{rank}" if rank else device: value
            for rank, states in enumerate(rng_states)
            for device, value in states.items()
        }
        save_tensors(partial / "rng_state.safetensors", of_processes)
        if ema is not None:
            save_tensors(partial / "ema.safetensors", {str(k): value for k, value in enumerate(ema.values)})
        write_text(partial / STATE_FILE, to_json({"state": asdict(state), "optimizer": plain}))
        os.replace(partial, folder)
        sync(run)
    except OSError as error:
        raise write_error(folder, error) from None
    finally:
        if partial.exists():
            shutil.rmtree(partial)
    for stored in run.glob("state-*"):
        if stored != folder:
            shutil.rmtree(stored)


def find_state(run: Path) -> Path | None:
    """Return the newest complete state of a run, and remove partial states that a killed process left."""
    for partial in run.glob(f".*{PARTIAL}*"):
        shutil.rmtree(partial) if partial.is_dir() else partial.unlink()
    return max(run.glob("state-*"), default=None)


def load_state(folder: Path, model: Model, optimizer: Optimizer, ema: ExponentialMovingAverage | None) -> TrainState:
    """Load a saved state into the model, the optimizer and the moving average; see `load_rng_state` for the rest.

    Raises:
        RunError: a file is missing or damaged.
    """
    load_weights(model, load_tensors(folder / "model.safetensors"), str(folder))
    file = folder / STATE_FILE
    try:
        stored = read_json_file(file)
        state = TrainState(**stored["state"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file}: damaged ({error}); remove {folder} and start the training again") from None
    values: dict[int, dict[str, Any]] = {}
    for key, value in {**load_tensors(folder / "optimizer.safetensors"), **stored["optimizer"]}.items():
        parameter, name = key.split(".", 1)
        values.setdefault(int(parameter), {})[name] = value
    optimizer.load_state_dict({"state": values, "param_groups": optimizer.state_dict()["param_groups"]})
    if ema is not None:
        averages = load_tensors(folder / "ema.safetensors")
        ema.values = [averages[str(k)].to(value.device) for k, value in enumerate(ema.values)]
    return state


def load_rng_state(folder: Path, rank: int) -> bool:
    """Restore the random generators of a process; false if there were fewer processes when the state was saved."""
    stored, suffix = load_tensors(folder / "rng_state.safetensors"), f".{rank}" if rank else ""
    if f"cpu{suffix}" not in stored:
        return False
    torch.set_rng_state(stored[f"cpu{suffix}"])
    if f"cuda{suffix}" in stored:
        torch.cuda.set_rng_state(stored[f"cuda{suffix}"])
    return True


def rng_state() -> dict[str, Tensor]:
    """Return the states of the random generators of this process by device."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _flatten_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split an optimizer's state into tensors and plain values, both by '<parameter>.<name>'."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for parameter, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            (tensors if isinstance(value, Tensor) else plain)[f"{parameter}.{name}"] = value
    return tensors, plain
