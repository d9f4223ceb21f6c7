"""The demo: caption and translate generated scenes, learned from pixels in minutes without any download."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from limner.apps.diagnosis import DiagnosisSettings, diagnose
from limner.apps.report import write_report
from limner.data.collection import Collection
from limner.evaluation.evaluate import evaluate
from limner.evaluation.measurements import Diagnosis
from limner.evaluation.options import EvaluationOptions
from limner.evaluation.stored_evaluation import save_evaluation
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.runs.recipe import load_recipe
from limner.runs.records import Evaluation
from limner.runs.trained_model import load_trained_model
from limner.synthetic.scenes import SceneSettings, generate_scenes
from limner.training.loop import train

METRICS = ("bleu1", "bleu2", "bleu3", "bleu4", "chrf")  # those that need no extra
TRANSLATION_METRICS = ("bleu4", "chrf3", "ter")
PIXELS = "pixels:64"
"""Backbone of both models: the pixels themselves, 64 x 64."""


SCENES = SceneSettings(train=8000, size=96, ambiguous=1.0, max_objects=1)
"""Collection of both models, without its seed."""


class DemoResult(NamedTuple):
    """Collections, run directories, reports and scores on the test splits of a captioner and a translator."""

    scenes: Path
    run: Path
    report: Path
    evaluation: Evaluation
    translation: Path
    translation_report: Path
    translations: Evaluation
    diagnosis: Diagnosis
    """Image controls and ambiguous words of the translator."""
    seconds: float


class Demo(NamedTuple):
    """Folder, seed and callback of all stages of a demo."""

    folder: Path
    seed: int
    command: str
    on_progress: Callable[[str, int, int], None]

    def draw(self) -> Collection:
        """Draw the collection and store the pixels of its images as features."""
        settings = SCENES.model_copy(update={"seed": self.seed})
        scenes = generate_scenes(self.folder / "scenes", settings, partial(self.on_progress, "drawing"))
        extract(scenes, load_backbone(PIXELS), on_progress=partial(self.on_progress, "reading pixels"))
        return scenes

    def train(self, recipe: str, scenes: Collection, name: str, *changes: str) -> Path:
        """Train a recipe, or resume its training."""
        run = self.folder / name
        return train(
            load_recipe(recipe, [f"training.seed={self.seed}", *changes]),
            scenes,
            run,
            resume=run.exists(),
            command=self.command,
            on_progress=lambda news: self.on_progress(f"training {recipe}", news.state.step, news.total_steps),
        )

    def evaluate(self, run: Path, scenes: Collection, metrics: Sequence[str]) -> Evaluation:
        """Evaluate a run on the test split and store the scores in its directory."""
        options = EvaluationOptions(metrics=tuple(metrics))
        models, command = [load_trained_model(run)], self.command
        evaluation = evaluate(models, scenes, options=options, command=command, on_progress=self.on_progress)
        save_evaluation(evaluation, run)
        return evaluation

    def diagnose(self, run: Path, scenes: Collection) -> Diagnosis:
        """Translate with right, shuffled, swapped and no images, and store the comparison in the run directory."""
        settings = DiagnosisSettings(metrics=("bleu4",), trials=1000, seed=self.seed)
        model, command = load_trained_model(run), self.command
        diagnosis = diagnose(model, scenes, settings=settings, command=command, on_progress=self.on_progress)
        diagnosis.save_in(run)
        return diagnosis


def run_demo(demo: Demo, on_message: Callable[[str], None]) -> DemoResult:
    """Draw scenes, train a captioner and a translator on them, evaluate both on held-out scenes and write reports.

    An interrupted demo resumes where it stopped.

    Args:
        demo: its folder receives `scenes`, `run`, `report.html`, `translation` and `translation.html`.
        on_message: called at the start of each stage with one line: what is done and why.

    Raises:
        CollectionError: the folder contains scenes of another seed.
        RunError: the folder contains a run of another seed.
    """
    began = time.perf_counter()
    on_message(f"1/6 Drawing {SCENES.train:,} training scenes with captions in three languages; nothing is downloaded.")
    scenes = demo.draw()
    on_message("2/6 Training the captioner (m-RNN). It learns to see from pixels alone, by predicting captions.")
    run = demo.train("scenes/demo-caption", scenes, "run")
    on_message("3/6 Evaluating captions and retrieval on 200 held-out scenes.")
    evaluation = demo.evaluate(run, scenes, METRICS)
    report = write_report(run, demo.folder / "report.html")
    on_message(
        "4/6 Training the English-German translator (NMT_SRC+IMG). English 'bat' is an animal or a club; German has a "
        "word for each, and only the image decides."
    )
    encoder = f"training.pretrained_image_encoder={run}"
    translation = demo.train("scenes/demo-translate", scenes, "translation", encoder)
    on_message("5/6 Evaluating translations of 1,000 held-out sentences, each with an ambiguous word.")
    translations = demo.evaluate(translation, scenes, TRANSLATION_METRICS)
    on_message("6/6 Translating them again with shuffled, swapped and no images: does the model use the image?")
    diagnosis = demo.diagnose(translation, scenes)
    translation_report = write_report(translation, demo.folder / "translation.html")
    seconds = time.perf_counter() - began
    return DemoResult(
        scenes.path, run, report, evaluation, translation, translation_report, translations, diagnosis, seconds
    )


def next_steps(result: DemoResult) -> list[str]:
    """Return commands to try after the demo; they work as they are."""
    image = result.scenes / "images" / "test-00000.jpg"
    item = next(item for item in result.translations.items if item.source)
    ambiguous_image = result.scenes / "images" / Path(item.image or "").name
    return [
        f"limner describe {image} --model {result.run} --beam-size 5 --n-best 3",
        f'limner search "a purple seal in the meadow" --model {result.run} --collection {result.scenes} --split test',
        f'limner translate "{item.source}" --model {result.translation} --image {ambiguous_image}',
    ]
