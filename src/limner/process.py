"""How the process holds memory."""

from __future__ import annotations

import ctypes
import platform

KEPT = 1 << 30
"""Bytes free at the end of the heap from which on they go back to the system; holes below stay, however large."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST_KEPT = 1 << 25
"""Bytes of the largest block that is taken from the heap, 32 MiB: glibc takes no larger number."""


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next tensors, where it is glibc that gives it; return whether it does.

    It would hand large blocks back to the system at once, and the system give every page of them anew, zeroed, at the
    next step of a training or a search. For the process of a command whose steps are alike, not for a library, nor
    where memory is bounded: the setting holds for all that runs in the process, which may then hold more than it uses.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT))
