"""Command line of Limner: every command parses its options, calls one public function and prints the result.

The module of a command is imported when the command is named. Commands import what they need inside their functions,
so that `limner --help` does not import torch.
"""

from limner.apps.cli.app import app, build_commands, find_commands, main
from limner.apps.cli.terminal import err

__all__ = ["app", "build_commands", "err", "find_commands", "main"]
