"""The Typer application, its global options, and the conversion of errors into one line and an exit status."""

from __future__ import annotations

import inspect
import logging
import os
import pkgutil
import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, cast

import typer
import typer.models
from typer.core import TyperCommand, TyperGroup

from limner.apps.cli.terminal import LineFormatter, err, print_error, print_usage_error
from limner.errors import LimnerError, did_you_mean, missing_extra, system_reason
from limner.process import flush_streams, keep_freed_memory, prepare_streams, prepare_threads

PANELS = USE, DATA, TRAIN, MEASURE, MORE = (
    "Use a trained model",
    "Collections and features",
    "Train",
    "Measure",
    "Experiments and installation",
)
"""Headings of the groups of commands in `limner --help`, in this order."""

VERBOSE = "--verbose"
SYNONYMS = {
    "caption": "describe",
    "generate": "describe",
    "retrieve": "search",
    "extract": "features",
    "test": "evaluate",
}
"""Commands by other terms of the field, for suggestions."""
COMMANDS: dict[str, typer.models.CommandInfo] = {}
"""Commands of the modules that are imported, by name; see `limner.apps.cli.options.command`."""


def find_commands(name: str | None = None) -> dict[str, typer.models.CommandInfo]:
    """Import the module of a command by its name, or of all commands; return the commands by name.

    Most commands have the name of their module; for other commands, all modules are imported.
    """
    modules = [module.name for module in pkgutil.iter_modules([os.path.dirname(__file__)])]
    for module in [name] if name in modules else modules:
        import_module(f"{__package__}.{module}")
    return COMMANDS if name is None or name in COMMANDS else find_commands()


class CommandGroup(TyperGroup):
    """All commands, of which each is imported and built when it is needed.

    `--verbose` works before and after their names, and unknown names get a suggestion.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  (typer does not export its context)
        """Move `--verbose` before the command, where it is an option of the program."""
        end = args.index("--") if "--" in args else len(args)
        if VERBOSE in args[:end]:
            args = [VERBOSE, *(argument for argument in args[:end] if argument != VERBOSE), *args[end:]]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """Find a command by its name."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            name = SYNONYMS.get(args[0].lower())
            similar = f"; did you mean '{name}'?" if name else did_you_mean(args[0], COMMANDS)
            ctx.fail(f"No such command '{args[0]}'{similar}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
        """Return the names of all commands by their headings."""
        commands = find_commands()
        return sorted(commands, key=lambda name: PANELS.index(commands[name].rich_help_panel or MORE))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """Build a command; None for an unknown name."""
        if cmd_name not in self.commands and (command := find_commands(cmd_name).get(cmd_name)) is not None:
            self.commands[cmd_name] = typer.main.get_command_from_info(
                command, pretty_exceptions_short=True, rich_markup_mode=self.rich_markup_mode
            )
        return self.commands.get(cmd_name)


app = typer.Typer(
    cls=CommandGroup,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Caption, translate, search and score with language models conditioned on images.\n\n"
    "Start with `limner describe photo.jpg`, which captions a photograph with the built-in captioner, or with "
    "`limner demo`, which generates a collection, trains two models on it and writes reports.\n\n"
    "Every command also takes `--verbose`, before or after its name.",
)


def build_commands() -> dict[str, TyperCommand]:
    """Build all commands, by name."""
    group = cast("CommandGroup", typer.main.get_command(app))
    return {name: group.get_command(None, name) for name in group.list_commands(None)}


UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])
"""Base class of typer's errors in the command line, which typer does not export."""
INTERRUPTED = 130  # exit status after Ctrl-C
WRONG_USAGE = 2  # exit status after an error in the command line, such as an unknown option
REPEATING_COMMANDS = ("demo", "describe", "evaluate", "features", "index", "reproduce", "train", "translate")
"""Commands that keep freed memory, because their steps allocate the same tensors again."""

GENERATING_COMMANDS = ("describe", "index", "translate")
"""Commands that need no torch with built-in and exported models."""
READING_COMMANDS = ("classify", "correlate", "doctor", "recipes", "score", "search", "serve", "show")
"""Commands that only read, so that an interruption needs no remedy."""


