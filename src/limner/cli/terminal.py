"""What people see of a running command: progress bars, tables, JSON."""

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
    from limner.metrics import Score
    from limner.report.contact_sheet import Summary
    from limner.training.loop import Progress as TrainingProgress

PLAIN_SECONDS = 10
# A file has room for whole lines.
out = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 250, markup=False, emoji=False)
err = Console(stderr=True, markup=False, emoji=False)  # what users called things is shown as it is


def print_error(error: Exception) -> None:
    """One line on standard error."""
    err.print(Text.assemble(("error:", "bold red"), " ", str(error)), soft_wrap=True)


def print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=1, default=str) + "\n")


def print_summary(found: Summary) -> None:
    from rich.table import Table

    langs = sorted({lang for counts in found.sentences.values() for lang in counts})
    table = Table(box=None, pad_edge=False)
    table.add_column("split")
    for column in ("items", "pictures", *(f"sentences {lang}" for lang in langs)):
        table.add_column(column, justify="right")
    for split, count in found.splits.items():
        sentences = (f"{found.sentences[split].get(lang, 0):,}" for lang in langs)
        table.add_row(split, f"{count:,}", f"{found.pictures.get(split, 0):,}", *sentences)
    out.print(table)
    typer.echo(f"{found.items:,} items, {found.videos:,} clips, {found.sounds:,} sounds, {found.regions:,} regions")
    typer.echo(f"features: {', '.join(found.features) or 'none yet'}")
    if found.missing:
        named = "; ".join(found.missing_examples)
        typer.echo(
            f"{found.missing:,} {'files' if found.sounds else 'pictures'} are not where they were, for example {named}"
        )


def print_scores(scores: Sequence[Score], published: dict[str, float], row: str) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("metric", no_wrap=True, min_width=max(len(score.name) for score in scores))
    table.add_column("value", justify="right")
    if published:
        table.add_column(row, justify="right")
    table.add_column("signature", style="dim", overflow="fold")
    for one in scores:
        beside = [f"{published[one.name]:.2f}" if one.name in published else ""] if published else []
        table.add_row(one.name, f"{one.value:.2f}", *beside, one.signature)
    out.print(table)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar that appears with the first news."""
    with progress_bars() as stages:
        yield lambda done, total: stages(what, done, total)


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """One progress bar for each part of the work; nothing is drawn before there is news."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    if not err.is_terminal:
        yield _plain_progress()
        return
    progress = Progress(TextColumn("{task.description}"), *columns, console=err)
    tasks: dict[str, Any] = {}

    def note(what: str, done: int, total: int) -> None:
        progress.start()
        if what not in tasks:
            tasks[what] = progress.add_task(what, total=total)
        progress.update(tasks[what], completed=done, total=total)

    try:
        yield note
    finally:
        if tasks:
            progress.stop()


def _plain_progress() -> Callable[[str, int, int], None]:
    """A line every ten seconds, for logs and pipes."""
    told = time.monotonic()

    def note(what: str, done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= PLAIN_SECONDS:
            told = time.monotonic()
            err.print(f"{what}: {done:,} of {total:,}", markup=False, highlight=False)

    return note


@contextmanager
def training_bar(metric: str) -> Iterator[Callable[[TrainingProgress], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    if not err.is_terminal:
        plain = _plain_progress()
        yield lambda news: plain(f"training, best {metric} {news.place.best}", news.place.step, news.steps)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=err)
    task = progress.add_task("training", total=None)

    def note(news: TrainingProgress) -> None:
        progress.start()
        place = news.place
        best = "" if place.best is None else f", best {metric} {place.best:.2f}"
        best = best if place.target is None else ", with validation data"
        told = f"epoch {place.epoch + 1}, loss {place.loss:.3f}, {place.words_per_second:,.0f} words/s{best}"
        progress.update(task, description=told, completed=place.step, total=news.steps)

    try:
        yield note
    finally:
        if progress.live.is_started:
            progress.stop()
