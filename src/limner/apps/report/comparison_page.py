"""The page that compares systems: scores with significance, curves, sentences side by side, settings that differ."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from markupsafe import Markup

from limner.apps.report.gallery import SEED, mark_words
from limner.apps.report.images import Thumbnails
from limner.apps.report.page import IMAGE_BYTES
from limner.apps.report.rendering import flatten, frame_shape, long_date, render_page, run_facts, without_folders
from limner.apps.report.scores import LABELS, label
from limner.evaluation.comparison import Comparison
from limner.evaluation.stored_evaluation import load_evaluation
from limner.files import write_text
from limner.plots import figures
from limner.runs.records import EvaluatedItem, LogLine, Point, RunConfig, read_log

DIFFERING = 12
"""Number of images whose sentences differ most in their sentence score."""
SAMPLE = 12
"""Number of images drawn at random."""
IMAGE_SIDE = 360
"""Longer side of an image in pixels."""
CURVES = 4
"""Maximum number of plots of learning curves."""
TRAINING_FACTS = ("parameters", "kept epoch", "epochs trained", "updates", "training time", "tokens per second")
"""Facts about the training of a run that are compared, by their labels."""


def write_comparison(comparison: Comparison, out: Path) -> Path:
    """Write the page of a comparison as one HTML file, and return `out`; an existing file is replaced.

    The runs are read again for their sentences, settings and logs; of a system of several runs the sentences are those
    of the first.

    Raises:
        RunError: a record of a run is damaged or missing.
    """
    runs = {Path(run): system.name for system in comparison.systems for run in system.runs}
    configs = {run: RunConfig.load(run / "config.json") for run in runs}
    logs = {run: read_log(run / "log.jsonl") if (run / "log.jsonl").exists() else [] for run in runs}
    names = _run_names(runs)
    thumbnails = Thumbnails(IMAGE_BYTES)
    images = _images(comparison, thumbnails)
    html = render_page(
        "comparison.html",
        day=long_date(date.today()),
        comparison=comparison,
        legend=comparison.explanation,
        label=label,
        pairs=list(dict.fromkeys((each.system, each.baseline) for each in comparison.contrasts)),
        charts=_charts({names[run]: log for run, log in logs.items()}),
        images=images,
        items=len(load_evaluation(Path(comparison.systems[0].runs[0]), comparison.split).items),
        seed=SEED,
        shape=frame_shape(thumbnails.shapes),
        runs=[names[run] for run in runs],
        settings=differing_rows([dict(flatten(config.recipe)) for config in configs.values()]),
        training=_training_rows(configs, logs),
    )
    write_text(out, html)
    return out


def differing_rows(columns: Sequence[Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    """List the keys whose values differ between columns, with the value of each column; a dash where there is none."""
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [(key, [without_folders(column.get(key, "–")) for column in columns]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _run_names(runs: Iterable[Path]) -> dict[Path, str]:
    """Name runs by their folders, with the folder above where two have the same name."""
    folders = {run: run.resolve() for run in runs}
    names = [folder.name for folder in folders.values()]
    return {
        run: folder.name if names.count(folder.name) == 1 else f"{folder.parent.name}/{folder.name}"
        for run, folder in folders.items()
    }


def _images(comparison: Comparison, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """The images whose sentences differ most in their score, largest difference first, then a random sample."""
    first = {
        system.name: load_evaluation(Path(system.runs[0]), comparison.split).items for system in comparison.systems
    }
    rows = list(zip(*first.values(), strict=True))
    order = random.Random(SEED).sample(range(len(rows)), len(rows))
    differing = sorted(order, key=lambda row: -_difference(rows[row]))[:DIFFERING]
    differing = [row for row in differing if _difference(rows[row]) > 0]
    sample = order[:SAMPLE]
    shown = []
    for row in dict.fromkeys((*differing, *sample)):
        item = rows[row][0]
        groups = [name for name, members in (("best", differing), ("sample", sample)) if row in members]
        sentences = [
            {"system": name, "words": mark_words(each.hypothesis, each.references), "score": each.sentence_score}
            for name, each in zip(first, rows[row], strict=True)
        ]
        url = thumbnails(item.image, IMAGE_SIDE)
        shown.append({"item": item, "url": url, "sentences": sentences, "groups": groups})
    return shown


def _difference(items: Sequence[EvaluatedItem]) -> float:
    scores = [item.sentence_score for item in items if item.sentence_score is not None]
    return max(scores) - min(scores) if scores else 0.0


def _charts(logs: Mapping[str, Sequence[LogLine]]) -> list[Markup]:
    """Plots of the validation loss and of the validation metrics, each with a line of every run."""
    curves: dict[str, dict[str, list[Point]]] = {}
    for run, log in logs.items():
        for line in (line for line in log if line.kind == "val"):
            values = {} if line.loss is None else {"Validation loss, nats per token": line.loss}
            for name, value in line.named().items():
                values[f"Validation {LABELS.get(name, name).replace('Perplexity', 'perplexity')}"] = value
            for title, value in values.items():
                curves.setdefault(title, {name: [] for name in logs})[run].append((line.step, value))
    return [
        Markup(figures.svg(figures.curves(title, lines), f"{title} of {', '.join(lines)} against updates"))
        for title, lines in list(curves.items())[:CURVES]
    ]


def _training_rows(
    configs: Mapping[Path, RunConfig], logs: Mapping[Path, Sequence[LogLine]]
) -> list[tuple[str, list[str]]]:
    facts = [dict(run_facts(config, logs[run])) for run, config in configs.items()]
    return [(key, [row.get(key, "–") for row in facts]) for key in TRAINING_FACTS if any(key in row for row in facts)]
