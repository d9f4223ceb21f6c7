"""Progress callbacks, and durations as text."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with the number of finished units of work and the total number of units."""
StageProgress = Callable[[str, int, int], None]
"""Called with the name of a stage, the number of its finished units of work and their total."""


def offset_progress(on_progress: Progress, offset: int, total: int) -> Progress:
    """Report the progress of a part of a computation, which begins at `offset` units, as progress of the whole."""
    return lambda done, _: on_progress(offset + done, total)


def duration(seconds: float) -> str:
    """Write a duration in hours, minutes and seconds."""
    minutes, rest = divmod(seconds, 60)
    if minutes < 1:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest:.0f} s"
