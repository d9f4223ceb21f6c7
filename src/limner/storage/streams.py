"""Standard streams that are closed, or cannot be written to at the end of a command."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress

FAILED = 1
"""Exit status if the results could not be printed."""


def prepare_streams() -> None:
    """Open the null device for closed streams, and let streams escape characters that they cannot encode.

    No file that a command opens then gets the number of a stream.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (until the process ends)
    for stream in (sys.stdout, sys.stderr):  # a terminal may lack characters
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def flush_streams(status: int, print_error: Callable[[str], None]) -> int:
    """Write what is buffered; return the exit status, which tells that results are lost.

    A closed pipe, as of `limner ... | head`, is no error to report.

    Args:
        status: exit status of the command.
        print_error: prints an error as one line.
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
