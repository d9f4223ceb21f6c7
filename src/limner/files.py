"""Files that appear whole or not at all, and folders that one process at a time writes to.

What is written is on the disk, not only on its way there, before it takes the place of what was: a power cut leaves
the old file or the new one, too.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from limner.errors import LimnerError, RunError

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)


@contextmanager
def written_beside(path: Path, *failures: type[Exception]) -> Iterator[Path]:
    """A place beside `path` to write to; at the end it is renamed to `path`, or removed if writing failed.

    Args:
        path: the file to make or to replace.
        failures: what the writer raises for a disk that refuses, other than OSError.

    Raises:
        RunError: the file cannot be written; the old one is as it was.
    """
    refused: tuple[type[Exception], ...] = (OSError, *failures)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        sync(beside)
        os.replace(beside, path)
        sync(path.parent)
    except refused as error:
        raise unwritable(path, error) from None
    finally:
        beside.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file; whoever looks sees the old file or the new one.

    Raises:
        RunError: it cannot be written; the old one is as it was.
    """
    with written_beside(path) as beside:
        beside.write_text(text, encoding="utf-8")


def unwritable(path: Path, error: Exception) -> RunError:
    """What the user is told about a disk that refuses."""
    reason = (isinstance(error, OSError) and error.strerror) or error
    return RunError(
        f"{path}: cannot be written ({reason}); make room, then give the same command again (train: with --resume)"
    )


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and sys.platform == "win32":
        return  # folders cannot be opened there
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path, refusal: type[LimnerError]) -> Iterator[None]:
    """Only one process writes to a folder; the lock ends with its process, however that ends.

    Where folders cannot be locked (Windows, some network disks) it is up to the user to write one at a time.

    Args:
        folder: has to exist.
        refusal: the error that says another process holds the lock.
    """
    if sys.platform == "win32":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refusal(f"{folder}: another process is writing to it; wait for it to end") from None
        except OSError as error:
            logger.warning("%s: cannot be locked (%s); let only one process write to it", folder, error)
        yield
    finally:
        os.close(handle)
