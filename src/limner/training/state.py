"""The state a killed training resumes from, bit by bit: weights, optimizer, average, chance and place."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from limner.errors import RunError
from limner.files import sync, write_error, write_text
from limner.models.protocols import Model
from limner.runs.trained_model import load_tensors, load_weights, save_tensors
from limner.training.optimizers import WeightAverage


@dataclass
class TrainState:
    """How far a training is."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that are done."""
    best: float | None = None
    """The best value of the metric so far."""
    bad_epochs: int = 0
    """Validations since then."""
    target: float | None = None
    """Perplexity of the validation split at which fused training ends; None before it begins."""
    reached: float | None = None
    """That perplexity so far."""
    fused: int = 0
    """Epochs with training and validation data fused."""
    seconds: float = 0.0
    """Spent on training steps so far."""
    epoch_began: float = 0.0
    """`seconds` when this epoch began."""
    loss_sum: float = 0.0
    """Loss of this epoch so far, summed over words."""
    words: int = 0
    """Words of this epoch so far."""

    @property
    def loss(self) -> float:
        """Mean loss of this epoch so far, nats a word."""
        return self.loss_sum / max(1, self.words)

    @property
    def words_per_second(self) -> float:
        """Of this epoch so far."""
        return self.words / max(1e-9, self.seconds - self.epoch_began)

    def begin_epoch(self) -> None:
        """Go on to the next epoch."""
        self.epoch, self.batch = self.epoch + 1, 0
        self.epoch_began, self.loss_sum, self.words = self.seconds, 0.0, 0


def save_state(run: Path, model: Model, optimizer: Optimizer, average: WeightAverage | None, place: TrainState) -> None:
    """Write RUN/state-STEP-EPOCH as a whole, then remove the one before.

    The end of an epoch may be saved twice, before and after it is validated: the epoch tells the two apart, so that
    nothing has to give way before the new state is whole.

    Raises:
        RunError: the disk refuses; the state before is as it was.
    """
    folder = run / f"state-{place.step:09d}-{place.epoch:05d}"
    partial = run / f".{folder.name}.{os.getpid()}"
    tensors, plain = _flatten_optimizer(optimizer)
    try:
        partial.mkdir(parents=True)
        save_tensors(partial / "model.safetensors", model.state_dict())
        save_tensors(partial / "optimizer.safetensors", tensors)
        save_tensors(partial / "chance.safetensors", _chance())
        if average is not None:
            save_tensors(partial / "average.safetensors", {str(k): value for k, value in enumerate(average.values)})
        write_text(partial / "place.json", json.dumps({"place": asdict(place), "optimizer": plain}))
        os.replace(partial, folder)
        sync(run)
    except OSError as error:
        raise write_error(folder, error) from None
    finally:
        if partial.exists():
            shutil.rmtree(partial)
    for other in run.glob("state-*"):
        if other != folder:
            shutil.rmtree(other)


def find_state(run: Path) -> Path | None:
    """The newest whole state of a run; what a killed one left unfinished is removed."""
    for partial in run.glob(".*.[0-9]*"):  # named after the process that wrote them
        shutil.rmtree(partial) if partial.is_dir() else partial.unlink()
    return max(run.glob("state-*"), default=None)


def load_state(folder: Path, model: Model, optimizer: Optimizer, average: WeightAverage | None) -> TrainState:
    """Put a training back to where `save_state` saw it."""
    load_weights(model, load_tensors(folder / "model.safetensors"), str(folder))
    try:
        stored = json.loads((folder / "place.json").read_text(encoding="utf-8"))
        place = TrainState(**stored["place"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder / 'place.json'}: damaged ({error}); remove {folder} and start again") from None
    _restore_optimizer(optimizer, load_tensors(folder / "optimizer.safetensors"), stored["optimizer"])
    if average is not None:
        values = load_tensors(folder / "average.safetensors")
        average.values = [values[str(k)].to(value.device) for k, value in enumerate(average.values)]
    chance = load_tensors(folder / "chance.safetensors")
    torch.set_rng_state(chance["cpu"])
    if "cuda" in chance:
        torch.cuda.set_rng_state(chance["cuda"])
    return place


def _chance() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _flatten_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as tensors by '<parameter>.<name>' and what is not a tensor beside."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for parameter, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            (tensors if isinstance(value, Tensor) else plain)[f"{parameter}.{name}"] = value
    return tensors, plain


def _restore_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **plain}.items():
        parameter, name = key.split(".", 1)
        state.setdefault(int(parameter), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
