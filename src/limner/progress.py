"""Progress of a work that is done in parts."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Told what is done, and how much there is."""


def part_of(progress: Progress, before: int, total: int) -> Progress:
    """What a part of a work is given, so that what it tells is of the whole.

    Args:
        progress: told what is done of the whole.
        before: what was done when the part began, in the part's own units.
        total: the whole, likewise.
    """
    return lambda done, _: progress(before + done, total)
