"""Ctrl-C during training: the step under way is finished and its state saved before the program stops."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self


class Interruption:
    """Notes the first Ctrl-C instead of raising it at once; a second one is raised as always."""

    def __init__(self) -> None:
        self.asked = False
        self._before: object = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only there can signals be handled
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def obey(self) -> None:
        """Raise the KeyboardInterrupt that was put off, now that everything is saved."""
        if self.asked:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]  # what signal() itself gave
            self._before = None
