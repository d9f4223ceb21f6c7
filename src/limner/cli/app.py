"""The command line itself: what all commands share, and how errors and Ctrl-C become one clear line."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.logging import RichHandler

from limner.cli.terminal import err, print_error
from limner.errors import LimnerError
from limner.process import keep_freed_memory

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Language models that look: describe, score and search pictures.\n\n"
    "Begin with `limner demo`, which draws a collection, learns from it and writes a report.",
)
INTERRUPTED = 130
STEADY = ("demo", "describe", "reproduce", "train", "translate")
"""Commands whose work is many steps alike, each of which can have the memory of the one before."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
Data = Annotated[Path, typer.Option("--data", help="The collection.")]
Backbone = Annotated[
    str | None,
    typer.Option(help="Hub id or folder of the network that made the features, if it is not where it was."),
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
BeamSize = Annotated[int | None, typer.Option(help="Sentences kept at every step; 1 is greedy search.")]
LengthPenalty = Annotated[float | None, typer.Option(help="0 ranks by log-probability; more favours longer sentences.")]
Ensemble = Annotated[list[Path] | None, typer.Option(help="Further models; all describe together. Repeatable.")]


def main() -> None:
    """Run the command line; what the user can mend is one clear line, not a traceback."""
    warnings.filterwarnings("ignore")
    os.environ.setdefault("LANCE_LOG", "error")
    handler = RichHandler(console=err, show_path=False, show_time=False)
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or record.name.startswith("limner"))
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    try:
        app()
    except LimnerError as error:
        print_error(error)
        sys.exit(1)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            err.print("stopped; nothing already written is lost, and the same command (train: with --resume) goes on")
        raise
    except OSError as error:
        print_error(error)
        sys.exit(1)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"limner {metadata.version('limner')}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("--verbose", help="Tell more about what is done.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Tell the version.", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    logging.getLogger("limner").setLevel(logging.INFO if verbose else logging.WARNING)
    if context.invoked_subcommand in STEADY:
        keep_freed_memory()


def command_line() -> str:
    """How this process was called, for the records."""
    return shlex.join(["limner", *sys.argv[1:]])


def given(**values: Any) -> dict[str, Any]:  # noqa: ANN401
    """The options that were given; the others stay with their settings."""
    return {key: value for key, value in values.items() if value is not None}
