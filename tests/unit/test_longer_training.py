"""Resuming a training with more epochs, with a mistyped folder, and on a named device."""

import os
import signal

import pytest

from limner.errors import RunError, SettingsError
from limner.runs.records import RunConfig, read_log
from limner.training.context import SIGNALS, Interruption
from limner.training.loop import train


def weights(run):
    return (run / "model.safetensors").read_bytes()


def epochs_of(run):
    return [line.epoch for line in read_log(run / "log.jsonl") if line.kind == "train"]


def test_more_epochs_extend_a_finished_training_as_if_they_had_been_planned(tiny, recipe_of, tmp_path):
    whole = train(recipe_of(epochs=3, model={"dropout": 0.3}), tiny, tmp_path / "whole")
    run = train(recipe_of(epochs=2, model={"dropout": 0.3}), tiny, tmp_path / "run")
    train(recipe_of(epochs=3, model={"dropout": 0.3}), tiny, run, resume=True)
    assert weights(run) == weights(whole)
    assert epochs_of(run) == epochs_of(whole)
    assert RunConfig.load(run / "config.json").recipe["training"]["epochs"] == 3
    with pytest.raises(RunError, match=r"recipe\.training\.epochs was 3 and is now 2"):  # the longer one is recorded
        train(recipe_of(epochs=2, model={"dropout": 0.3}), tiny, run, resume=True)


def test_more_patience_extends_a_training_that_stopped_early(tiny, recipe_of, tmp_path):
    still = {"optimizer": {"name": "sgd", "lr": 1e-30}}  # no validation is better than the first
    run = train(recipe_of(epochs=5, patience=1, **still), tiny, tmp_path / "run")
    assert epochs_of(run) == [1, 2]
    train(recipe_of(epochs=5, patience=2, **still), tiny, run, resume=True)
    assert epochs_of(run) == [1, 2, 3]
    train(recipe_of(epochs=5, **still), tiny, run, resume=True)
    assert epochs_of(run) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"schedule": {"name": "cosine"}},
            "the learning rate of the schedule 'cosine' depends on the number of epochs",
        ),
        ({"train_on_val_epochs": 1}, "training on the validation split follows the last epoch"),
    ],
)
def test_a_training_that_cannot_be_extended_names_init(settings, message, tiny, recipe_of, tmp_path):
    run = train(recipe_of(epochs=1, **settings), tiny, tmp_path / "run")
    before = weights(run)
    with pytest.raises(RunError, match=rf"{message}; .*'--init {run}' and name another --out"):
        train(recipe_of(epochs=2, **settings), tiny, run, resume=True)
    assert weights(run) == before


def test_resuming_a_folder_that_does_not_exist_is_an_error(tiny, recipe_of, tmp_path):
    (tmp_path / "second").mkdir()
    with pytest.raises(RunError, match=r"secnod: no such run to resume; .*; did you mean 'second'\?"):
        train(recipe_of(epochs=1), tiny, tmp_path / "secnod", resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["second"]


def test_an_unknown_device_is_an_error_before_the_run_is_created(tiny, recipe_of, tmp_path):
    with pytest.raises(SettingsError, match="device 'abacus': expected cpu, cuda or cuda:N"):
        train(recipe_of(epochs=1), tiny, tmp_path / "run", device="abacus")
    assert not (tmp_path / "run").exists()


def test_the_command_trains_on_the_device(tiny, monkeypatch, command_line, tmp_path):
    def trains(*_, device, **__):
        raise SettingsError(f"trains on {device.device}")

    monkeypatch.setattr("limner.training.loop.train", trains)
    arguments = ["train", "scenes/mrnn", "--collection", tiny.path, "--out", tmp_path / "run", "--device", "cuda:1"]
    assert "trains on cuda:1" in command_line(*arguments)[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_deferred_and_ctrl_c_is_raised_then(number: int) -> None:
    with Interruption() as interruption:
        assert not interruption.requested
        os.kill(os.getpid(), number)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_previous_handler_is_restored() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interruption():
        assert all(signal.getsignal(number) not in before for number in SIGNALS)
    assert [signal.getsignal(number) for number in SIGNALS] == before
