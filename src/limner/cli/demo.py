"""The demo: describing and translating once, on generated scenes, from pixels, in minutes, without any download."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from limner.data.collection import Collection
from limner.diagnosis import Diagnosis, DiagnosisSettings, diagnose, save_diagnosis
from limner.evaluation.evaluate import EvaluationOptions, evaluate, save_evaluation
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.report import write_report
from limner.runs.recipe import load_recipe
from limner.runs.records import Evaluation
from limner.runs.trained_model import load_trained_model
from limner.synthetic.scenes import SceneSettings, generate_scenes
from limner.training.loop import train

RECIPE, TRANSLATION = "scenes/mrnn", "scenes/translate-src-img"
TRAINING_PICTURES = 4000
AMBIGUOUS_PICTURES = 8000
"""Scenes with a word of two meanings, which only the picture tells apart: what the demo learns to translate."""
METRICS = ("bleu1", "bleu2", "bleu3", "bleu4", "chrf")  # those that need no extra and no Java
TRANSLATION_METRICS = ("bleu4", "chrf3", "ter")

Note = Callable[[str, int, int], None]


class DemoResult(NamedTuple):
    """What the demo left behind."""

    run: Path
    report: Path
    evaluation: Evaluation
    translation: Path
    """Run of the model that translates."""
    translation_report: Path
    translations: Evaluation
    diagnosis: Diagnosis
    seconds: float


def run_demo(folder: Path, *, seed: int, command: str, progress: Note) -> DemoResult:
    """Draw scenes, learn to describe and to translate them, measure both on held-out scenes and write reports.

    Stopped, it goes on.

    Args:
        folder: gets `scenes`, `run` and `report.html`, then `ambiguous`, `translation` and `translation.html`.
        seed: of the drawings and of the training.
        command: how this was called, for the records.
        progress: told the part of the work, what is done of it and how much it is.

    Raises:
        CollectionError: `folder` holds scenes of another seed.
        RunError: `folder` holds a run of another seed.
    """
    began = time.perf_counter()
    scenes = _drawn(folder / "scenes", SceneSettings(seed=seed, train=TRAINING_PICTURES), progress)
    run, evaluation = _learned(RECIPE, scenes, folder / "run", METRICS, seed, command, progress)
    report = write_report(run, folder / "report.html")
    words = _drawn(folder / "ambiguous", SceneSettings(seed=seed, train=AMBIGUOUS_PICTURES, ambiguous=1.0), progress)
    translation, translations = _learned(
        TRANSLATION, words, folder / "translation", TRANSLATION_METRICS, seed, command, progress
    )
    diagnosis = diagnose(
        load_trained_model(translation),
        words,
        settings=DiagnosisSettings(metrics=("bleu4",), seed=seed),
        command=command,
        on_progress=progress,
    )
    save_diagnosis(diagnosis, translation)
    return DemoResult(
        run=run,
        report=report,
        evaluation=evaluation,
        translation=translation,
        translation_report=write_report(translation, folder / "translation.html"),
        translations=translations,
        diagnosis=diagnosis,
        seconds=time.perf_counter() - began,
    )


def _drawn(folder: Path, settings: SceneSettings, progress: Note) -> Collection:
    """Draw scenes, and keep what a model that learns to see from pixels is shown of them."""
    scenes = generate_scenes(folder, settings, lambda done, total: progress("drawing", done, total))
    extract(scenes, load_backbone("pixels:64"), on_progress=lambda done, total: progress("looking", done, total))
    return scenes


def _learned(
    name: str, scenes: Collection, run: Path, metrics: Sequence[str], seed: int, command: str, progress: Note
) -> tuple[Path, Evaluation]:
    """Train a recipe, or go on training it, and measure it."""
    train(
        load_recipe(name, [f"training.seed={seed}"]),
        scenes,
        run,
        resume=run.exists(),
        command=command,
        on_progress=lambda news: progress(f"training {name}", news.state.step, news.total_steps),
    )
    options = EvaluationOptions(metrics=tuple(metrics))
    evaluation = evaluate([load_trained_model(run)], scenes, options=options, command=command, on_progress=progress)
    save_evaluation(evaluation, run)
    return run, evaluation
