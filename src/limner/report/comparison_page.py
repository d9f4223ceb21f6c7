"""The page that compares systems: scores with significance, curves, sentences side by side, settings that differ."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from limner.evaluation.comparison import Comparison
from limner.evaluation.stored_evaluation import load_evaluation
from limner.files import write_text
from limner.report import plots
from limner.report.headlines import Bar
from limner.report.page import IMAGE_BYTES, frame_shape, long_date
from limner.report.provenance import flatten, run_facts, without_folders
from limner.report.rendering import render_page
from limner.report.score_tables import LABELS, label
from limner.report.thumbnails import Thumbnails
from limner.report.word_marks import MarkedWord, mark_words
from limner.runs.records import EvaluatedItem, LogLine, RunConfig, read_log

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


class ComparedSentence(NamedTuple):
    """The sentence of a system for an image."""

    system: str
    words: list[MarkedWord]
    score: float | None
    """Smoothed sentence BLEU-4, or None."""


class ComparedImage(NamedTuple):
    """An image, or a source sentence, with the sentences of all systems."""

    item: EvaluatedItem
    url: str | None
    sentences: list[ComparedSentence]
    groups: list[str]


def write_comparison(comparison: Comparison, out: Path, *, seed: int = 0, today: date | None = None) -> Path:
    """Write the page of a comparison as one HTML file.

    Args:
        comparison: result of `limner.evaluation.compare.compare`, whose runs are read again for their sentences,
            settings and logs; of a system of several runs the sentences are those of the first.
        out: HTML file to write; an existing file is replaced.
        seed: random seed of the sample of images.
        today: date of the page; default: the present day.

    Returns:
        `out`.

    Raises:
        RunError: a record of a run is damaged or missing.
    """
    runs = {Path(run): system.name for system in comparison.systems for run in system.runs}
    configs = {run: RunConfig.load(run / "config.json") for run in runs}
    logs = {run: read_log(run / "log.jsonl") if (run / "log.jsonl").exists() else [] for run in runs}
    names = _run_names(runs)
    thumbnails = Thumbnails(IMAGE_BYTES)
    images = _images(comparison, thumbnails, seed)
    html = render_page(
        "comparison.html",
        day=long_date(today or date.today()),
        comparison=comparison,
        legend=comparison.explanation,
        cards=_cards(comparison),
        columns=[_heading(one.name, one.higher_is_better) for one in comparison.metrics],
        scores=_score_rows(comparison),
        differences=_difference_rows(comparison),
        charts=_charts({names[run]: log for run, log in logs.items()}),
        images=images,
        items=len(load_evaluation(Path(comparison.systems[0].runs[0]), comparison.split).items),
        seed=seed,
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


def _heading(metric: str, higher_is_better: bool) -> str:
    return f"{label(metric)} {'↑' if higher_is_better else '↓'}"


def _cards(comparison: Comparison) -> list[dict[str, Any]]:
    """A bar of each system for each metric; the best is emphasised."""
    cards = []
    for metric in comparison.metrics:
        values = {one.name: comparison.score(one.name, metric.name).value for one in comparison.systems}
        best = (max if metric.higher_is_better else min)(values.values())
        largest = max(max(values.values()), 1e-12)
        bars = [Bar(name, f"{value:.2f}", max(0.0, value / largest), value == best) for name, value in values.items()]
        cards.append({"label": _heading(metric.name, metric.higher_is_better), "bars": bars})
    return cards


def _score_rows(comparison: Comparison) -> list[tuple[str, list[tuple[str, str]]]]:
    """Rows of systems: the score and its interval by each metric."""
    rows = []
    for system in comparison.systems:
        scores = [comparison.score(system.name, metric.name) for metric in comparison.metrics]
        cells = [f"{one.value:.2f}{'' if one.spread is None else f' ± {one.spread:.2f}'} {one.marks}" for one in scores]
        intervals = [f"{one.interval[0]:.2f} to {one.interval[1]:.2f}" for one in scores]
        rows.append((system.name, [(cell.strip(), text) for cell, text in zip(cells, intervals, strict=True)]))
    return rows


def _difference_rows(comparison: Comparison) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    """Rows of pairs of systems: the difference, its interval and p-value, and whether it is significant."""
    rows = []
    for system, baseline in dict.fromkeys((one.system, one.baseline) for one in comparison.contrasts):
        tests = [comparison.contrast(system, baseline, metric.name) for metric in comparison.metrics]
        cells = [
            (
                f"{one.difference:+.2f}",
                f"{one.interval[0]:+.2f} to {one.interval[1]:+.2f}, p = {one.adjusted_p:.3g}",
                one.adjusted_p < comparison.settings.level,
            )
            for one in tests
        ]
        rows.append((f"{system} − {baseline}", cells))
    return rows


def _images(comparison: Comparison, thumbnails: Thumbnails, seed: int) -> list[ComparedImage]:
    """The images whose sentences differ most in their score, largest difference first, then a random sample."""
    first = {one.name: load_evaluation(Path(one.runs[0]), comparison.split).items for one in comparison.systems}
    rows = list(zip(*first.values(), strict=True))
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    differing = sorted(order, key=lambda row: -_difference(rows[row]))[:DIFFERING]
    differing = [row for row in differing if _difference(rows[row]) > 0]
    sample = order[:SAMPLE]
    shown = []
    for row in dict.fromkeys((*differing, *sample)):
        item = rows[row][0]
        groups = [name for name, members in (("best", differing), ("sample", sample)) if row in members]
        sentences = [
            ComparedSentence(name, mark_words(one.hypothesis, one.references), one.sentence_score)
            for name, one in zip(first, rows[row], strict=True)
        ]
        shown.append(ComparedImage(item, thumbnails(item.image, IMAGE_SIDE), sentences, groups))
    return shown


def _difference(items: Sequence[EvaluatedItem]) -> float:
    scores = [item.sentence_score for item in items if item.sentence_score is not None]
    return max(scores) - min(scores) if scores else 0.0


def _charts(logs: Mapping[str, Sequence[LogLine]]) -> list[Markup]:
    """Plots of the validation loss and of the validation metrics, each with a line of every run."""
    validations = {name: [line for line in log if line.kind == "val"] for name, log in logs.items()}
    curves = {"Validation loss, nats per token": _points(validations, lambda line: line.loss)}
    logged = dict.fromkeys(key for lines in validations.values() for line in lines for key in line.named())
    for key in logged:
        curves[f"Validation {LABELS.get(key, key).replace('Perplexity', 'perplexity')}"] = _points(
            validations, lambda line, key=key: line.named().get(key)
        )
    present = [(title, lines) for title, lines in curves.items() if any(lines.values())][:CURVES]
    return [
        Markup(plots.svg(plots.run_curves(title, lines), f"{title} of {', '.join(lines)} against updates"))
        for title, lines in present
    ]


def _points(validations: Mapping[str, Sequence[LogLine]], value_of: Any) -> dict[str, list[tuple[float, float]]]:  # noqa: ANN401
    return {
        name: [(line.step, value) for line in lines if (value := value_of(line)) is not None]
        for name, lines in validations.items()
    }


def _training_rows(
    configs: Mapping[Path, RunConfig], logs: Mapping[Path, Sequence[LogLine]]
) -> list[tuple[str, list[str]]]:
    facts = [dict(run_facts(config, logs[run])) for run, config in configs.items()]
    return [(key, [one.get(key, "–") for one in facts]) for key in TRAINING_FACTS if any(key in one for one in facts)]
