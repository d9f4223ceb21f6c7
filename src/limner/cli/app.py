"""The Typer application, its global options, and the conversion of errors into one line and an exit status."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from importlib import metadata
from typing import Annotated, cast

import typer

from limner.cli.terminal import err, print_error, print_usage_error
from limner.errors import LimnerError
from limner.process import allow_thread_choice, keep_freed_memory, set_wait_policy

PANELS = USE, DATA, TRAIN, MEASURE, MORE = (
    "Use a trained model",
    "Collections and features",
    "Train",
    "Measure",
    "Experiments and installation",
)
"""Headings of the groups of commands in `limner --help`, in this order."""

app = typer.Typer(
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Caption, translate, search and score with language models conditioned on images.\n\n"
    "Start with `limner demo`, which generates a collection, trains two models on it and writes reports.",
)
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])
"""Base class of the errors of typer in the command line, which typer does not export."""
INTERRUPTED = 130
"""Exit status after Ctrl-C."""
WRONG_USAGE = 2
"""Exit status after an error in the command line, such as an unknown option."""
REPEATING_COMMANDS = ("demo", "describe", "features", "reproduce", "train", "translate")
"""Commands whose steps allocate the same tensors again and again, and therefore keep freed memory."""


def main() -> None:
    """Run the command line and exit; errors that the user can correct are printed as one line."""
    set_wait_policy()
    allow_thread_choice()
    warnings.filterwarnings("ignore")
    os.environ.setdefault("LANCE_LOG", "error")
    sys.exit(_run())


def _run() -> int:
    """Run the command of this process; return the exit status."""
    try:
        status = app(prog_name="limner", standalone_mode=False)
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else " ".join(["limner", *sys.argv[1:2]])
        print_usage_error(error.format_message(), command)
        return WRONG_USAGE
    except (LimnerError, OSError) as error:
        print_error(error)
        return 1
    if status == INTERRUPTED:
        err.print("interrupted; files already written are complete; repeat the command (train: with --resume)")
    return status or 0


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"limner {metadata.version('limner')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _global_options(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log every step to standard error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    _set_up_logging(logging.INFO if verbose else logging.WARNING)
    if context.invoked_subcommand in REPEATING_COMMANDS:
        keep_freed_memory()


def _set_up_logging(level: int) -> None:
    from rich.logging import RichHandler

    handler = RichHandler(console=err, show_path=False, show_time=False)
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or record.name.startswith("limner"))
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    logging.getLogger("limner").setLevel(level)


def command_line() -> str:
    """Return the command of this process, quoted for a shell; stored with runs and results."""
    return shlex.join(["limner", *sys.argv[1:]])
