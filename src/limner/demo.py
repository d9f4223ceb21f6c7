"""The demo: everything once, on generated scenes, from pixels, in minutes and without any download."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from limner.checkpoint import load_checkpoint
from limner.data.scenes import SceneSettings, generate
from limner.evaluation import evaluate, save_evaluation
from limner.recipe import load_recipe
from limner.records import Evaluation
from limner.report import write_report
from limner.training.loop import train
from limner.vision.backbones import load_backbone
from limner.vision.features import extract

RECIPE = "scenes/mrnn"
TRAINING_PICTURES = 4000
METRICS = ("bleu1", "bleu2", "bleu3", "bleu4", "chrf")  # those that need no extra and no Java


class DemoResult(NamedTuple):
    """What the demo left behind."""

    run: Path
    report: Path
    evaluation: Evaluation
    seconds: float


def run_demo(folder: Path, *, seed: int, command: str, progress: Callable[[str, int, int], None]) -> DemoResult:
    """Draw scenes, look at them, train, evaluate on held-out scenes and write a report; stopped, it goes on.

    Args:
        folder: gets `scenes`, `run` and `report.html`.
        seed: of the drawings and of the training.
        command: how this was called, for the records.
        progress: told the part of the work, what is done of it and how much it is.

    Raises:
        CollectionError: `folder` holds scenes of another seed.
        CheckpointError: `folder` holds a run of another seed.
    """
    began = time.perf_counter()
    scenes = generate(
        folder / "scenes", SceneSettings(seed=seed, train=TRAINING_PICTURES), lambda d, n: progress("drawing", d, n)
    )
    recipe = load_recipe(RECIPE, [f"training.seed={seed}"])
    extract(scenes, load_backbone("pixels:64"), progress=lambda d, n: progress("looking", d, n))
    run = train(
        recipe,
        scenes,
        folder / "run",
        resume=(folder / "run").exists(),
        command=command,
        progress=lambda news: progress("training", news.place.step, news.steps),
    )
    evaluation = evaluate([load_checkpoint(run)], scenes, metrics=METRICS, command=command, progress=progress)
    save_evaluation(evaluation, run)
    report = write_report(run, folder / "report.html")
    return DemoResult(run, report, evaluation, time.perf_counter() - began)
