"""The command line: each command parses, calls one public function and prints.

Everything heavy is imported inside the commands, so that `limner --help` answers at once.
"""

from limner.cli import compare, data, diagnose, models, results, translate  # importing them adds their commands
from limner.cli.app import app, main
from limner.cli.terminal import err

__all__ = ["app", "compare", "data", "diagnose", "err", "main", "models", "results", "translate"]
