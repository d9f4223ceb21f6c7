"""Optimizers, learning-rate schedules and the moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatch

import torch
from torch import nn
from torch.optim import SGD, Adadelta, Adam, AdamW, Optimizer

from limner.errors import SettingsError
from limner.runs.training_settings import (
    AdadeltaSettings,
    AdamSettings,
    ScheduleSettings,
    SGDSettings,
    TrainingSettings,
)


def build_optimizer(parameters: Iterable[tuple[str, nn.Parameter]], settings: TrainingSettings) -> Optimizer:
    """Build the optimizer, one group per weight decay and learning-rate factor; SettingsError for unused patterns."""
    named = list(parameters)
    decays = _match_patterns(named, settings.weight_decay, 0.0, "weight_decay")
    factors = _match_patterns(named, settings.lr_factors, 1.0, "lr_factors")
    members: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named:
        members.setdefault((decays[name], factors[name]), []).append(parameter)
    groups = [
        {"params": group, "weight_decay": decay, "lr_factor": factor} for (decay, factor), group in members.items()
    ]
    chosen = settings.optimizer
    match chosen:
        case SGDSettings():
            return SGD(groups, lr=chosen.lr, momentum=chosen.momentum, nesterov=chosen.nesterov)
        case AdadeltaSettings():
            return Adadelta(groups, lr=chosen.lr, rho=chosen.rho, eps=chosen.eps)
        case AdamSettings():
            kind = AdamW if chosen.name == "adamw" else Adam
            # fused: one pass over weights, gradients and moments, several times faster than the default on a CPU.
            return kind(groups, lr=chosen.lr, betas=chosen.betas, eps=chosen.eps, fused=True)


def _match_patterns(
    parameters: list[tuple[str, nn.Parameter]], patterns: dict[str, float], default: float, setting: str
) -> dict[str, float]:
    """Return a value for each parameter: the value of the first pattern that matches its name, or the default."""
    values: dict[str, float] = {}
    used: set[str] = set()
    for name, _ in parameters:
        pattern = next((pattern for pattern in patterns if fnmatch(name, pattern)), None)
        values[name] = default if pattern is None else patterns[pattern]
        used |= {pattern} if pattern is not None else set()
    unused = [pattern for pattern in patterns if pattern not in used]
    if unused:
        raise SettingsError(
            f"training.{setting}: expected patterns that match parameters, but '{unused[0]}' matches none (or only "
            f"parameters that an earlier pattern matches); the parameters are {', '.join(values)}"
        )
    return values


def learning_rate_factor(schedule: ScheduleSettings, step: int, epoch: int, total_steps: int) -> float:
    """Compute the factor of the learning rate at a step and an epoch, both from 0, of a number of steps."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    progress = (step - schedule.warmup_steps) / max(1, total_steps - schedule.warmup_steps)
    match schedule.name:
        case "constant":
            return 1.0
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        case "linear":
            return max(0.0, 1.0 - progress)
        case "exponential":
            return float(schedule.decay**epoch)
        case "inverse_sqrt":
            return float(((step + 1) / max(1, schedule.warmup_steps)) ** -0.5)


def set_learning_rates(
    optimizer: Optimizer, settings: TrainingSettings, step: int, epoch: int, total_steps: int
) -> float:
    """Set the learning rates and the momentum of a step; return the learning rate before the factors of the groups."""
    lr = settings.optimizer.lr * learning_rate_factor(settings.schedule, step, epoch, total_steps)
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]
        if isinstance(settings.optimizer, SGDSettings):
            group["momentum"] = momentum(settings.optimizer, epoch)
    return lr


def momentum(settings: SGDSettings, epoch: int) -> float:
    """Compute the momentum of an epoch, counted from 0: linear from `momentum_start` to `momentum`."""
    if settings.momentum_start is None:
        return settings.momentum
    share = min(1.0, epoch / settings.momentum_epochs)
    return settings.momentum_start + share * (settings.momentum - settings.momentum_start)


class ExponentialMovingAverage:
    """Exponential moving average of the weights; its decay is lower in the first steps, see `update`."""

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self.parameters = list(parameters)
        self.decay = decay
        self.restart()

    def restart(self) -> None:
        """Set the average to the current weights."""
        self.values = [parameter.detach().clone() for parameter in self.parameters]

    def update(self, step: int) -> None:
        """Add the weights after a step, counted from 0: decay = min(`decay`, (1 + step) / (10 + step))."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for value, parameter in zip(self.values, self.parameters, strict=True):
            value.lerp_(parameter.detach(), 1 - decay)

    def swap(self) -> None:
        """Exchange the weights of the model and the average; a second call restores them."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.values, strict=True):
                copy = parameter.detach().clone()
                parameter.copy_(value)
                value.copy_(copy)


@torch.no_grad()
def add_l2_gradient(parameters: Iterable[nn.Parameter], l2: float) -> None:
    """Add the gradient of `l2` times the sum of all squared weights, the regularisation of Mao et al. (2015), eq. 6."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.add_(parameter, alpha=2 * l2)
