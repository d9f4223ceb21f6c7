"""The demo: caption and translate generated scenes, learned from pixels in minutes without any download."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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

OnProgress = Callable[[str, int, int], None]
OnMessage = Callable[[str], None]


class DemoPlan(NamedTuple):
    """Collections and recipes of a demo."""

    captioning: str
    """Recipe of the captioner."""
    translation: str
    """Recipe of the translator."""
    scenes: SceneSettings
    """Collection of the captioner, without its seed."""
    ambiguous: SceneSettings | None
    """Collection of the translator, without its seed; None for the captioner's."""
    pixels: int
    """Width and height of the stored pixels."""
    shares_image_encoder: bool
    """Whether the translator's image encoder starts from the captioner's weights."""
    trials: int
    """Number of trials of each significance test in the diagnosis."""


SHORT = DemoPlan(
    "scenes/demo-caption",
    "scenes/demo-translate",
    SceneSettings(train=8000, size=96, ambiguous=1.0, max_objects=1),
    None,
    pixels=64,
    shares_image_encoder=True,
    trials=1000,
)
FULL = DemoPlan(
    "scenes/mrnn",
    "scenes/translate-src-img",
    SceneSettings(train=4000),
    SceneSettings(train=8000, ambiguous=1.0),
    pixels=64,
    shares_image_encoder=False,
    trials=10_000,
)


class DemoResult(NamedTuple):
    """Files and scores of a demo."""

    scenes: Path
    """Collection of the captioner."""
    run: Path
    """Run directory of the captioner."""
    report: Path
    """Report on the captioner."""
    evaluation: Evaluation
    """Scores of the captioner on the test split."""
    ambiguous: Path
    """Collection of the translator; the same as `scenes` in the short demo."""
    translation: Path
    """Run directory of the translator."""
    translation_report: Path
    """Report on the translator."""
    translations: Evaluation
    """Scores of the translator on the test split."""
    diagnosis: Diagnosis
    """Image controls and ambiguous words of the translator."""
    seconds: float
    """Wall-clock time in seconds."""


class Demo(NamedTuple):
    """Plan, folder, seed and callback that all stages of a demo use."""

    plan: DemoPlan
    folder: Path
    seed: int
    command: str
    on_progress: OnProgress

    def draw(self, name: str, settings: SceneSettings) -> Collection:
        """Draw a collection and store the pixels of its images as features."""
        scenes = generate_scenes(
            self.folder / name,
            settings.model_copy(update={"seed": self.seed}),
            lambda done, total: self.on_progress("drawing", done, total),
        )
        extract(
            scenes,
            load_backbone(f"pixels:{self.plan.pixels}"),
            on_progress=lambda done, total: self.on_progress("reading pixels", done, total),
        )
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
        evaluation = evaluate(
            [load_trained_model(run)],
            scenes,
            options=EvaluationOptions(metrics=tuple(metrics)),
            command=self.command,
            on_progress=self.on_progress,
        )
        save_evaluation(evaluation, run)
        return evaluation

    def diagnose(self, run: Path, scenes: Collection) -> Diagnosis:
        """Translate with right, shuffled, swapped and no images, and store the comparison in the run directory."""
        settings = DiagnosisSettings(metrics=("bleu4",), trials=self.plan.trials, seed=self.seed)
        diagnosis = diagnose(
            load_trained_model(run), scenes, settings=settings, command=self.command, on_progress=self.on_progress
        )
        diagnosis.save_in(run)
        return diagnosis


def run_demo(
    folder: Path, *, seed: int, command: str, full: bool = False, on_progress: OnProgress, on_message: OnMessage
) -> DemoResult:
    """Draw scenes, train a captioner and a translator on them, evaluate both on held-out scenes and write reports.

    An interrupted demo resumes where it stopped.

    Args:
        folder: receives `scenes`, `run`, `report.html`, `translation` and `translation.html`; with `full` also
            `ambiguous`.
        seed: random seed of the drawings and of the training.
        command: command line, stored with the results.
        full: use the longer recipes on larger collections.
        on_progress: called with the stage, the amount done and the total.
        on_message: called at the start of each stage with one line: what is done and why.

    Raises:
        CollectionError: `folder` contains scenes of another seed or of the other version of the demo.
        RunError: `folder` contains a run of another seed or of the other version of the demo.
    """
    began = time.perf_counter()
    plan = FULL if full else SHORT
    demo = Demo(plan, folder, seed, command, on_progress)
    on_message(
        f"1/6 Drawing {plan.scenes.train:,} training scenes with captions in three languages; nothing is downloaded."
    )
    scenes = ambiguous = demo.draw("scenes", plan.scenes)
    on_message("2/6 Training the captioner (m-RNN). It learns to see from pixels alone, by predicting captions.")
    run = demo.train(plan.captioning, scenes, "run")
    on_message("3/6 Evaluating captions and retrieval on 200 held-out scenes.")
    evaluation = demo.evaluate(run, scenes, METRICS)
    report = write_report(run, folder / "report.html")
    if plan.ambiguous is not None:
        on_message(f"    Drawing {plan.ambiguous.train:,} training scenes with ambiguous words.")
        ambiguous = demo.draw("ambiguous", plan.ambiguous)
    on_message(
        "4/6 Training the English-German translator (NMT_SRC+IMG). English 'bat' is an animal or a club; German has a "
        "word for each, and only the image decides."
    )
    encoder = [f"training.pretrained_image_encoder={run}"] if plan.shares_image_encoder else []
    translation = demo.train(plan.translation, ambiguous, "translation", *encoder)
    on_message("5/6 Evaluating translations of 1,000 held-out sentences, each with an ambiguous word.")
    translations = demo.evaluate(translation, ambiguous, TRANSLATION_METRICS)
    on_message("6/6 Translating them again with shuffled, swapped and no images: does the model use the image?")
    diagnosis = demo.diagnose(translation, ambiguous)
    return DemoResult(
        scenes=scenes.path,
        run=run,
        report=report,
        evaluation=evaluation,
        ambiguous=ambiguous.path,
        translation=translation,
        translation_report=write_report(translation, folder / "translation.html"),
        translations=translations,
        diagnosis=diagnosis,
        seconds=time.perf_counter() - began,
    )


def next_steps(result: DemoResult) -> list[str]:
    """Return commands to try after the demo; they work as they are."""
    image = result.scenes / "images" / "test-00000.jpg"
    item = next(item for item in result.translations.items if item.source)
    ambiguous_image = result.ambiguous / "images" / Path(item.image or "").name
    return [
        f"limner describe {image} --model {result.run} --beam-size 5 --n-best 3",
        f'limner search "a purple seal in the meadow" --model {result.run} --collection {result.scenes} --split test',
        f'limner translate "{item.source}" --model {result.translation} --image {ambiguous_image}',
        f"limner demo --full --out {result.run.parent}-full",
    ]
