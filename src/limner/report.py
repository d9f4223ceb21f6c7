"""The report of a run: one HTML file with everything in it, for a desk, a phone or a printer.

It reads what a run folder holds (`limner.records`, and the model for its words) and the pictures that the
evaluations name. It needs no JavaScript and fetches nothing.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from limner import plots
from limner.errors import LimnerError, PictureError
from limner.files import write_whole
from limner.metrics.base import Score
from limner.records import (
    EvaluatedItem,
    Evaluation,
    LogLine,
    RunConfig,
    read_evaluations,
    read_log,
)
from limner.vision.images import open_picture

logger = logging.getLogger(__name__)

BEST_AND_WORST = 8
FAIR_SAMPLE = 12
QUERIES = 6
PICTURE_BYTES = 4_000_000
"""All pictures of a report together, as they stand in the file; later ones are left out beyond it."""
LARGE, SMALL = 256, 144

LABELS = {
    "perplexity": "Perplexity",
    **{f"bleu{order}": f"BLEU-{order}" for order in (1, 2, 3, 4)},
    "sacrebleu": "BLEU (sacrebleu)",
    "chrf": "chrF",
    "cider": "CIDEr",
    "rouge_l": "ROUGE-L",
    "meteor": "METEOR",
    "novel": "Novel sentences, %",
    "distinct_words": "Distinct words",
    **{f"sampled_bleu{order}": f"BLEU-{order} of samples" for order in (1, 2, 3)},
    **{f"sampled_bleu{order}_std": f"BLEU-{order} of samples, standard deviation" for order in (1, 2, 3)},
}
SEARCH_LABELS = {
    "r1": "R@1",
    "r5": "R@5",
    "r10": "R@10",
    "median_rank": "Median rank",
    "curve_area": "Area under the recall curve",
    "match_area": "Area under the match curve",
}


class Row(NamedTuple):
    """A line of a table of scores."""

    label: str
    value: str
    published: str
    signature: str


def write_report(run_folder: Path, out: Path, *, seed: int = 0) -> Path:
    """Write the report of a run.

    Args:
        run_folder: holds `config.json` and, where they exist, `log.jsonl`, `evaluation/*.json` and the model.
        out: the HTML file to write; an older one is replaced.
        seed: chooses the fair sample of the galleries, and starts the maps of words.

    Returns:
        `out`.

    Raises:
        CheckpointError: the folder is no run, or a record in it is damaged.
    """
    config = RunConfig.load(run_folder / "config.json")
    log_path = run_folder / "log.jsonl"
    log = read_log(log_path) if log_path.exists() else []
    fused = int(config.provenance.get("fused_epochs", 0))
    media = _media(run_folder)
    evaluations = sorted(read_evaluations(run_folder), key=lambda one: (one.split, one.search, one.measured))
    published = config.recipe.get("published") or {}
    thumbnails = Thumbnails(PICTURE_BYTES)
    pages = Environment(
        loader=PackageLoader("limner"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    recipe = {key: value for key, value in config.recipe.items() if key != "model"}  # which has a place of its own
    html = pages.get_template("report.html").render(
        title=config.recipe.get("description") or run_folder.resolve().name,
        facts=_facts(config, log),
        settings={"Model": list(_flatten(config.recipe.get("model") or {})), "Recipe": list(_flatten(recipe))},
        curves=_learning_curves(_before_fusing(log, fused)),
        fused=fused,
        media=media,
        medium=media.removesuffix("s"),
        evaluations=[
            _section(evaluation, published, thumbnails, seed, media)
            for evaluation in evaluations
            if evaluation.pictures == "right"
        ],
        controls=_controls(evaluations, media),
        words=_words(run_folder, seed),
        seed=seed,
    )
    write_whole(out, html)
    if thumbnails.left_out:
        logger.warning("%s: %d picture(s) could not be shown", out, thumbnails.left_out)
    return out


def _media(run_folder: Path) -> str:
    """What the model was shown: 'pictures' or 'sounds'."""
    from limner.vision.features import FeatureSpec  # imports Lance, which a report without a run does without

    stored = json.loads((run_folder / "config.json").read_bytes()).get("features", ())
    specs = [FeatureSpec.parse(values, str(run_folder / "config.json")) for values in stored]
    return specs[0].media if specs else "pictures"


class Thumbnails:
    """Pictures as `data:` addresses, small, within a budget, each file read once for a size."""

    def __init__(self, budget: int) -> None:
        self.left_out = 0
        self._room = budget
        self._known: dict[tuple[str, int], str | None] = {}

    def __call__(self, path: str | None, side: int) -> str | None:
        """The picture, no larger than `side` pixels; None when it is missing, damaged or over the budget."""
        if path is None:
            return None
        if (path, side) not in self._known:
            self._known[path, side] = self._read(Path(path), side)
        address = self._known[path, side]
        if address is None or len(address) > self._room:
            self.left_out += 1
            return None
        self._room -= len(address)
        return address

    @staticmethod
    def _read(path: Path, side: int) -> str | None:
        try:
            picture = open_picture(path, at_least=side)
        except PictureError as error:
            logger.info("%s", error)
            return None
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
        target = io.BytesIO()
        picture.save(target, format="JPEG", quality=82, optimize=True)
        return "data:image/jpeg;base64," + base64.b64encode(target.getvalue()).decode()


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


def _title(evaluation: Evaluation) -> str:
    """Split, and search and measure where they are not the recipe's."""
    others = [part for named in (evaluation.search, evaluation.measured) for part in named.split(",") if part]
    return ", ".join((evaluation.split, *others))


