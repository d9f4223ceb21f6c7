"""Reading of regular files, atomic writes, decoding of text, and locks that give a folder a single writing process.

A file is flushed to disk before it replaces the previous one, so that a power failure leaves either version intact.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import io
import logging
import os
import platform
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from limner.errors import LimnerError, WriteError, system_reason

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
"""Name of the lock file in a locked folder."""
PARTIAL = ".partial-"
"""Separator in the name of a temporary file: before it the name of the file, after it the host and process."""
ABANDONED_SECONDS = 7 * 24 * 3600.0
"""Seconds without a write after which the temporary file of another host is removed."""
_WRITER = re.compile(r"(?P<host>[0-9a-f]{12})-(?P<process>[0-9]+)")
"""Host and process at the end of the name of a temporary file."""


_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def kind_of_file(mode: int) -> str:
    """Name the kind of a file by the mode that `os.stat` returns: file, folder, named pipe, socket or device."""
    return _KINDS.get(stat.S_IFMT(mode), "special file")


def open_file(path: Path | str) -> io.BufferedReader:
    """Open a regular file for reading; nothing is read from named pipes, sockets and devices, which may never end.

    A path in an object store has no special files.

    Raises:
        OSError: the file is missing, cannot be read, or is not a regular file; `strerror` is a reason for messages.
    """
    if not isinstance(path, Path | str):
        return path.open("rb")
    # Without O_NONBLOCK, opening a named pipe waits for a writer.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
            require_regular(path, mode)
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def require_regular(path: Path | str, mode: int | None = None) -> None:
    """Check that a path is a regular file, by its mode if it is known, for libraries that open it themselves.

    Raises:
        OSError: it is missing or not a regular file; `strerror` is a reason for messages.
    """
    kind = kind_of_file(os.stat(path).st_mode if mode is None else mode)
    if kind == "folder":
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if kind != "file":
        raise OSError(errno.EINVAL, f"it is a {kind}, not a regular file", str(path))


def read_bytes(path: Path | str) -> bytes:
    """Read a regular file; see `open_file`."""
    with open_file(path) as stream:
        return stream.read()


@contextmanager
def atomic_write(path: Path, *error_types: type[Exception]) -> Iterator[Path]:
    """Provide a temporary path that replaces `path` when the block ends, and is removed when the block fails.

    Raises:
        WriteError: the file cannot be written (OSError, or `error_types`); an existing file is unchanged.
    """
    handled: tuple[type[Exception], ...] = (OSError, *error_types)
    temporary = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, f"it is a {kind_of_file(path.stat().st_mode)}")
        _remove_leftovers(path)
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except handled as error:
        raise write_error(path, error) from None
    finally:
        with suppress(OSError):  # its folder may be missing, or a file; that error is reported above
            temporary.unlink()


def temporary_path(path: Path) -> Path:
    """Return a hidden path beside `path` that no other process of any machine writes to."""
    return path.with_name(f".{path.name}{PARTIAL}{_host_id()}-{os.getpid()}")


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files of processes that were killed while they wrote a file.

    Another machine or container may be writing to the folder: its files are removed only after `ABANDONED_SECONDS`
    without a write.
    """
    for leftover in path.parent.glob(f".{glob.escape(path.name)}{PARTIAL}*"):
        if (writer := _WRITER.fullmatch(leftover.name.rpartition(PARTIAL)[2])) is None:
            continue
        with suppress(OSError):  # another process has removed it
            ended = writer["host"] == _host_id() and not _is_running(int(writer["process"]))
            if ended or time.time() - leftover.stat().st_mtime > ABANDONED_SECONDS:
                leftover.unlink()


def _is_running(process: int) -> bool:
    """Whether a process of this host runs, as far as this can be known."""
    if sys.platform == "win32":  # where asking for a process ends it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs as another user
        return True
    return True


@cache
def _host_id() -> str:
    """Return an id of the machine, its boot and the container, within which process ids are unique."""
    facts = [platform.node()]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        facts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(facts).encode(errors="replace")).hexdigest()[:12]


def is_file(path: Path) -> bool:
    """Whether a path from a corpus is a file; false for an impossible path."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or contains NUL
        return False


def decode_utf8(data: bytes, error_type: type[LimnerError], where: Callable[[int], object]) -> str:
    """Decode UTF-8 without a byte order mark.

    Raises:
        error_type: the data are not UTF-8; the message begins with `where(line)`, with lines counted from 1.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise error_type(
            f"{where(line)}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, as UTF-8; WriteError if it cannot be written, and an existing file is unchanged."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_error(path: Path, error: Exception) -> WriteError:
    """Error for a failed write, with the reason and the remedy."""
    return WriteError(
        f"{path}: cannot be written ({system_reason(error)}); check the permissions and the free disk space, then "
        "repeat the command (train: with --resume)"
    )


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if path.is_dir() and sys.platform == "win32":
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path, error_type: type[LimnerError], lock_file: Path | None = None) -> Iterator[None]:
    """Hold the exclusive lock of a folder; the operating system releases it when the process ends.

    On file systems without locks a warning is logged and the block runs unlocked.

    Args:
        folder: folder to lock, named in the error.
        error_type: exception to raise if another process holds the lock.
        lock_file: lock file, by default `LOCK_FILE` in the folder, which has to exist then; it is removed at the end.

    Raises:
        LimnerError: another process holds the lock; of type `error_type`.
    """
    if not isinstance(folder, Path):  # an object store, where Lance refuses the second of two commits
        yield
        return
    from filelock import FileLock, Timeout  # commands that only read need no locks

    path = lock_file or folder / LOCK_FILE
    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise error_type(f"{folder}: another process is writing to it; wait until it ends") from None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC):
            raise error_type(
                f"{folder}: cannot be written ({system_reason(error)}); check its permissions and the free disk space"
            ) from None
        logger.warning("%s: cannot be locked (%s); run only one process that writes to it", folder, error)
    try:
        yield
    finally:
        if lock.is_locked:
            if sys.platform != "win32":  # filelock removes the file on Windows only
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            lock.release()
