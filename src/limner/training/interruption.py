"""Ctrl-C and SIGTERM during training: the current step is completed and its state saved before the program stops."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals of Ctrl-C, and of a machine or a job queue that stops the program."""


class Interruption:
    """Context in which the first Ctrl-C or SIGTERM is recorded; a second one has its usual effect."""

    def __init__(self) -> None:
        self.requested = False
        """Whether a signal was received."""
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only the main thread can handle signals
            self._previous = {number: signal.signal(number, self._record) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def raise_if_requested(self) -> None:
        """Raise the KeyboardInterrupt of a recorded signal, in a training with one process."""
        if self.requested:
            raise KeyboardInterrupt

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
