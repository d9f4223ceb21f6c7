"""Speed of training with one and with two processes of one thread each, on generated scenes."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import limner
from limner.runs.records import read_log
from measuring import report

RECIPES = {
    "mrnn": "{name: mrnn}",
    "attention": "{name: show_attend_tell}",
}
"""Models with the sizes of their settings' defaults; both train a convnet on pixels."""
BATCHES = (128, 256)
"""Sentences of a batch of all processes together."""
RECIPE = """
model: MODEL
features: {tables: [pixels32]}
training: {epochs: 3, validate_every: 3, batch_size: BATCH, precision: fp32, metrics: [], schedule: {warmup_steps: 5}}
"""


def ddp() -> None:
    """Measure tokens per second of whole steps, gradients and their average included, without validation."""
    with TemporaryDirectory() as folder:
        settings = limner.SceneSettings(seed=1, train=200, val=4, test=1, size=32, max_objects=1)
        scenes = limner.generate_collection(Path(folder) / "scenes", settings)
        limner.extract(scenes, limner.load_backbone("pixels:32"))
        for (name, model), batch in product(RECIPES.items(), BATCHES):
            recipe = Path(folder) / f"{name}-{batch}.yaml"
            recipe.write_text(RECIPE.replace("MODEL", model).replace("BATCH", str(batch)))
            one, two = (_tokens_per_second(recipe, scenes.path, processes) for processes in (1, 2))
            unit, details = "times the tokens/s of one process", {"batch_size": batch, "one": one, "two": two}
            report(f"ddp_{name}", two / one, unit, ">= 1.7", **details)


def _tokens_per_second(recipe: Path, scenes: Path, processes: int) -> float:
    """Train with a number of processes; return the speed of the fastest epoch after the first."""
    run = recipe.with_suffix(f".{processes}")
    arguments = ["train", str(recipe), "--collection", str(scenes), "--out", str(run), "--device", "cpu"]
    command = [sys.executable, "-m", "limner", *arguments, "--devices", str(processes)]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
    lines = [line for line in read_log(run / "log.jsonl") if line.kind == "train"]
    return max(line.tokens_per_second or 0.0 for line in lines[1:])
