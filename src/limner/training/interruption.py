"""Ctrl-C during training: the current step is completed and its state saved before the program stops."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self


class Interruption:
    """Context in which the first Ctrl-C is recorded instead of raised; a second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.requested = False
        """Whether Ctrl-C was pressed."""
        self._previous: object = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only the main thread can handle signals
            self._previous = signal.signal(signal.SIGINT, self._record)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def raise_if_requested(self) -> None:
        """Raise the recorded KeyboardInterrupt; call this after the state was saved."""
        if self.requested:
            raise KeyboardInterrupt

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)  # type: ignore[arg-type]  # the value that signal() returned
            self._previous = None
