"""Write the reference of the command line, `docs/cli.md`, from the help texts: `python book/commands.py`."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import cast

from typer.core import TyperArgument, TyperCommand, TyperOption

from limner.apps.cli import build_commands

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
INTRODUCTION = """\
# Commands

```bash
limner describe photo.jpg --model runs/mrnn
```

This page is generated from the help texts: `limner COMMAND --help` shows the same.

- `limner` without arguments prints the list of commands; `limner --version` prints the version.
- `limner --install-completion` installs completion of commands and options for the current shell.
- Every command accepts `--json`, which prints JSON instead of text. Results go to standard output, progress and
  messages to standard error.
- Errors that you can correct are one line that begins with `error:`; the exit status is 1, or 2 if the error is in the
  command line itself, such as an unknown option. It is 130 after Ctrl-C. Files already written are complete.
- A file that you name for results and that exists is not replaced, and nothing is written inside runs and collections,
  unless `--force` is given. Results that cannot be saved at the end are printed.
- Control characters in names and captions are printed as escapes such as `\\x1b`.
- `--model RUN` names a run folder written by `limner train`. Repeated, it makes an ensemble where the command
  supports one.
- The commands set `OMP_WAIT_POLICY=PASSIVE`, and choose the number of threads by the size of the model; set
  `OMP_WAIT_POLICY` or `OMP_NUM_THREADS` to decide yourself.
"""
SEE_ALSO = {
    "compare": "[Evaluating](evaluate.md)",
    "correlate": "[Evaluating](evaluate.md#human-judgements)",
    "demo": "[Installing](install.md)",
    "describe": "[Captioning](describe.md)",
    "diagnose": "[Is the image used?](diagnose.md)",
    "evaluate": "[Evaluating](evaluate.md)",
    "features": "[Data and features](data.md#features)",
    "generate": "[Data and features](data.md#generated-scenes)",
    "index": "[Folders of images](folders.md), [searching large collections](search-at-scale.md)",
    "import": "[Data and features](data.md)",
    "kmeans": "[Data and features](data.md#k-means-feature-maps)",
    "recipes": "[Training](train.md#recipes)",
    "report": "[Evaluating](evaluate.md#reports)",
    "reproduce": "[Reproducing a table](reproduce.md)",
    "score": "[Scoring and searching](search.md)",
    "search": "[Scoring and searching](search.md#retrieve-images-for-a-sentence)",
    "show": "[Data and features](data.md#collections)",
    "train": "[Training](train.md)",
    "translate": "[Translating](translate.md)",
    "words": "[Words](words.md)",
}
"""The page of the documentation that explains each command."""
EXAMPLE = re.compile(r"Example: `(.+?)`", re.DOTALL)


def reference() -> str:
    """Return the page `docs/cli.md`."""
    return "\n".join([INTRODUCTION, *(_section(command) for _, command in sorted(build_commands().items()))])


def _section(command: TyperCommand) -> str:
    name, text = str(command.name), inspect.cleandoc(command.help or "")
    example = EXAMPLE.search(text)
    assert example is not None, f"'limner {name}' has no example"
    summary = EXAMPLE.sub("", text).strip()
    link = f"\n{SEE_ALSO[name]}\n" if name in SEE_ALSO else ""
    rows = "\n".join(
        _row(cast("TyperArgument | TyperOption", parameter)) for parameter in command.params if parameter.name != "help"
    )
    return f"## {name}\n\n{summary}\n\n```bash\n{example[1]}\n```\n{link}\n| | |\n|---|---|\n{rows}\n"


def _row(parameter: TyperArgument | TyperOption) -> str:
    """Return the row of an argument or an option: its name, its help and its default."""
    text = parameter.help or ""
    if isinstance(parameter, TyperArgument):
        names = [parameter.metavar or str(parameter.name).upper()]
    else:
        names = [*parameter.opts, *parameter.secondary_opts]
        if not parameter.is_flag and parameter.default is not None:
            text += f" Default: {parameter.default}."
    return f"| {', '.join(f'`{name}`' for name in names)} | {text.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
