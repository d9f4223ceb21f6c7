"""Standard streams that are closed, or cannot be written to at the end of a command."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from limner.cli.terminal import print_error

FAILED = 1
"""Exit status if the results could not be printed."""


def open_missing_streams() -> None:
    """Open the null device for closed streams, so that no file that a command opens gets the number of a stream."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (until the process ends)


def flush_streams(status: int) -> int:
    """Write what is buffered; return the exit status, which tells that results are lost.

    A closed pipe, as of `limner ... | head`, is no error to report.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard(sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError) and status == 0:
            print_error(f"standard output: cannot be written ({error.strerror}); name a place that has free space")
        status = status or FAILED
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr.fileno())
        status = status or FAILED
    return status


def _discard(descriptor: int) -> None:
    """Send what is still buffered to the null device, so that the interpreter does not fail at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):
        os.dup2(null, descriptor)
    os.close(null)
