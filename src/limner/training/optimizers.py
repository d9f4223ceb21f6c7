"""Optimizers, learning rates over time and averaged weights, from settings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatch

import torch
from torch import Tensor, nn
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
    """The optimizer, with one parameter group for each weight decay and learning rate.

    Raises:
        SettingsError: a pattern of weight decays or learning rates fits no parameter.
    """
    named = list(parameters)
    decays = _by_pattern(named, settings.weight_decay, 0.0, "weight_decay")
    rates = _by_pattern(named, settings.rates, 1.0, "rates")
    alike: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named:
        alike.setdefault((decays[name], rates[name]), []).append(parameter)
    groups = [{"params": group, "weight_decay": decay, "rate": rate} for (decay, rate), group in alike.items()]
    chosen = settings.optimizer
    match chosen:
        case SGDSettings():
            return SGD(groups, lr=chosen.lr, momentum=chosen.momentum, nesterov=chosen.nesterov)
        case AdadeltaSettings():
            return Adadelta(groups, lr=chosen.lr, rho=chosen.rho, eps=chosen.eps)
        case AdamSettings():
            kind = AdamW if chosen.name == "adamw" else Adam
            # One pass over weights, gradients and moments: several times as fast as torch's default on a processor.
            return kind(groups, lr=chosen.lr, betas=chosen.betas, eps=chosen.eps, fused=True)


def _by_pattern(
    parameters: list[tuple[str, nn.Parameter]], patterns: dict[str, float], otherwise: float, setting: str
) -> dict[str, float]:
    """The value of each parameter: that of the first pattern that fits its name."""
    values: dict[str, float] = {}
    used: set[str] = set()
    for name, _ in parameters:
        pattern = next((pattern for pattern in patterns if fnmatch(name, pattern)), None)
        values[name] = otherwise if pattern is None else patterns[pattern]
        used |= {pattern} if pattern is not None else set()
    unused = [pattern for pattern in patterns if pattern not in used]
    if unused:
        raise SettingsError(
            f"training.{setting}: '{unused[0]}' fits no parameter that is left; there are: {', '.join(values)}"
        )
    return values


def learning_rate_factor(schedule: ScheduleSettings, step: int, epoch: int, total: int) -> float:
    """What the optimizer's rate is multiplied by.

    Args:
        schedule: how the rate changes.
        step: counted from 0.
        epoch: which the step belongs to, counted from 0.
        total: steps of all epochs.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    past = (step - schedule.warmup_steps) / max(1, total - schedule.warmup_steps)
    match schedule.name:
        case "constant":
            return 1.0
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(1.0, past)))
        case "linear":
            return max(0.0, 1.0 - past)
        case "exponential":
            return float(schedule.decay**epoch)


def set_rates(optimizer: Optimizer, settings: TrainingSettings, step: int, epoch: int, total: int) -> float:
    """Set learning rates and momentum for a step of `total`, and return the learning rate before group factors."""
    rate = settings.optimizer.lr * learning_rate_factor(settings.schedule, step, epoch, total)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate"]
        if isinstance(settings.optimizer, SGDSettings):
            group["momentum"] = momentum(settings.optimizer, epoch)
    return rate


def momentum(settings: SGDSettings, epoch: int) -> float:
    """Momentum of an epoch, counted from 0: linear from `momentum_start` to `momentum`."""
    if settings.momentum_start is None:
        return settings.momentum
    share = min(1.0, epoch / settings.momentum_epochs)
    return settings.momentum_start + share * (settings.momentum - settings.momentum_start)


class WeightAverage:
    """An exponential running average of weights; young averages forget faster, so that the start does not linger."""

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self.parameters = list(parameters)
        self.decay = decay
        self.restart()

    def restart(self) -> None:
        """Begin again with the weights as they are."""
        self.values = [parameter.detach().clone() for parameter in self.parameters]

    def update(self, step: int) -> None:
        """Take in the weights after a step, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.values, [parameter.detach() for parameter in self.parameters], 1 - decay)

    def swap(self) -> None:
        """Exchange the model's weights with the average; a second call undoes the first."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.values, strict=True):
                kept = parameter.detach().clone()
                parameter.copy_(value)
                value.copy_(kept)


def squared_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Sum of all squared weights, the regularisation of Mao et al. (2015), eq. 6."""
    return torch.stack([parameter.square().sum() for parameter in parameters]).sum()