def _directions(media: str) -> dict[str, str]:
    return {
        "image_to_text": f"Sentences found for a {media.removesuffix('s')}",
        "text_to_image": f"{media.capitalize()} found for a sentence",
    }


def _label(name: str, media: str) -> str:
    """A score's name for people, with the direction of a search."""
    for direction, title in _directions(media).items():
        if name.startswith(f"{direction}_"):
            return f"{title}: {SEARCH_LABELS.get(name.removeprefix(f'{direction}_'), name)}"
    return LABELS.get(name, name)


def _controls(evaluations: Sequence[Evaluation], media: str) -> list[dict[str, Any]]:
    """Beside the right pictures' figures, those of the same measure with other pictures shown; one table a measure."""
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in sorted(evaluations, key=lambda one: one.pictures != "right"):
        groups.setdefault(_title(evaluation), []).append(evaluation)
    tables = []
    for title, group in groups.items():
        if group[-1].pictures == "right":
            continue
        names = dict.fromkeys(score.name for evaluation in group for score in evaluation.scores)
        found = [{score.name: _shown(score) for score in evaluation.scores} for evaluation in group]
        tables.append(
            {
                "title": title,
                "columns": [evaluation.pictures for evaluation in group],
                "rows": [(_label(name, media), [values.get(name, "–") for values in found]) for name in names],
            }
        )
    return tables


def _section(
    evaluation: Evaluation, published: Mapping[str, Any], thumbnails: Thumbnails, seed: int, media: str
) -> dict[str, Any]:
    """Everything the template shows of one evaluation, beside the row of a paper that the recipe names."""
    theirs = published.get("values", {})
    directions = _directions(media)
    searches = {
        title: [
            _row(SEARCH_LABELS.get(score.name.removeprefix(f"{direction}_"), score.name), score, theirs)
            for score in evaluation.scores
            if score.name.startswith(f"{direction}_")
        ]
        for direction, title in directions.items()
    }
    return {
        "evaluation": evaluation,
        "title": _title(evaluation),
        "collection": _without_folders(evaluation.collection),
        "command": _without_folders(evaluation.command),
        "duration": _duration(evaluation.seconds),
        "published": published.get("row"),
        "rows": [
            _row(LABELS.get(score.name, score.name), score, theirs)
            for score in evaluation.scores
            if not score.name.startswith(tuple(directions))
        ],
        "searches": {title: rows for title, rows in searches.items() if rows},
        "galleries": _galleries(evaluation.items, thumbnails, seed),
        "curves": _recall_curves(evaluation, directions),
        "picture_queries": _picture_queries(evaluation, thumbnails),
        "sentence_queries": _sentence_queries(evaluation, thumbnails),
    }


