"""Settings of the process: memory that the allocator keeps, the wait policy and the number of threads of torch."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

TRIM_THRESHOLD = 1 << 30
"""Free bytes at the end of the heap, 1 GiB, above which glibc returns memory to the system."""
MMAP_THRESHOLD = 1 << 25
"""Size in bytes up to which a block comes from the heap, 32 MiB: the largest value that glibc accepts."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h

PARAMETERS_FOR_THREADS = 4_000_000
"""Number of model parameters from which several threads are faster than one."""

_choose_threads = False
_available_threads: int | None = None


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for the next tensors; return whether the allocator accepted the setting.

    By default glibc returns large blocks to the system at once, and the system provides zeroed pages again in the
    next step of a training or a decoding. The setting applies to the whole process, which may then hold more memory
    than it uses: it is meant for commands that repeat similar steps, not for libraries.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)) and bool(mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD))


def set_wait_policy() -> None:
    """Let idle OpenMP threads sleep instead of spinning, unless OMP_WAIT_POLICY is set; call before importing torch.

    Spinning threads take the processor from other programs, and on a shared machine from the thread they wait for.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def allow_thread_choice() -> None:
    """Let `use_threads_for` change the number of threads of this process, unless OMP_NUM_THREADS is set."""
    global _choose_threads
    _choose_threads = "OMP_NUM_THREADS" not in os.environ


def thread_count(parameters: int, available: int) -> int:
    """Return the number of threads for a model.

    The matrix products of a small model are too small to be divided among threads; docs/performance.md has the
    measurements.

    Args:
        parameters: number of model parameters.
        available: number of threads that torch uses by default, one per core.
    """
    return available if parameters >= PARAMETERS_FOR_THREADS else 1


def use_threads_for(parameters: Iterable[Tensor]) -> None:
    """Set the number of threads of torch by the total size of a model's parameters, in a process that allows it.

    Does nothing in other programs, and where the user has set OMP_NUM_THREADS. The number of threads can change
    results in the last bits; it therefore depends on the model alone and not on the load of the machine.
    """
    if not _choose_threads:
        return
    import torch

    global _available_threads
    if _available_threads is None:
        _available_threads = torch.get_num_threads()
    count = sum(parameter.numel() for parameter in parameters)
    torch.set_num_threads(thread_count(count, _available_threads))
