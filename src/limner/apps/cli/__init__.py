"""Command line of Limner: every command parses its options, calls one public function and prints the result.

Commands import what they need inside their functions, so that `limner --help` does not import torch.
"""

from limner.apps.cli import (  # noqa: F401  (each module registers its commands with `app`)
    classify,
    collections,
    describe,
    diagnose,
    doctor,
    evaluate,
    experiments,
    export,
    features,
    index,
    regions,
    score,
    search,
    serve,
    train,
    translate,
)
from limner.apps.cli.app import PANELS, app, main
from limner.apps.cli.terminal import err

app.registered_commands.sort(key=lambda command: PANELS.index(command.rich_help_panel))

__all__ = ["app", "err", "main"]
