"""The report of a run: one HTML page with examples, scores beside baselines, curves, plots and settings.

It reads the records of a run directory (`limner.runs`), the model for its attention, the images that the
evaluations name and, for attention, the collection. The page needs no network. A small script filters, enlarges and
shows the attention of a word; without it everything is readable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from markupsafe import Markup

from limner.apps.report.gallery import SEED
from limner.apps.report.images import Thumbnails
from limner.apps.report.rendering import render_page, without_folders
from limner.apps.report.scores import LABELS, control_tables
from limner.apps.report.sections import PageContext, evaluation_section, first_section, read_diagnoses, read_groundings
from limner.files import write_text
from limner.files.structured import read_json_file
from limner.media.modality import IMAGE, MODALITIES
from limner.plots import figures
from limner.progress import duration
from limner.runs.evaluations import Evaluation, read_evaluations
from limner.runs.records import LogLine, RunConfig, read_log, require_run_directory
from limner.text.labels import LABEL_LANGUAGES

logger = logging.getLogger(__name__)

IMAGE_BYTES = 6_000_000
"""Maximum total size of the embedded images of a report in bytes; further images are left out."""
FACT_LABELS = {"epochs": "kept epoch", "seed": "random seed", "step_seconds": "seconds in training steps"}


class LearningCurves(NamedTuple):
    """Plots of a training, and the marked epochs."""

    charts: list[Markup]
    kept: str  # sentence on the kept weights; empty if no validation of the log belongs to them
    train_on_val_epochs: int
    """Number of the last epochs, on the training and validation splits together, which are left out."""


def write_report(run: Path, out: Path) -> Path:
    """Write the report of a run; RunError if the folder is not a run directory, or a record or the model is damaged."""
    require_run_directory(run)
    config = RunConfig.load(run / "config.json")
    order = attrgetter("split", "decoding", "measured")
    context = _context(run, config, sorted(read_evaluations(run), key=order))
    day = f"{(today := date.today()).day} {today:%B %Y}"
    write_text(out, render_page("report.html", day=day, **_content(run, config, context)))
    if context.thumbnails.left_out:
        logger.warning("%s: %d image(s) are missing, damaged or over the size limit", out, context.thumbnails.left_out)
    return out


def choose_first_evaluation(evaluations: Sequence[Evaluation], test: str) -> Evaluation | None:
    """Choose the evaluation of the first section: right images, test split, settings of the recipe."""

    def distance(evaluation: Evaluation) -> tuple[bool, bool, bool, int]:
        is_other = evaluation.split != test
        return is_other, bool(evaluation.decoding), bool(evaluation.measured), -len(evaluation.scores)

    right = (evaluation for evaluation in evaluations if evaluation.image_control == "right")
    return min(right, key=distance, default=None)


def learning_curves(config: RunConfig, log: Sequence[LogLine]) -> LearningCurves:
    """Plot the losses and validation metrics of a training, with the epoch whose weights are kept.

    The last epochs of a training on the training and validation splits together (`training.train_on_val_epochs`) are
    left out.
    """
    joint = int(config.provenance.get("train_on_val_epochs", 0))
    shown = [line for line in log if line.epoch <= log[-1].epoch - joint]
    validations = [line for line in shown if line.kind == "val"]
    of_kept = [line for line in validations if line.epoch == config.provenance.get("epochs")]
    kept, sentence = None, ""
    if of_kept:
        kept, epoch = of_kept[-1].step, of_kept[-1].epoch
        total = f" of {log[-1].epoch:g}" if epoch != log[-1].epoch else ", the last one"
        sentence = f"The dashed line is epoch {epoch:g}{total}, whose weights are kept."
    losses = {
        name: [(line.step, line.loss) for line in shown if line.kind == kind and line.loss is not None]
        for kind, name in (("train", "training"), ("val", "validation"))
    }
    logged = dict.fromkeys(name for line in validations for name in line.named())
    values = {
        LABELS.get(name, name): [(line.step, line.named()[name]) for line in validations if name in line.named()]
        for name in logged
    }
    charts = [("Loss, nats per token", "Training and validation loss against updates", losses)]
    if "perplexity" in logged:
        perplexity = {LABELS["perplexity"]: values.pop(LABELS["perplexity"])}
        charts.append(("Validation perplexity", "Perplexity on the validation split against updates", perplexity))
    if values:
        title = "Validation " + (next(iter(values)) if len(values) == 1 else "metrics")
        charts.append((title, f"{', '.join(values)} on the validation split against updates", values))
    if not any(losses.values()):
        charts = []
    drawn = [Markup(figures.svg(figures.curves(title, lines, kept), text)) for title, text, lines in charts]
    return LearningCurves(drawn, sentence, joint)


def _context(run: Path, config: RunConfig, evaluations: Sequence[Evaluation]) -> PageContext:
    from limner.features.spec import FeatureSpec  # imported late: imports numpy and Lance
    from limner.runs.trained_model import WEIGHTS, load_trained_model  # imported late: imports torch

    stored = read_json_file(run / "config.json")
    specs = [FeatureSpec.parse(values, str(run / "config.json")) for values in stored.get("features", ())]
    return PageContext(
        model=load_trained_model(run) if (run / WEIGHTS).exists() else None,
        modality=MODALITIES[specs[0].modality] if specs else IMAGE,
        published=config.recipe.get("published") or {},
        thumbnails=Thumbnails(IMAGE_BYTES),
        lang=(config.recipe.get("data") or {}).get("lang") or "",
        vocabulary=stored.get("vocab_size"),
        evaluations=evaluations,
    )


def _content(run: Path, config: RunConfig, context: PageContext) -> dict[str, Any]:
    log_path = run / "log.jsonl"
    log = read_log(log_path) if log_path.exists() else []
    name = run.resolve().name
    first = choose_first_evaluation(context.evaluations, (config.recipe.get("data") or {}).get("test") or "test")
    right = [evaluation for evaluation in context.evaluations if evaluation.image_control == "right"]
    recipe = {key: value for key, value in config.recipe.items() if key != "model"}  # the model has its own section
    return {
        "run_name": name,
        "title": config.recipe.get("description") or name,
        "about": [without_folders(part) for part in _about(config)],
        "beginning": None if first is None else first_section(first, context),
        "learning": learning_curves(config, log),
        "modality": context.modality,
        "evaluations": [evaluation_section(evaluation, context) for evaluation in right],
        "controls": control_tables(context.evaluations, context.modality),
        "diagnoses": read_diagnoses(run),
        "groundings": read_groundings(run, context.thumbnails),
        "seed": SEED,
        "shape": frame_shape(context.thumbnails.shapes),
        "facts": run_facts(config, log),
        "settings": {"Model": list(_flatten(config.recipe.get("model") or {})), "Recipe": list(_flatten(recipe))},
    }


def _about(config: RunConfig) -> list[str]:
    model = (config.recipe.get("model") or {}).get("name")
    collection = config.provenance.get("collection")
    data = config.recipe.get("data") or {}
    languages = " to ".join(str(lang) for lang in (data.get("source_lang"), data.get("lang")) if lang)
    what = "target" if data.get("lang") in LABEL_LANGUAGES else "language"
    facts = {"model": model, what: languages, "collection": collection and Path(str(collection)).name}
    return [f"{name} {value}" for name, value in facts.items() if value]


def run_facts(config: RunConfig, log: Sequence[LogLine]) -> list[tuple[str, str]]:
    """List the provenance of a run, and the size of its training; each figure once."""
    provenance = dict(config.provenance)
    if log and log[-1].seconds is not None:  # a fact about the whole training replaces that about the kept weights
        provenance.pop("seconds", None)
    facts = [(FACT_LABELS.get(key, key), without_folders(value)) for key, value in _flatten(provenance)]
    if log:
        facts.append(("updates", f"{log[-1].step:,}"))
        if "epochs" not in provenance or float(provenance["epochs"]) != log[-1].epoch:
            facts.append(("epochs trained", f"{log[-1].epoch:g}"))
        if log[-1].seconds is not None:
            facts.append(("training time", duration(log[-1].seconds)))
    speeds = [line.tokens_per_second for line in log if line.tokens_per_second]
    if speeds:
        facts.append(("tokens per second", f"{sorted(speeds)[len(speeds) // 2]:,.0f} (median)"))
    return facts


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings as pairs of a dotted key and a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{key}", ", ".join(str(part) for part in value) or "none"
        else:
            yield f"{prefix}{key}", "none" if value is None else str(value)


def frame_shape(shapes: Sequence[float]) -> float:
    """Return the aspect ratio of the frames of the images: the median of the images, from 1.0 to 1.8."""
    return round(min(1.8, max(1.0, median(shapes))), 3) if shapes else 4 / 3