def main() -> None:
    """Run the command line and exit; errors that the user can correct are printed as one line."""
    prepare_streams()
    prepare_threads()
    warnings.simplefilter("default")
    warnings.simplefilter("ignore", ResourceWarning)
    warnings.formatwarning = lambda message, category, filename, lineno, line=None: " ".join(
        f"{filename}:{lineno}: {category.__name__}: {message}".split()
    )
    logging.captureWarnings(True)  # warnings of libraries are lines of the log, which --verbose shows
    os.environ.setdefault("LANCE_LOG", "error")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search for some reads all installed packages
    sys.exit(flush_streams(_run(), print_error))


def _run() -> int:
    try:
        status = app(prog_name="limner", standalone_mode=False)
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else " ".join(["limner", *sys.argv[1:2]])
        print_usage_error(_usage_message(error), command)
        return WRONG_USAGE
    except LimnerError as error:
        print_error(replace_parameter_names(str(error)))
        return 1
    except ModuleNotFoundError as error:
        name = _named_command(sys.argv[1:])
        of_runs = " with a model that 'limner export' has not written" if name in GENERATING_COMMANDS else ""
        of_runs = " --collection" if name == "search" else of_runs
        missing = missing_extra(error, f"limner {name}{of_runs}")
        if missing is error:
            raise
        print_error(str(missing))
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print_error(f"{where}{system_reason(error)}; check the place, its permissions and the free disk space")
        return 1
    except (MemoryError, RuntimeError) as error:
        reasons = ("out of memory", "can't allocate memory", "alloc_cpu.cpp")  # of torch
        if not (isinstance(error, MemoryError) or any(reason in str(error) for reason in reasons)):
            raise
        print_error("the memory is not enough; lower the batch size or the sizes in the settings, or free memory")
        return 1
    if status == INTERRUPTED:
        name = _named_command(sys.argv[1:])
        remedy = "repeat the command" + (", with --resume if its --out exists" if name == "train" else "")
        written = "" if name in READING_COMMANDS else f"; files already written are complete; {remedy}"
        err.print(f"interrupted{written}", soft_wrap=True)
    return status or 0


def _named_command(arguments: Sequence[str]) -> str | None:
    return next((argument for argument in arguments if argument != VERBOSE), None)


def replace_parameter_names(message: str) -> str:
    """Name the options of the command as they are typed: --must-include in place of the parameter must_include."""
    command = COMMANDS.get(_named_command(sys.argv[1:]) or "")
    names = [] if command is None or command.callback is None else list(inspect.signature(command.callback).parameters)
    message = re.sub(r"\bdecoding\.sample\b", "--sample", message) if "sample" in names else message
    for name in names:
        place = r"(?<!['\w./-])" if "_" in name else "^" if name in ("lang", "prefix") else None
        if place is not None:
            message = re.sub(rf"{place}{name}(?![\w/=-]|\.\w)", f"--{name.replace('_', '-')}", message)
    return re.sub(r"(--[\w-]+) \(\1\)", r"\1", message)


def _usage_message(error: Any) -> str:  # noqa: ANN401  (typer does not export its errors)
    """Return the message of an error in the command line; for an unknown option with the most similar option."""
    possibilities = getattr(error, "possibilities", None)
    if possibilities is None:
        return str(error.format_message()).replace(": Value error, ", ": ")
    return f"No such option: {error.option_name}{did_you_mean(error.option_name, possibilities)}"


@app.callback(invoke_without_command=True)
def _global_options(
    context: typer.Context,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Log every step to standard error; works after the command as well.")
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        import limner

        typer.echo(f"limner {limner.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    _set_up_logging(logging.INFO if verbose else logging.WARNING)
    if context.invoked_subcommand in REPEATING_COMMANDS:
        keep_freed_memory()


class _LineHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        err.print(
            f"{record.levelname:8} {replace_parameter_names(self.format(record))}", highlight=False, soft_wrap=True
        )


def _set_up_logging(level: int) -> None:
    handler = _LineHandler()
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or record.name.startswith("limner"))
    handler.setFormatter(LineFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("limner").setLevel(level)
    logging.getLogger("py.warnings").setLevel(logging.WARNING if level < logging.WARNING else logging.ERROR)


def command_line() -> str:
    """Return the command of this process, quoted for a shell; stored with runs and results."""
    return shlex.join(["limner", *sys.argv[1:]])
