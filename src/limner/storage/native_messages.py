"""Messages that native libraries write to standard error: reports of panics are dropped, as they become errors."""

from __future__ import annotations

import atexit
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import IO

STANDARD_ERROR = 2
_PANIC = re.compile(rb"\n?thread '[^\n]*panicked at .*?(?:\nnote: run with [^\n]*\n|\Z)", re.DOTALL)
"""Report of a panic of a Rust library, whose message becomes an exception as well."""


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
