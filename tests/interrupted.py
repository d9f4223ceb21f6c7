"""Trainings that a test interrupts, and the logs of runs."""

import json
from pathlib import Path

import pytest

from limner.training.loop import train


class Stop(Exception):
    """Raised to interrupt a training."""


def train_until(step, recipe, collection, run, **options):
    """Train until a step, after which the training is interrupted."""

    def stop(news):
        if news.state.step == step:
            raise Stop

    with pytest.raises(Stop):
        train(recipe, collection, run, on_progress=stop, **options)


def resumed(step, recipe, collection, run, **options):
    """Return a run of a training that was interrupted after a step and resumed."""
    train_until(step, recipe, collection, run, **options)
    return train(recipe, collection, run, resume=True, **options)


def assert_equal_weights(run, other):
    assert (run / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def without_times(run: Path):
    """Lines of the log of a run without what differs between equal trainings."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    times = ("seconds", "step_seconds", "tokens_per_second")
    return [{key: value for key, value in line.items() if key not in times} for line in lines]
