"""Output of the commands: progress bars, tables, JSON and error lines."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import typer

from limner.storage.json_text import LineFormatter as LineFormatter
from limner.storage.json_text import printable as printable
from limner.storage.json_text import tab_separated as tab_separated
from limner.storage.json_text import to_json

if TYPE_CHECKING:
    from rich.console import Console

    from limner.metrics import Score
    from limner.training.context import TrainProgress

PLAIN_LINES = 10  # number of lines of progress of a stage where standard error is no terminal
PLAIN_INTERVAL, PLAIN_SILENCE = 10, 300  # shortest and longest time in seconds between two such lines
RETRIEVAL = [
    f"{way}_{what}" for way in ("image_to_text", "text_to_image") for what in ("r1", "r5", "r10", "median_rank")
]
REGION_SCORES, JUDGED_SCORES = ("map", "localisation_map"), ("caption_score", "ref_caption_score")
CAPTION_SCORES = frozenset(("bleu4", "meteor", "cider", *JUDGED_SCORES, *REGION_SCORES, "perplexity", *RETRIEVAL))
TRANSLATION_SCORES = frozenset(("sacrebleu", "chrf", "meteor", "ter"))  # names of the scores that are read first


@dataclass
class Stream:
    """Standard output or standard error; rich, which captions and translations do not need, is imported when used."""

    options: dict[str, Any]

    @cached_property
    def console(self) -> Console:
        """Console that escapes the control characters of texts and of cells of tables."""
        from rich.console import Console
        from rich.text import Text

        class SafeConsole(Console):
            def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401
                return super().render_str(printable(text, keep="\n"), **options)

        return SafeConsole(markup=False, emoji=False, **self.options)

    def print(self, *values: object, **options: Any) -> None:  # noqa: ANN401
        """Print texts or tables."""
        self.console.print(*values, **options)


out = Stream({"soft_wrap": True, "width": None if sys.stdout and sys.stdout.isatty() else 250})
"""Standard output; files get lines of up to 250 characters."""
err = Stream({"stderr": True})
"""Standard error; names with brackets or colons are printed unchanged."""


def print_error(error: Exception | str) -> None:
    """Print an error as one line on standard error."""
    from rich.text import Text

    err.print(Text.assemble(("error:", "bold red"), " ", printable(error)), soft_wrap=True)


def report_unreadable(errors: Sequence[Exception], total: int) -> None:
    """Print the errors of unreadable files after all results, and exit with status 1 if there are errors."""
    for error in errors:
        print_error(error)
    if len(errors) > 1:
        print_error(f"{len(errors):,} of {total:,} files have errors; the others are done")
    if errors:
        raise typer.Exit(1)


def echo(text: str = "", *, nl: bool = True) -> None:
    """Print text on standard output; lines and tabs are kept, other control characters are escaped."""
    typer.echo(printable(text, keep="\n\t"), nl=nl)


def print_usage_error(message: str, command: str) -> None:
    """Print an error in the command line as one line on standard error, with the command that prints the help."""
    text = " ".join(message.split()).removesuffix(".")
    see = " See" if text.endswith("?") else "; see"
    print_error(f"{text[:1].lower()}{text[1:]}{see} '{command} --help'")


def print_json(value: object) -> None:
    """Print a value as JSON on standard output."""
    sys.stdout.write(to_json(value, indent=1) + "\n")


def print_columns(*names: str) -> None:
    """Print the names of the columns of tab-separated lines on standard error, so that programs read lines alone."""
    err.print(f"columns: {', '.join(names)}", soft_wrap=True, highlight=False)


def print_rows(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print tab-separated lines, if any, with the names of their first columns; see `print_columns`."""
    if rows:
        print_columns(*names[: max(map(len, rows))])
    for row in rows:
        echo(tab_separated(*row))


def print_next(command: str) -> None:
    """Print the command that usually follows."""
    echo(f"next: {command}")


def print_table(rows: Sequence[Sequence[str]], *, title: str | None = None, left: int = 1) -> None:
    """Print a table, its header first; the first `left` columns are aligned to the left, the others to the right."""
    from rich.table import Table

    head, *body = rows
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for column, name in enumerate(head):
        table.add_column(name, justify="left" if column < left else "right", no_wrap=True)
    for row in body:
        table.add_row(*row)
    out.print(table)


def main_scores(scores: Sequence[Score], *, translates: bool) -> list[Score]:
    """Return the main scores of captions or translations, or all scores if no main score exists."""
    names = TRANSLATION_SCORES if translates else CAPTION_SCORES
    return [score for score in scores if score.name in names] or list(scores)


