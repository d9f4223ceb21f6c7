"""Commands in a process of their own."""

import subprocess
import sys

PROGRAM = [sys.executable, "-c", "from limner.apps.cli import main; main()"]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command of Limner."""
    return subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)


def limner(*arguments: object) -> str:
    """Run a command that succeeds; return its output."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
