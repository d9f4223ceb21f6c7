"""Section of the report about training: learning curves with the epoch whose weights are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from limner.report import plots
from limner.report.score_tables import LABELS
from limner.runs.records import LogLine, RunConfig


class LearningCurves(NamedTuple):
    """Plots of a training, and what they mark."""

    charts: list[Markup]
    kept: str
    """Sentence on the kept weights; empty if no validation of the log belongs to them."""
    train_on_val_epochs: int


def learning_curves(config: RunConfig, log: Sequence[LogLine]) -> LearningCurves:
    """Plot the losses and validation metrics of a training.

    The last epochs of a training on the training and validation splits together (`training.train_on_val_epochs`) are
    left out.
    """
    joint = int(config.provenance.get("train_on_val_epochs", 0))
    shown = [line for line in log if line.epoch <= log[-1].epoch - joint]
    line = kept_line(config, shown)
    kept = ""
    if line is not None:
        total = f" of {log[-1].epoch:g}" if line.epoch != log[-1].epoch else ", the last one"
        kept = f"The dashed line is epoch {line.epoch:g}{total}, whose weights are kept."
    return LearningCurves(_charts(shown, None if line is None else line.step), kept, joint)


def kept_line(config: RunConfig, log: Sequence[LogLine]) -> LogLine | None:
    """Return the validation of the kept weights: the last one of the epoch in the provenance."""
    epoch = config.provenance.get("epochs")
    lines = [line for line in log if line.kind == "val" and line.epoch == epoch]
    return lines[-1] if lines else None


def _charts(log: Sequence[LogLine], kept: int | None) -> list[Markup]:
    if not any(line.loss is not None for line in log):
        return []
    figures = [(plots.loss_curves(log, kept), "Training and validation loss against updates")]
    logged = dict.fromkeys(name for line in log if line.kind == "val" for name in line.named())
    metrics = {name: LABELS.get(name, name) for name in logged if name != "perplexity"}
    if "perplexity" in logged:
        figure = plots.metric_curves("Validation perplexity", log, {"perplexity": LABELS["perplexity"]}, kept)
        figures.append((figure, "Perplexity on the validation split against updates"))
    if metrics:
        title = "Validation " + (next(iter(metrics.values())) if len(metrics) == 1 else "metrics")
        description = f"{', '.join(metrics.values())} on the validation split against updates"
        figures.append((plots.metric_curves(title, log, metrics, kept), description))
    return [Markup(plots.svg(figure, description)) for figure, description in figures]