def _row(label: str, score: Score, published: Mapping[str, float]) -> Row:
    theirs = published.get(score.name)
    beside = "–" if theirs is None else _shown(score._replace(value=theirs))
    return Row(label, _shown(score), beside, score.signature)


def _shown(score: Score) -> str:
    if "scale:" in score.signature:
        return f"{score.value:.1f}"
    return f"{score.value:,.2f}".rstrip("0").rstrip(".")


def _galleries(items: Sequence[EvaluatedItem], thumbnails: Thumbnails, seed: int) -> list[dict[str, Any]]:
    """The best, a fair sample and the worst; of a small split, everything."""
    scored = sorted(
        (item for item in items if item.sentence_score is not None),
        key=lambda item: item.sentence_score or 0.0,
        reverse=True,
    )
    if len(items) <= FAIR_SAMPLE or not scored:
        chosen = {"A fair sample": _sample(items, seed)}
    else:
        worst = scored[BEST_AND_WORST:][: -BEST_AND_WORST - 1 : -1]
        chosen = {
            "Best": scored[:BEST_AND_WORST],
            "A fair sample": _sample(items, seed),
            "Worst": worst,
        }
    return [
        {"title": title, "cards": [(item, thumbnails(item.image, LARGE)) for item in shown]}
        for title, shown in chosen.items()
        if shown
    ]


def _sample(items: Sequence[EvaluatedItem], seed: int) -> list[EvaluatedItem]:
    return random.Random(seed).sample(list(items), min(FAIR_SAMPLE, len(items)))


def _recall_curves(evaluation: Evaluation, directions: Mapping[str, str]) -> list[Markup]:
    if evaluation.retrieval is None:
        return []
    found, matches = evaluation.retrieval.curves, evaluation.retrieval.match_curves
    chance = evaluation.retrieval.chance_curves
    drawn = []
    for direction, title in directions.items():
        if points := getattr(found, direction):
            figure = plots.recall_curves(title, {"this model": points})
            drawn.append(Markup(plots.svg(figure, f"Recall curve: {title}")))
    for direction, title in directions.items():
        if matches is not None and chance is not None:
            figure = plots.recall_curves(
                f"{title}, first match", {"this model": getattr(matches, direction)}, getattr(chance, direction)
            )
            drawn.append(Markup(plots.svg(figure, f"Match curve: {title}")))
    return drawn


def _picture_queries(evaluation: Evaluation, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    queries = evaluation.retrieval.image_to_text[:QUERIES] if evaluation.retrieval else ()
    return [{"query": query, "picture": thumbnails(query.image, LARGE)} for query in queries]


def _sentence_queries(evaluation: Evaluation, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    queries = evaluation.retrieval.text_to_image[:QUERIES] if evaluation.retrieval else ()
    said = {item.id: item.references[0] for item in evaluation.items if item.references}
    return [
        {
            "query": query,
            "found": [(one, thumbnails(one.image, SMALL), said.get(one.id, "")) for one in query.top],
        }
        for query in queries
    ]


def _words(run_folder: Path, seed: int) -> dict[str, Any] | None:
    """Maps of the model's words; None where there is no model with word vectors, or no scikit-learn."""
    from limner.checkpoint import load_checkpoint  # imports torch, which all else here does without
    from limner.word_map import TITLES, map_words

    try:
        found = map_words(load_checkpoint(run_folder), seed=seed)
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
