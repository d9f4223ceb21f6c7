"""Standard streams that are closed, cannot be written to at the end of a command, or get messages of libraries."""

from __future__ import annotations

import atexit
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import IO

FAILED = 1
"""Exit status if the results could not be printed."""
STANDARD_ERROR = 2
_PANIC = re.compile(rb"\n?thread '[^\n]*panicked at .*?(?:\nnote: run with [^\n]*\n|\Z)", re.DOTALL)
"""Report of a panic of a Rust library, whose message becomes an exception as well."""


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


class _Capture:
    """Redirection of the descriptor of standard error to a file while any thread needs it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._original = -1
        self._file: IO[bytes] | None = None

    def begin(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                with suppress(OSError):  # standard error may be closed
                    if self._file is None:
                        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (open until the process ends)
                        atexit.register(self._file.close)
                    self._original = os.dup(STANDARD_ERROR)
                    os.dup2(self._file.fileno(), STANDARD_ERROR)

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._original < 0 or self._file is None:
                return
            os.dup2(self._original, STANDARD_ERROR)
            os.close(self._original)
            self._original = -1
            if os.fstat(self._file.fileno()).st_size:
                self._file.seek(0)
                text = _PANIC.sub(b"", self._file.read())
                self._file.seek(0)
                self._file.truncate()
                os.write(STANDARD_ERROR, text)


_capture = _Capture()


@contextmanager
def without_panics() -> Iterator[None]:
    """Drop reports of panics from standard error during the block; other messages follow at its end."""
    _capture.begin()
    try:
        yield
    finally:
        _capture.end()


def separate_standard_error() -> None:
    """Give the messages of Python a descriptor of their own, so that they are not captured with those of libraries."""
    if sys.stderr is sys.__stderr__ and sys.stderr is not None and sys.stderr.fileno() == STANDARD_ERROR:
        old = sys.stderr
        sys.stderr = os.fdopen(os.dup(STANDARD_ERROR), "w", buffering=1, encoding=old.encoding, errors=old.errors)
