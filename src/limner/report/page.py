"""The page: what a run folder holds, put together and written.

It reads what a run folder holds (`limner.runs.records`, and the model for its words and its attention), the pictures that
the evaluations name and, for attention, the collection they were made on. It needs no JavaScript and fetches nothing.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from limner.errors import LimnerError, RunError
from limner.files import write_text
from limner.media.modality import IMAGE, MODALITIES, Modality
from limner.report import plots
from limner.report.diagnoses import read_diagnoses
from limner.report.examples import (
    choose_galleries,
    choose_to_explain,
    picture_queries,
    recall_curves,
    sentence_queries,
    show_galleries,
)
from limner.report.gates import show_gates
from limner.report.score_tables import LABELS, control_tables, search_rows, sentence_rows, title_of
from limner.report.thumbnails import Thumbnails
from limner.runs.records import EvaluatedItem, Evaluation, LogLine, RunConfig, read_evaluations, read_log

if TYPE_CHECKING:
    from limner.runs.trained_model import TrainedModel

logger = logging.getLogger(__name__)

PICTURE_BYTES = 4_000_000
"""All pictures of a report together, as they stand in the file; later ones are left out beyond it."""


def write_report(run_folder: Path, out: Path, *, seed: int = 0) -> Path:
    """Write the report of a run.

    Args:
        run_folder: holds `config.json` and, where they exist, `log.jsonl`, `evaluation/*.json`, `diagnosis/*.json`
            and the model.
        out: the HTML file to write; an older one is replaced.
        seed: chooses the fair sample of the galleries, and starts the maps of words.

    Returns:
        `out`.

    Raises:
        RunError: the folder is no run, or a record in it is damaged.
    """
    config = RunConfig.load(run_folder / "config.json")
    log_path = run_folder / "log.jsonl"
    log = read_log(log_path) if log_path.exists() else []
    fused = int(config.provenance.get("train_on_val_epochs", 0))
    modality = _modality(run_folder)
    media = modality.plural
    evaluations = sorted(read_evaluations(run_folder), key=lambda one: (one.split, one.decoding, one.measured))
    published = config.recipe.get("published") or {}
    model = _model(run_folder)
    thumbnails = Thumbnails(PICTURE_BYTES)
    recipe = {key: value for key, value in config.recipe.items() if key != "model"}  # which has a place of its own
    html = _template().render(
        title=config.recipe.get("description") or run_folder.resolve().name,
        facts=_facts(config, log),
        settings={"Model": list(_flatten(config.recipe.get("model") or {})), "Recipe": list(_flatten(recipe))},
        curves=_learning_curves(_before_fusing(log, fused)),
        fused=fused,
        media=media,
        medium=modality.noun,
        evaluations=[
            _section(evaluation, model, published, thumbnails, seed, media)
            for evaluation in evaluations
            if evaluation.image_control == "right"
        ],
        controls=control_tables(evaluations, media),
        diagnoses=read_diagnoses(run_folder),
        words=_words(model, seed),
        seed=seed,
    )
    write_text(out, html)
    if thumbnails.left_out:
        logger.warning("%s: %d picture(s) could not be shown", out, thumbnails.left_out)
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


def _model(run_folder: Path) -> TrainedModel | None:
    """The model, where there is one that can be loaded."""
    from limner.runs.trained_model import load_trained_model  # imports torch, which the records do without

    try:
        return load_trained_model(run_folder)
    except LimnerError as error:
        logger.info("the report has no maps of words and no attention: %s", error)
        return None


def _modality(run_folder: Path) -> Modality:
    """Modality of the features that the model was trained on; images where there are none."""
    from limner.features.spec import FeatureSpec  # imports Lance, which a report without a run does without

    stored = json.loads((run_folder / "config.json").read_bytes()).get("features", ())
    specs = [FeatureSpec.parse(values, str(run_folder / "config.json")) for values in stored]
    return MODALITIES[specs[0].modality] if specs else IMAGE


def _facts(config: RunConfig, log: Sequence[LogLine]) -> list[tuple[str, str]]:
    facts = [(key, _without_folders(value)) for key, value in _flatten(config.provenance)]
    if log:
        facts.append(("updates", f"{log[-1].step:,}"))
        facts.append(("epochs", f"{log[-1].epoch:g}"))
        if log[-1].seconds is not None:
            facts.append(("training time", _duration(log[-1].seconds)))
    speeds = [line.words_per_second for line in log if line.words_per_second]
    if speeds:
        facts.append(("words a second", f"{sorted(speeds)[len(speeds) // 2]:,.0f} (median)"))
    return facts


def _without_folders(text: str) -> str:
    """Absolute paths become their last part: where things lie on a machine is nobody else's business."""
    return re.sub(r"(?<![\w.~])/(?:[^/\s]+/)+", "", text)