def print_scores(scores: Sequence[Score], published: dict[str, float], row: str, *, signatures: bool = True) -> None:
    """Print scores, beside the published values of a row if any; with their signatures if `signatures`."""
    from limner.metrics.base import format_value

    rows = [["metric", "value", *([row] if published else [])]]
    for score in scores:
        beside = [format_value(published[score.name]) if score.name in published else ""] if published else []
        rows.append([score.name, format_value(score.value), *beside])
    print_table(rows)
    if not signatures:
        return
    names = defaultdict[str, list[str]](list)
    for score in scores:
        names[score.signature].append(score.name)
    for signature, sharing in names.items():
        echo(f"{', '.join(sharing)}: {signature}")


def activity(description: str) -> AbstractContextManager[object]:
    """Show on a terminal that work goes on whose length is not known."""
    return err.console.status(description) if err.console.is_terminal else nullcontext()


@contextmanager
def progress_bar(description: str, *, prints: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback (done, total) that draws one progress bar from its first call.

    With `prints`, results are printed meanwhile. Through a pipe they reach a program that may write on the same
    terminal, in the middle of the bar: the progress is then printed as lines.
    """
    with progress_bars(as_lines=prints and _is_pipe(sys.stdout)) as on_progress:
        yield lambda done, total: on_progress(description, done, total)


def _is_pipe(stream: TextIO) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # no file, or closed
        return False


class ShowProgress(Protocol):
    """Callback that shows the progress of a stage."""

    def __call__(self, stage: str, done: int, total: int, text: str | None = None) -> None:
        """Show the progress of a stage, with a text in place of its name."""


@contextmanager
def progress_bars(*, as_lines: bool = False, counts: bool = True) -> Iterator[ShowProgress]:
    """Yield a callback that draws one progress bar per stage, or prints lines where standard error is no terminal.

    With `as_lines`, lines are printed on a terminal as well; with `counts`, the bars show what is done and the total.
    """
    if as_lines or not err.console.is_terminal:
        yield _print_progress()
        return
    from rich import progress as rich
    from rich.table import Column

    columns = [rich.TextColumn("{task.description}"), rich.BarColumn()]
    columns += [rich.MofNCompleteColumn()] if counts else []
    for times in (rich.TimeElapsedColumn, rich.TimeRemainingColumn):  # whole on a narrow terminal, unlike the bar
        columns.append(times(table_column=Column(no_wrap=True)))
    # A piped standard output keeps its lines; on a terminal rich prints them above the bar.
    progress = rich.Progress(*columns, console=err.console, redirect_stdout=sys.stdout.isatty())
    tasks: dict[str, rich.TaskID] = {}

    def on_progress(stage: str, done: int, total: int, text: str | None = None) -> None:
        progress.start()
        if stage not in tasks:
            tasks[stage] = progress.add_task(stage)
        progress.update(tasks[stage], description=text or stage, completed=done, total=total)

    try:
        yield on_progress
    finally:
        if tasks:
            progress.stop()


def _print_progress() -> ShowProgress:
    """Return a callback that prints sparse lines, for logs and pipes.

    A line follows each further tenth of a stage, unless the previous one is less than ten seconds old, and at the
    latest after five minutes. A stage that ends before its first line gets none.
    """
    last, shown = time.monotonic(), {"": 0}

    def on_progress(stage: str, done: int, total: int, text: str | None = None) -> None:
        nonlocal last, shown
        part, now = PLAIN_LINES * done // max(1, total), time.monotonic()
        silence = now - last
        if done >= total and stage not in shown:
            return
        if (part > shown.get(stage, 0) and silence >= PLAIN_INTERVAL) or silence >= PLAIN_SILENCE:
            last, shown = now, {stage: part}
            line = f"{text or stage}: {done:,} of {total:,} ({100 * done // max(1, total)} %)"
            err.print(line, markup=False, highlight=False, soft_wrap=True)

    return on_progress


@contextmanager
def training_bar(metric: str) -> Iterator[Callable[[TrainProgress], None]]:
    """Yield a callback that draws the progress of a training, with its loss, speed and best validation metric."""
    with progress_bars(counts=False) as show:

        def on_progress(now: TrainProgress) -> None:
            from limner.metrics.base import format_value

            state = now.state
            speed = f", {state.tokens_per_second:,.0f} tokens/s" if err.console.is_terminal else ""
            best = "" if state.best is None else f", best {metric} {format_value(state.best)}"
            best = best if state.target_perplexity is None else ", with validation data"
            text = f"{'' if speed else 'training, '}epoch {state.epoch + 1}, loss {state.loss:.3f}{speed}{best}"
            stage = (now.part or "training").partition(",")[0]  # the rest of a part are figures that change
            show(stage, now.steps, now.total_steps, now.part or text)

        yield on_progress
