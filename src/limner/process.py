"""The process and its machine: devices, memory, wait policy, threads, processor, standard streams."""

from __future__ import annotations

import ctypes
import gc
import io
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from limner.errors import ResourceError, SettingsError
from limner.files import read_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Part = TypeVar("Part")
Result = TypeVar("Result")

TRIM_THRESHOLD = 1 << 30
"""Free bytes at the end of the heap, 1 GiB, above which glibc returns memory to the system."""
MMAP_THRESHOLD = 1 << 25
"""Size in bytes up to which a block comes from the heap, 32 MiB: the largest value that glibc accepts."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h

NEGLIGIBLE = 64 << 20
"""Memory in bytes up to which the available memory is not checked."""
_MEMORY_INFORMATION = Path("/proc/meminfo")
_CONTROL_GROUP = Path("/sys/fs/cgroup")

PARAMETERS_FOR_THREADS = 4_000_000
"""Number of model parameters from which several threads are faster than one."""

_choose_threads = False
_available_threads: int | None = None


def find_device(name: str) -> torch.device:
    """Return the device of a name, cpu, cuda or cuda:N; SettingsError if there is none on this machine."""
    import torch

    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise SettingsError(f"device '{name}': expected cpu, cuda or cuda:N")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(
            f"device '{name}': not available on this machine ({reason}); use cpu, or install a CUDA build of torch"
        ) from None
    return device


def native_bf16(device: torch.device) -> bool:
    """Whether the hardware has bfloat16 matrix products, which are then faster than float32."""
    import torch

    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def training_device(name: str | None) -> torch.device:
    """Return the device of a name, by default CUDA where it is available, else the CPU; see `find_device`."""
    import torch

    return find_device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


@contextmanager
def without_cycle_collection() -> Iterator[None]:
    """Pause the collection of cyclic garbage, which is slow while many objects without cycles are created."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def usable_cores() -> int:
    """Return the number of processor cores that the process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for the next tensors; return whether the allocator accepted the setting.

    By default glibc returns large blocks to the system at once, and the system provides zeroed pages again in the next
    step of a training or a decoding. Threads have separate heaps, to which the setting does not apply; here they share
    a single heap. Call this before the first thread starts. The setting applies to the whole process, which may then
    hold more memory than it uses: it is meant for commands that repeat similar steps, not for libraries.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    values = {M_MMAP_THRESHOLD: MMAP_THRESHOLD, M_TRIM_THRESHOLD: TRIM_THRESHOLD, M_ARENA_MAX: 1}
    return all(mallopt(option, value) for option, value in values.items())


def available_memory(device: torch.device | None = None) -> int | None:
    """Return the bytes that can be allocated without swapping; None if they are not known.

    For a CUDA device this is the memory of the device, otherwise the memory of the machine, or of the control group
    (container) of the process if it is less.
    """
    if device is not None and device.type == "cuda":
        import torch

        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch for next tensors
        return int(torch.cuda.mem_get_info(device)[0]) + reserved
    limits = _memory_entry(_MEMORY_INFORMATION, "MemAvailable:"), _control_group_memory()
    return min((limit for limit in limits if limit is not None), default=None)


def peak_memory() -> int | None:
    """Return the largest memory of this process in bytes, without the memory of its parent; None if it is not known."""
    return _memory_entry(Path("/proc/self/status"), "VmHWM:")


def _memory_entry(file: Path, name: str) -> int | None:
    """Return an entry of a file of the kernel in bytes; None if there is none."""
    try:
        lines = read_bytes(file).decode().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
    except (OSError, StopIteration, ValueError, IndexError):  # not Linux
        return None


def _control_group_memory() -> int | None:
    """Return the free memory in a container with a memory limit (cgroup version 2); None without a limit.

    Cached files count as free, because the kernel drops them when memory is needed.
    """
    try:
        total, used = (int(read_bytes(_CONTROL_GROUP / name)) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no such file, or 'max': no limit
        return None
    cached = 0
    with suppress(OSError, ValueError):
        values = dict(line.split() for line in read_bytes(_CONTROL_GROUP / "memory.stat").decode().splitlines())
        cached = sum(int(values.get(f"{name}_file", 0)) for name in ("active", "inactive"))
    return max(0, total - used + cached)


def require_memory(needed: int, purpose: str, remedy: str, available: int | None = None) -> None:
    """Check that memory is available, before it is allocated; ResourceError with the settings to lower if not.

    The estimate is rather too low than too high, so that nothing is refused that would fit; negligible memory is not
    checked.
    """
    if needed <= NEGLIGIBLE:
        return
    available = available_memory() if available is None else available
    if available is not None and needed > available:
        raise ResourceError(
            f"{purpose}: needs about {_in_gib(needed)} of memory, and {_in_gib(available)} are available; {remedy}"
        )


def require_space(folder: Path, needed: int, purpose: str, remedy: str) -> None:
    """Check that the disk of a folder, which need not exist, has room before files are written."""
    existing = next((parent for parent in (folder, *folder.absolute().parents) if parent.is_dir()), Path())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise ResourceError(
            f"{folder}: {purpose} needs about {_in_gib(needed)} of disk space, and {_in_gib(free)} are free; {remedy}"
        )


def _in_gib(size: int) -> str:
    return f"{size / (1 << 30):,.1f} GiB"


def map_in_threads(function: Callable[[Part], Result], parts: Iterable[Part]) -> list[Result]:
    """Apply a function of tensors to parts of a batch, each in a separate thread.

    Threads within layers would synchronise hundreds of times per pass.
    """
    import torch

    threads = torch.get_num_threads()
    if threads == 1:
        return list(map(function, parts))
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, parts))
    finally:
        torch.set_num_threads(threads)  # the initialiser changed the number for every new thread


def prepare_threads() -> None:
    """Let idle OpenMP threads sleep, and let `use_threads_for` change the number of threads; before torch is imported.

    OMP_WAIT_POLICY and OMP_NUM_THREADS take precedence. Threads that spin while they wait take the processor from other
    programs, and on a shared machine from the thread they wait for.
    """
    global _choose_threads
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _choose_threads = "OMP_NUM_THREADS" not in os.environ


def available_threads() -> int:
    """Return the number of threads that torch uses by default, whatever `use_threads_for` has chosen for a model."""
    if _available_threads is not None:
        return _available_threads
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else usable_cores()


def use_threads_for(parameters: Iterable[Tensor]) -> None:
    """Set the number of threads of torch by the total size of a model's parameters, in a process that allows it.

    The matrix products of a small model are too small to be divided among threads (docs/notebook/speed.md). Does
    nothing in other programs, and where the user has set OMP_NUM_THREADS. The number of threads can change results in
    the last bits; it therefore depends on the model alone and not on the load of the machine.
    """
    if not _choose_threads:
        return
    import torch

    global _available_threads
    _available_threads = available_threads()
    count = sum(parameter.numel() for parameter in parameters)
    torch.set_num_threads(_available_threads if count >= PARAMETERS_FOR_THREADS else 1)


@contextmanager
def all_threads() -> Iterator[None]:
    """Use all threads of torch for large products, even if `use_threads_for` has chosen fewer threads."""
    if not _choose_threads:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(available_threads())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def processor_name() -> str:
    """Return the name and the architecture of the processor, 'AMD EPYC (x86_64)', or the architecture alone."""
    try:
        facts = read_bytes(Path("/proc/cpuinfo")).decode(errors="replace")
    except OSError:  # not Linux
        facts = ""
    names = [line.partition(":")[2].strip() for line in facts.splitlines() if line.startswith("model name")]
    return f"{names[0]} ({platform.machine()})" if names else platform.machine()


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
    """Flush the standard streams; return the exit status, `FAILED` if results are lost; closed pipes are no error."""
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
    """Redirect a stream with buffered output to the null device, so that the interpreter does not fail at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):
        os.dup2(null, descriptor)
    os.close(null)


@cache
def has_vnni() -> bool:
    """Whether sums of 8-bit products do not saturate at 16 bits, as they do in x86 processors before VNNI."""
    try:
        return "vnni" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