def _flatten(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as `a.b.c` and what stands there."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{before}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{before}{key}", ", ".join(str(part) for part in value) or "none"
        else:
            yield f"{before}{key}", "none" if value is None else str(value)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    if minutes < 1:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest:.0f} s"


def _before_fusing(log: Sequence[LogLine], fused: int) -> Sequence[LogLine]:
    """The log without its last epochs, in which the validation sentences were learned from as well."""
    return [line for line in log if line.epoch <= log[-1].epoch - fused]


def _learning_curves(log: Sequence[LogLine]) -> list[Markup]:
    if not any(line.loss is not None for line in log):
        return []
    figures = [(plots.loss_curves(log), "Loss of training and validation against updates")]
    seen = dict.fromkeys(name for line in log if line.kind == "val" for name in line.named())
    others = {name: LABELS.get(name, name) for name in seen if name != "perplexity"}
    if "perplexity" in seen:
        figure = plots.metric_curves("Validation perplexity", log, {"perplexity": LABELS["perplexity"]})
        figures.append((figure, "Perplexity on the validation split against updates"))
    if others:
        title = "Validation " + (next(iter(others.values())) if len(others) == 1 else "metrics")
        description = f"{', '.join(others.values())} on the validation split against updates"
        figures.append((plots.metric_curves(title, log, others), description))
    return [Markup(plots.svg(figure, description)) for figure, description in figures]


def _section(
    evaluation: Evaluation,
    model: TrainedModel | None,
    published: Mapping[str, Any],
    thumbnails: Thumbnails,
    seed: int,
    media: str,
) -> dict[str, Any]:
    """Everything the template shows of one evaluation, beside the row of a paper that the recipe names."""
    theirs = published.get("values", {})
    galleries = choose_galleries(evaluation.items, seed)
    translated = any(item.source is not None for item in evaluation.items)
    return {
        "evaluation": evaluation,
        "title": title_of(evaluation),
        "units": "sentences" if translated else media,
        "translated": translated,
        "collection": _without_folders(evaluation.collection),
        "command": _without_folders(evaluation.command),
        "duration": _duration(evaluation.seconds),
        "published": published.get("row"),
        "rows": sentence_rows(evaluation.scores, theirs, media),
        "searches": search_rows(evaluation.scores, theirs, media),
        "galleries": show_galleries(galleries, thumbnails),
        "curves": recall_curves(evaluation, media),
        "picture_queries": picture_queries(evaluation, thumbnails),
        "sentence_queries": sentence_queries(evaluation, thumbnails),
        "gates": None if evaluation.gates is None else show_gates(evaluation.gates),
        **_attention(evaluation, model, choose_to_explain(galleries), thumbnails),
    }


def _attention(
    evaluation: Evaluation, model: TrainedModel | None, chosen: Sequence[EvaluatedItem], thumbnails: Thumbnails
) -> dict[str, Any]:
    """What some sentences were made from; of translations, why it is not shown where it cannot be."""
    try:
        if model is None:
            raise RunError("there is no model in the run folder that could be asked")
        from limner.report.explanations import explain_items  # imports torch

        return {"explained": explain_items(model, evaluation, chosen, thumbnails), "unexplained": ""}
    except LimnerError as error:
        logger.info("the report of '%s' has no attention: %s", evaluation.name, error)
        translated = any(item.source is not None for item in chosen)
        return {"explained": [], "unexplained": _without_folders(str(error)) if translated else ""}


def _words(model: TrainedModel | None, seed: int) -> dict[str, Any] | None:
    """Maps of the model's words; None where there is no model with word vectors, or no scikit-learn."""
    if model is None:
        return None
    from limner.report.word_map import TITLES, map_words  # imports torch

    try:
        found = map_words(model, seed=seed)
    except LimnerError as error:
        logger.info("the report has no maps of words: %s", error)
        return None
    charts = []
    for method, title in TITLES.items():
        figure = plots.word_map(title, found.words, found.positions[method], found.groups)
        charts.append(Markup(plots.svg(figure, f"{title}: {len(found.words)} words, near each other where alike")))
    return {
        "count": len(found.words),
        "charts": charts,
        "neighbours": found.neighbours,
        "colours": plots.COLOURS,
    }
