"""Trainings that a test interrupts, and their logs."""

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


def without_times(run: Path):
    """Lines of the log of a run without what differs between equal trainings."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    times = ("seconds", "step_seconds", "tokens_per_second")
    return [{key: value for key, value in line.items() if key not in times} for line in lines]
