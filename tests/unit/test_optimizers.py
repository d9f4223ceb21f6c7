"""Optimizers, schedules and averages at points computed by hand."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adadelta, Adam, AdamW

from limner.errors import SettingsError
from limner.runs.training_settings import ScheduleSettings, SGDSettings, TrainingSettings
from limner.training.optimizers import (
    ExponentialMovingAverage,
    add_l2_gradient,
    build_optimizer,
    learning_rate_factor,
    momentum,
    set_learning_rates,
)


def settings(**values):
    return TrainingSettings.parse(values)


def parameters():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False))
    return list(model.named_parameters())


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        ({"name": "constant"}, 77, 1.0),
        ({"name": "constant", "warmup_steps": 4}, 0, 0.25),
        ({"name": "constant", "warmup_steps": 4}, 3, 1.0),
        ({"name": "constant", "warmup_steps": 4}, 4, 1.0),
        ({"name": "linear"}, 0, 1.0),
        ({"name": "linear"}, 25, 0.75),
        ({"name": "linear"}, 200, 0.0),
        ({"name": "linear", "warmup_steps": 20}, 60, 0.5),
        ({"name": "cosine"}, 0, 1.0),
        ({"name": "cosine"}, 50, 0.5),
        ({"name": "cosine"}, 25, 0.5 + 0.25 * 2**0.5),
        ({"name": "cosine"}, 100, 0.0),
        ({"name": "cosine", "warmup_steps": 20}, 60, 0.5),
        ({"name": "exponential", "decay": 0.5}, 9, 1.0),
        ({"name": "exponential", "decay": 0.5}, 10, 0.5),
        ({"name": "exponential", "decay": 0.5}, 39, 0.125),
        ({"name": "inverse_sqrt", "warmup_steps": 20}, 4, 0.25),
        ({"name": "inverse_sqrt", "warmup_steps": 20}, 19, 1.0),
        ({"name": "inverse_sqrt", "warmup_steps": 20}, 79, 0.5),
        ({"name": "inverse_sqrt"}, 0, 1.0),
        ({"name": "inverse_sqrt"}, 3, 0.5),
    ],
)
def test_learning_rate_factor_of_10_epochs_of_10_steps(schedule, step, expected):
    assert learning_rate_factor(ScheduleSettings(**schedule), step, step // 10, 100) == pytest.approx(expected)


@pytest.mark.parametrize(("epoch", "expected"), [(0, 0.5), (1, 0.6), (2, 0.7), (4, 0.9), (9, 0.9)])
def test_momentum_rises_linearly(epoch, expected):
    rising = SGDSettings(momentum_start=0.5, momentum=0.9, momentum_epochs=4)
    assert momentum(rising, epoch) == pytest.approx(expected)
    assert momentum(SGDSettings(momentum=0.3), epoch) == 0.3


def test_rates_are_set_on_every_group():
    chosen = settings(
        epochs=10,
        optimizer={"name": "sgd", "lr": 0.2, "momentum_start": 0.0, "momentum": 0.8, "momentum_epochs": 4},
        schedule={"name": "linear"},
        weight_decay={"*bias": 0.1},
    )
    optimizer = build_optimizer(parameters(), chosen)
    assert set_learning_rates(optimizer, chosen, 25, epoch=2, total_steps=100) == pytest.approx(0.15)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.15, 0.15])
    assert [group["momentum"] for group in optimizer.param_groups] == pytest.approx([0.4, 0.4])


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [({"name": "sgd"}, SGD), ({"name": "adadelta"}, Adadelta), ({"name": "adam"}, Adam), ({"name": "adamw"}, AdamW)],
)
def test_every_optimizer_reduces_the_loss(optimizer, kind):
    weight = nn.Parameter(torch.tensor([3.0]))
    built = build_optimizer([("w", weight)], settings(optimizer=optimizer))
    assert type(built) is kind
    for _ in range(5):
        built.zero_grad()
        weight.square().sum().backward()
        built.step()
    assert float(weight.detach()) < 3


def groups_of(decay):
    named = parameters()
    optimizer = build_optimizer(named, settings(weight_decay=decay))
    name_of = {id(parameter): name for name, parameter in named}
    return {
        group["weight_decay"]: [name_of[id(parameter)] for parameter in group["params"]]
        for group in optimizer.param_groups
    }


def test_weight_decay_of_the_first_matching_pattern():
    assert groups_of({"*bias": 0.0, "*": 0.01}) == {0.0: ["0.bias"], 0.01: ["0.weight", "1.weight"]}
    assert groups_of({"1.*": 0.5}) == {0.5: ["1.weight"], 0.0: ["0.weight", "0.bias"]}
    assert groups_of({}) == {0.0: ["0.weight", "0.bias", "1.weight"]}


def test_learning_rate_of_the_first_matching_pattern():
    chosen = settings(
        optimizer={"name": "sgd", "lr": 0.2, "momentum": 0.0},
        lr_factors={"0.*": 0.1, "*": 2},
        weight_decay={"1.*": 0.5},
    )
    optimizer = build_optimizer(parameters(), chosen)
    set_learning_rates(optimizer, chosen, 0, epoch=0, total_steps=10)
    groups = [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    assert groups == [(pytest.approx(0.02), 0), (0.4, 0.5)]
    with pytest.raises(SettingsError, match=r"training\.lr_factors: .*'embeding\*' matches none"):
        build_optimizer(parameters(), settings(lr_factors={"embeding*": 0.1}))


@pytest.mark.parametrize("patterns", [{"embeding*": 0.1}, {"*": 0.1, "*bias": 0.0}])
def test_a_pattern_without_a_match_is_an_error(patterns):
    with pytest.raises(SettingsError, match=rf"'{list(patterns)[-1]}' matches none".replace("*", r"\*")):
        groups_of(patterns)
    with pytest.raises(SettingsError, match=r"the parameters are 0\.weight, 0\.bias, 1\.weight"):
        groups_of(patterns)


def test_the_average_equals_a_loop_by_hand():
    weight = nn.Parameter(torch.tensor([2.0, -1.0]))
    average = ExponentialMovingAverage([weight], decay=0.6)
    expected = [2.0, -1.0]
    for step in range(12):
        with torch.no_grad():
            weight.add_(torch.tensor([0.5, -0.25]) * (step + 1))
        average.update(step)
        decay = min(0.6, (1 + step) / (10 + step))
        expected = [decay * old + (1 - decay) * new for old, new in zip(expected, weight.tolist(), strict=True)]
    assert average.values[0].tolist() == pytest.approx(expected)
    assert min(0.6, 12 / 21) != 0.6  # the average was evaluated
    assert average.values[0].requires_grad is False


def test_the_gradient_of_the_regularisation_is_twice_the_weights():
    weights = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4))]
    weights[0].grad = torch.ones(3, 2)  # the gradient of the loss, which does not depend on the other weights
    add_l2_gradient(weights, 0.01)
    torch.testing.assert_close(weights[0].grad, 1 + 0.02 * weights[0].detach())
    torch.testing.assert_close(weights[1].grad, 0.02 * weights[1].detach())
