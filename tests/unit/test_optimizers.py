"""Optimizers, schedules and averages at points computed by hand."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adadelta, Adam, AdamW

from limner.data.examples import Example, collate
from limner.errors import SettingsError
from limner.models.protocols import Mean, Output
from limner.runs.training_settings import ScheduleSettings, SGDSettings, TrainingSettings
from limner.training import losses
from limner.training.losses import IGNORED, word_loss
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
def test_every_optimizer_is_built(optimizer, kind):
    assert type(build_optimizer(parameters(), settings(optimizer=optimizer))) is kind


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


VOCAB = 9


@pytest.fixture(params=[1, 40, 1 << 18])
def rows_at_once(request, monkeypatch):
    monkeypatch.setattr(losses, "ELEMENTS_PER_CHUNK", request.param)


def batch():
    return collate([Example("", words) for words in ([4, 5, 8], [7], [], [4, 4, 5, 6, 7])])


def torchs(logits, data, smoothing):
    targets = data.target_out.masked_fill(~data.target_mask, IGNORED)
    flat = logits.flatten(0, 1)
    return cross_entropy(flat.to(torch.promote_types(flat.dtype, torch.float32)), targets.flatten(),
                         ignore_index=IGNORED, label_smoothing=smoothing)  # fmt: skip


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2e-3)]
)
def test_loss_and_gradient_equal_torch(rows_at_once, dtype, tolerance, smoothing):
    data = batch()
    values = 5 * torch.randn(*data.target_out.shape, VOCAB, generator=torch.Generator().manual_seed(0))
    ours, theirs = (values.to(dtype).clone().requires_grad_() for _ in range(2))
    loss, expected = word_loss(Output(ours), data, smoothing), torchs(theirs, data, smoothing)
    (3 * loss).backward()
    (3 * expected).backward()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=tolerance)
    assert not ours.grad[~data.target_mask].any()


def test_the_loss_of_certain_words_is_zero_and_of_impossible_words_infinite():
    data = dataclasses.replace(batch())
    logits = torch.full((*data.target_out.shape, VOCAB), -1e4).scatter(2, data.target_out.unsqueeze(2), 0.0)
    assert float(word_loss(Output(logits), data)) == 0
    assert float(word_loss(Output(logits.roll(1, 2)), data)) == pytest.approx(1e4, rel=1e-3)
    assert torch.isinf(word_loss(Output(torch.where(logits == 0, -torch.inf, 0.0)), data))


def test_a_model_may_define_an_auxiliary_or_its_own_loss():
    data = batch()
    logits = torch.randn(*data.target_out.shape, VOCAB)
    plain = word_loss(Output(logits), data)
    auxiliary, others = Mean(torch.tensor(6.0), 3), (Mean(torch.tensor(8.0), 2), Mean(torch.tensor(6.0), 2))
    assert float(word_loss(Output(logits, auxiliary_loss=auxiliary), data)) == pytest.approx(float(plain) + 2)
    assert float(word_loss(Output(logits, loss=others), data)) == 7
