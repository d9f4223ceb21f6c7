"""The report of a run: one HTML page with scores, examples, plots and settings.

It reads the records of a run directory (`limner.runs.records`), the model for its word vectors and attention, the
images that the evaluations name and, for attention, the collection. The page needs no JavaScript and no network.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from limner.errors import LimnerError, RunError
from limner.files import write_text
from limner.media.modality import IMAGE, MODALITIES, Modality
from limner.report import plots
from limner.report.diagnoses import read_diagnoses
from limner.report.examples import (
    Galleries,
    choose_galleries,
    choose_to_explain,
    gallery_cards,
    image_query_cards,
    recall_charts,
    region_cards,
    sentence_query_cards,
)
from limner.report.gates import gate_section
from limner.report.grounding import read_groundings
from limner.report.labels import is_of_labels, reliability_chart
from limner.report.score_tables import LABELS, control_tables, generation_rows, retrieval_rows, title_of
from limner.report.thumbnails import Thumbnails
from limner.report.tracks import PREDICTED, RIGHT, by_position_error, draw_track, is_of_tracks, key_positions
from limner.runs.records import EvaluatedItem, Evaluation, LogLine, RunConfig, read_evaluations, read_log
from limner.structured_files import read_json_file

if TYPE_CHECKING:
    from limner.features.spec import FeatureSpec
    from limner.media.video import FrameSampling
    from limner.runs.trained_model import TrainedModel

logger = logging.getLogger(__name__)

IMAGE_BYTES = 4_000_000
"""Maximum total size of the embedded images of a report in bytes; further images are left out."""


class PageContext(NamedTuple):
    """Objects that the sections of a page share."""

    model: TrainedModel | None
    """The trained model; None if it cannot be loaded."""
    modality: Modality
    """Modality of the features that the model was trained on; images if there are none."""
    frames: FrameSampling | None
    """Frames of the clips that the model reads; None for other features."""
    published: Mapping[str, Any]
    """Published row of the recipe: its name and its values."""
    thumbnails: Thumbnails
    seed: int


def write_report(run: Path, out: Path, *, seed: int = 0) -> Path:
    """Write the report of a run.

    Args:
        run: run directory with `config.json` and, optionally, `log.jsonl`, `evaluation/*.json`, `diagnosis/*.json`,
            `diagnosis/grounding/*.json` and the model.
        out: HTML file to write; an existing file is replaced.
        seed: random seed of the random sample and of the maps of words.

    Returns:
        `out`.

    Raises:
        RunError: the folder is not a run directory, or a record is damaged.
    """
    config = RunConfig.load(run / "config.json")
    log_path = run / "log.jsonl"
    log = read_log(log_path) if log_path.exists() else []
    train_on_val_epochs = int(config.provenance.get("train_on_val_epochs", 0))
    evaluations = sorted(read_evaluations(run), key=lambda one: (one.split, one.decoding, one.measured))
    with_own_images = [evaluation for evaluation in evaluations if evaluation.image_control == "right"]
    spec = _feature_spec(run)
    context = PageContext(
        model=_load_model(run),
        modality=MODALITIES[spec.modality] if spec else IMAGE,
        frames=spec.frames if spec else None,
        published=config.recipe.get("published") or {},
        thumbnails=Thumbnails(IMAGE_BYTES),
        seed=seed,
    )
    recipe = {key: value for key, value in config.recipe.items() if key != "model"}  # the model has its own section
    html = _template().render(
        title=config.recipe.get("description") or run.resolve().name,
        facts=_facts(config, log),
        settings={"Model": list(_flatten(config.recipe.get("model") or {})), "Recipe": list(_flatten(recipe))},
        curves=_learning_curves(_before_training_on_val(log, train_on_val_epochs)),
        train_on_val_epochs=train_on_val_epochs,
        modality=context.modality,
        evaluations=[_section(evaluation, context) for evaluation in with_own_images],
        controls=control_tables(evaluations, context.modality),
        diagnoses=read_diagnoses(run),
        groundings=read_groundings(run, context.thumbnails),
        words=_words(context.model, seed),
        seed=seed,
    )
    write_text(out, html)
    if context.thumbnails.left_out:
        logger.warning("%s: %d image(s) are missing, damaged or over the size limit", out, context.thumbnails.left_out)
    return out


def _template() -> Template:
    pages = Environment(
        loader=PackageLoader("limner"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return pages.get_template("report.html")


def _load_model(run: Path) -> TrainedModel | None:
    """The trained model; None if it cannot be loaded."""
    from limner.runs.trained_model import load_trained_model  # imported late: imports torch

    try:
        return load_trained_model(run)
    except LimnerError as error:
        logger.info("the report has no maps of words and no attention: %s", error)
        return None


def _feature_spec(run: Path) -> FeatureSpec | None:
    """Specification of the features that the model was trained on; None if there are none."""
    from limner.features.spec import FeatureSpec  # imported late: imports numpy and Lance

    stored = read_json_file(run / "config.json").get("features", ())
    specs = [FeatureSpec.parse(values, str(run / "config.json")) for values in stored]
    return specs[0] if specs else None


def _facts(config: RunConfig, log: Sequence[LogLine]) -> list[tuple[str, str]]:
    facts = [(key, _without_folders(value)) for key, value in _flatten(config.provenance)]
    if log:
        facts.append(("updates", f"{log[-1].step:,}"))
        facts.append(("epochs in all", f"{log[-1].epoch:g}"))
        if log[-1].seconds is not None:
            facts.append(("training time", _duration(log[-1].seconds)))
    speeds = [line.tokens_per_second for line in log if line.tokens_per_second]
    if speeds:
        facts.append(("tokens per second", f"{sorted(speeds)[len(speeds) // 2]:,.0f} (median)"))
    return facts


def _without_folders(text: str) -> str:
    """Replace absolute paths by their last part, because the folder names of a machine are private."""
    return re.sub(r"(?<![\w.~])/(?:[^/\s]+/)+", "", text)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings as pairs of a dotted key and a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{key}", ", ".join(str(part) for part in value) or "none"
        else:
            yield f"{prefix}{key}", "none" if value is None else str(value)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    if minutes < 1:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest:.0f} s"


def _before_training_on_val(log: Sequence[LogLine], epochs: int) -> Sequence[LogLine]:
    """The log without the last epochs, whose training data include the validation split."""
    return [line for line in log if line.epoch <= log[-1].epoch - epochs]


def _learning_curves(log: Sequence[LogLine]) -> list[Markup]:
    if not any(line.loss is not None for line in log):
        return []
    figures = [(plots.loss_curves(log), "Training and validation loss against updates")]
    logged = dict.fromkeys(name for line in log if line.kind == "val" for name in line.named())
    metrics = {name: LABELS.get(name, name) for name in logged if name != "perplexity"}
    if "perplexity" in logged:
        figure = plots.metric_curves("Validation perplexity", log, {"perplexity": LABELS["perplexity"]})
        figures.append((figure, "Perplexity on the validation split against updates"))
    if metrics:
        title = "Validation " + (next(iter(metrics.values())) if len(metrics) == 1 else "metrics")
        description = f"{', '.join(metrics.values())} on the validation split against updates"
        figures.append((plots.metric_curves(title, log, metrics), description))
    return [Markup(plots.svg(figure, description)) for figure, description in figures]


def _section(evaluation: Evaluation, context: PageContext) -> dict[str, Any]:
    """The template variables of one evaluation."""
    modality, thumbnails = context.modality, context.thumbnails
    published = context.published.get("values", {})
    tracks = is_of_tracks(evaluation)
    galleries = choose_galleries(by_position_error(evaluation.items) if tracks else evaluation.items, context.seed)
    draw = partial(draw_track, sampling=context.frames) if tracks else None
    translated = any(item.source is not None for item in evaluation.items)
    labels = is_of_labels(evaluation)
    return {
        "evaluation": evaluation,
        "labels": labels,
        "reliability": reliability_chart(evaluation) if labels else None,
        "title": title_of(evaluation),
        "units": "sentences" if translated else modality.plural,
        "task": "Labels" if labels else "Translations" if translated else "Captions",
        "translated": translated,
        "collection": _without_folders(evaluation.collection),
        "command": _without_folders(evaluation.command),
        "duration": _duration(evaluation.seconds),
        "published": context.published.get("row"),
        "generation": generation_rows(evaluation.scores, published, modality),
        "retrieval": retrieval_rows(evaluation.scores, published, modality),
        "galleries": gallery_cards(galleries, thumbnails, draw),
        "tracks": _tracks(galleries) if tracks else None,
        "curves": recall_charts(evaluation, modality),
        "image_queries": image_query_cards(evaluation, thumbnails),
        "sentence_queries": sentence_query_cards(evaluation, thumbnails),
        "regions": region_cards(evaluation.regions, thumbnails),
        "gates": None if evaluation.gates is None else gate_section(evaluation.gates),
        **_attention(evaluation, choose_to_explain(galleries), context),
    }


def _tracks(galleries: Galleries) -> dict[str, Any]:
    """Colours of the dots, and the positions in the key frames of each item by its id."""
    positions = {item.id: key_positions(item) for items in galleries.values() for item in items}
    return {"predicted": PREDICTED, "right": RIGHT, "positions": positions}


def _attention(evaluation: Evaluation, chosen: Sequence[EvaluatedItem], context: PageContext) -> dict[str, Any]:
    """Sentences with their attention; for translations, the reason if there are none."""
    if is_of_labels(evaluation):
        return {"explained": [], "attention_error": ""}
    try:
        if context.model is None:
            raise RunError("the run directory has no model that can be loaded")
        from limner.report.explanations import explain_items  # imported late: imports torch

        sentences = explain_items(context.model, evaluation, chosen, context.thumbnails)
        return {"explained": sentences, "attention_error": ""}
    except LimnerError as error:
        logger.info("the report of '%s' has no attention: %s", evaluation.name, error)
        translated = any(item.source is not None for item in chosen)
        return {"explained": [], "attention_error": _without_folders(str(error)) if translated else ""}


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
        figure = plots.word_map(title, word_map.words, word_map.positions[method], word_map.clusters)
        charts.append(Markup(plots.svg(figure, f"{title}: map of {len(word_map.words)} words")))
    return {
        "count": len(word_map.words),
        "charts": charts,
        "neighbours": word_map.neighbours,
        "colours": plots.COLOURS,
    }
