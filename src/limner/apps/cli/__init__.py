"""Command line of Limner: every command parses its options, calls one public function and prints the result.

Commands import what they need inside their functions, so that `limner --help` does not import torch.
"""

import importlib
import pkgutil

from limner.apps.cli.app import PANELS, app, main
from limner.apps.cli.terminal import err

for module in pkgutil.iter_modules(__path__):  # each registers its commands with `app`
    importlib.import_module(f"{__name__}.{module.name}")
app.registered_commands.sort(key=lambda command: PANELS.index(command.rich_help_panel))

__all__ = ["app", "err", "main"]
