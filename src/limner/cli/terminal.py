"""Output of the commands: progress bars, tables, JSON and error lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from limner.data.summary import CollectionSummary
    from limner.metrics import Score
    from limner.training.context import TrainProgress

PLAIN_INTERVAL = 10
"""Seconds between lines of progress where standard error is no terminal."""
out = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 250, markup=False, emoji=False)
"""Standard output; files get lines of up to 250 characters."""
err = Console(stderr=True, markup=False, emoji=False)
"""Standard error; names with brackets or colons are printed unchanged."""


def print_error(error: Exception | str) -> None:
    """Print an error as one line on standard error."""
    err.print(Text.assemble(("error:", "bold red"), " ", str(error)), soft_wrap=True)


def print_usage_error(message: str, command: str) -> None:
    """Print an error in the command line as one line on standard error, with the command whose help explains it."""
    text = " ".join(message.split()).removesuffix(".")
    print_error(f"{text[:1].lower()}{text[1:]}; see '{command} --help'")


def print_json(value: object) -> None:
    """Print a value as JSON on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=1, default=str) + "\n")


def print_summary(summary: CollectionSummary) -> None:
    """Print the contents of a collection."""
    from rich.table import Table

    langs = sorted({lang for counts in summary.sentences.values() for lang in counts})
    table = Table(box=None, pad_edge=False)
    table.add_column("split")
    for column in ("items", "images", *(f"sentences {lang}" for lang in langs)):
        table.add_column(column, justify="right")
    for split, count in summary.splits.items():
        sentences = (f"{summary.sentences[split].get(lang, 0):,}" for lang in langs)
        table.add_row(split, f"{count:,}", f"{summary.media['image'].get(split, 0):,}", *sentences)
    out.print(table)
    typer.echo(
        f"{summary.items:,} items, {sum(summary.media['video'].values()):,} videos, "
        f"{sum(summary.media['audio'].values()):,} audio files, {summary.regions:,} regions, "
        f"{summary.phrases:,} phrases"
    )
    typer.echo(f"features: {', '.join(summary.features) or 'none'}")
    if summary.missing:
        examples = "; ".join(summary.missing_examples)
        typer.echo(f"{summary.missing:,} media files are missing, for example {examples}")


def print_scores(scores: Sequence[Score], published: dict[str, float], row: str) -> None:
    """Print scores with their signatures, beside the published values of a row if there are any."""
    from rich.table import Table

    from limner.metrics.base import format_value

    table = Table(box=None, pad_edge=False)
    table.add_column("metric", no_wrap=True, min_width=max(len(score.name) for score in scores))
    table.add_column("value", justify="right")
    if published:
        table.add_column(row, justify="right")
    table.add_column("signature", style="dim", overflow="fold")
    for score in scores:
        beside = [format_value(published[score.name]) if score.name in published else ""] if published else []
        table.add_row(score.name, format_value(score.value), *beside, score.signature)
    out.print(table)


@contextmanager
def activity(description: str) -> Iterator[None]:
    """Show a spinner during work whose length is not known; nothing where standard error is no terminal."""
    if not err.is_terminal:
        yield
        return
    with err.status(description):
        yield


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback (done, total) that draws one progress bar from its first call."""
    with progress_bars() as on_progress:
        yield lambda done, total: on_progress(description, done, total)


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback (stage, done, total) that draws one progress bar per stage."""
    if not err.is_terminal:
        yield _plain_progress()
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    progress = Progress(TextColumn("{task.description}"), *columns, console=err)
    tasks: dict[str, Any] = {}

    def on_progress(stage: str, done: int, total: int) -> None:
        progress.start()
        if stage not in tasks:
            tasks[stage] = progress.add_task(stage, total=total)
        progress.update(tasks[stage], completed=done, total=total)

    try:
        yield on_progress
    finally:
        if tasks:
            progress.stop()


def _plain_progress() -> Callable[[str, int, int], None]:
    """Return a callback (stage, done, total) that prints a line every ten seconds, for logs and pipes."""
    last = time.monotonic()

    def on_progress(stage: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_INTERVAL:
            last = time.monotonic()
            err.print(f"{stage}: {done:,} of {total:,}", markup=False, highlight=False)

    return on_progress


@contextmanager
def training_bar(metric: str) -> Iterator[Callable[[TrainProgress], None]]:
    """Yield a callback that draws the progress of a training, with its loss, speed and best validation metric."""
    if not err.is_terminal:
        plain = _plain_progress()
        yield lambda now: plain(f"training, best {metric} {_best(now)}", now.state.step, now.total_steps)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=err)
    task = progress.add_task("training", total=None)

    def on_progress(now: TrainProgress) -> None:
        progress.start()
        state = now.state
        best = "" if state.best is None else f", best {metric} {_best(now)}"
        best = best if state.target_perplexity is None else ", with validation data"
        speed = f"{state.tokens_per_second:,.0f} tokens/s"
        description = f"epoch {state.epoch + 1}, loss {state.loss:.3f}, {speed}{best}"
        progress.update(task, description=description, completed=state.step, total=now.total_steps)

    try:
        yield on_progress
    finally:
        if progress.live.is_started:
            progress.stop()


def _best(now: TrainProgress) -> str:
    """Return the best value of the validation metric; a dash before the first validation."""
    from limner.metrics.base import format_value

    return "–" if now.state.best is None else format_value(now.state.best)
