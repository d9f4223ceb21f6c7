"""The report of a run: one HTML page with examples, scores beside baselines, curves, plots and settings.

It reads the records of a run directory (`limner.runs.records`), the model for its word vectors and attention, the
images that the evaluations name and, for attention, the collection. The page needs no network. A small script filters,
enlarges and shows the attention of a word; without it everything is readable.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from limner.errors import LimnerError
from limner.files import write_text
from limner.files.structured import read_json_file
from limner.media.modality import IMAGE, MODALITIES
from limner.report import plots
from limner.report.diagnoses import read_diagnoses
from limner.report.evaluation_section import PageContext, beginning, evaluation_section
from limner.report.grounding import read_groundings
from limner.report.learning_curves import learning_curves
from limner.report.provenance import flatten, run_facts, without_folders
from limner.report.rendering import render_page
from limner.report.score_tables import control_tables
from limner.report.thumbnails import Thumbnails
from limner.report.word_plot import plot_words
from limner.runs.records import Evaluation, RunConfig, read_evaluations, read_log
from limner.text.labels import LABEL_LANGUAGES

if TYPE_CHECKING:
    from limner.features.spec import FeatureSpec
    from limner.runs.trained_model import TrainedModel

logger = logging.getLogger(__name__)

IMAGE_BYTES = 6_000_000
"""Maximum total size of the embedded images of a report in bytes; further images are left out."""

MIN_SHAPE, MAX_SHAPE = 1.0, 1.8
"""Smallest and largest width of the frame of an image, divided by its height."""


def write_report(run: Path, out: Path, *, seed: int = 0, today: date | None = None) -> Path:
    """Write the report of a run.

    Args:
        run: run directory with `config.json` and, optionally, `log.jsonl`, `evaluation/*.json`, `diagnosis/*.json`,
            `diagnosis/grounding/*.json` and the model.
        out: HTML file to write; an existing file is replaced.
        seed: random seed of the random samples and of the maps of words.
        today: date of the report; default: the present day.

    Returns:
        `out`.

    Raises:
        RunError: the folder is not a run directory, or a record or the model is damaged.
    """
    config = RunConfig.load(run / "config.json")
    evaluations = sorted(read_evaluations(run), key=lambda one: (one.split, one.decoding, one.measured))
    context = _context(run, config, evaluations, seed)
    html = render_page("report.html", day=long_date(today or date.today()), **_content(run, config, context))
    write_text(out, html)
    if context.thumbnails.left_out:
        logger.warning("%s: %d image(s) are missing, damaged or over the size limit", out, context.thumbnails.left_out)
    return out


def _context(run: Path, config: RunConfig, evaluations: Sequence[Evaluation], seed: int) -> PageContext:
    stored = read_json_file(run / "config.json")
    spec = _feature_spec(run, stored)
    return PageContext(
        model=_load_model(run),
        modality=MODALITIES[spec.modality] if spec else IMAGE,
        frames=spec.frames if spec else None,
        published=config.recipe.get("published") or {},
        thumbnails=Thumbnails(IMAGE_BYTES),
        seed=seed,
        lang=(config.recipe.get("data") or {}).get("lang") or "",
        vocabulary=stored.get("vocab_size"),
        evaluations=evaluations,
    )


def _content(run: Path, config: RunConfig, context: PageContext) -> dict[str, Any]:
    """The sections of the page, in their order."""
    log_path = run / "log.jsonl"
    log = read_log(log_path) if log_path.exists() else []
    name = run.resolve().name
    first = choose_first_evaluation(context.evaluations, (config.recipe.get("data") or {}).get("test") or "test")
    recipe = {key: value for key, value in config.recipe.items() if key != "model"}  # the model has its own section
    return {
        "run_name": name,
        "title": config.recipe.get("description") or name,
        "about": [without_folders(part) for part in _about(config)],
        "beginning": None if first is None else beginning(first, context),
        "learning": learning_curves(config, log),
        "modality": context.modality,
        "evaluations": [
            evaluation_section(one, context) for one in context.evaluations if one.image_control == "right"
        ],
        "controls": control_tables(context.evaluations, context.modality),
        "diagnoses": read_diagnoses(run),
        "groundings": read_groundings(run, context.thumbnails),
        "words": _words(context.model, context.seed),
        "seed": context.seed,
        "shape": frame_shape(context.thumbnails.shapes),
        "facts": run_facts(config, log),
        "settings": {"Model": list(flatten(config.recipe.get("model") or {})), "Recipe": list(flatten(recipe))},
    }


def choose_first_evaluation(evaluations: Sequence[Evaluation], test: str) -> Evaluation | None:
    """Choose the evaluation of the beginning: of the right images, of the test split, with the recipe's settings."""

    def distance(one: Evaluation) -> tuple[bool, bool, bool, int]:
        return one.split != test, bool(one.decoding), bool(one.measured), -len(one.scores)

    return min((one for one in evaluations if one.image_control == "right"), key=distance, default=None)


def frame_shape(shapes: Sequence[float]) -> float:
    """Return the shape of the frames of the images, width by height: that of most images, but neither long nor high."""
    return round(min(MAX_SHAPE, max(MIN_SHAPE, median(shapes))), 3) if shapes else 4 / 3


def _about(config: RunConfig) -> list[str]:
    """The model and the collection of a run in a few words."""
    model = (config.recipe.get("model") or {}).get("name")
    collection = config.provenance.get("collection")
    data = config.recipe.get("data") or {}
    languages = " to ".join(str(one) for one in (data.get("source_lang"), data.get("lang")) if one)
    what = "target" if data.get("lang") in LABEL_LANGUAGES else "language"
    return [
        *([f"model {model}"] if model else []),
        *([f"{what} {languages}"] if languages else []),
        *([f"collection {Path(str(collection)).name}"] if collection else []),
    ]


def long_date(day: date) -> str:
    """Write a date with the name of its month."""
    return f"{day.day} {day:%B %Y}"


def _load_model(run: Path) -> TrainedModel | None:
    """The trained model; None if the run has no weights yet."""
    from limner.runs.trained_model import WEIGHTS, load_trained_model  # imported late: imports torch

    if not (run / WEIGHTS).exists():
        logger.info("%s: no %s, so the report has no maps of words and no attention", run, WEIGHTS)
        return None
    return load_trained_model(run)


def _feature_spec(run: Path, stored: dict[str, Any]) -> FeatureSpec | None:
    """Specification of the features that the model was trained on; None if there are none."""
    from limner.features.spec import FeatureSpec  # imported late: imports numpy and Lance

    specs = [FeatureSpec.parse(values, str(run / "config.json")) for values in stored.get("features", ())]
    return specs[0] if specs else None


def _words(model: TrainedModel | None, seed: int) -> dict[str, Any] | None:
    """Maps of the model's words; None without a model with word vectors, or without scikit-learn."""
    if model is None:
        return None
    from limner.report.word_map import TITLES, map_words  # imported late: imports torch

    try:
        word_map = map_words(model, seed=seed)
    except LimnerError as error:
        logger.info("the report has no maps of words: %s", error)
        return None
    charts = []
    for method, title in TITLES.items():
        figure = plot_words(title, word_map.words, word_map.positions[method], word_map.clusters)
        charts.append(Markup(plots.svg(figure, f"{title}: map of {len(word_map.words)} words")))
    return {
        "count": len(word_map.words),
        "charts": charts,
        "neighbours": word_map.neighbours,
        "colours": plots.COLOURS,
    }
