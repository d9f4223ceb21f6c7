"""The image files in a folder, and the marks by which a changed file is recognised."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from limner.errors import system_reason
from limner.media.modality import IMAGE


class FoundFile(NamedTuple):
    """An image file in a folder."""

    path: str
    """Path relative to the folder; bytes that are not UTF-8 are surrogates, see `os.fsdecode`."""
    size: int
    """Size in bytes."""
    modified: int
    """Time of the last change, in nanoseconds."""


class Scan(NamedTuple):
    """Result of `scan_folder`."""

    files: list[FoundFile]
    """Image files by their paths, in order."""
    unreadable: dict[str, str]
    """Reason of each folder that cannot be listed, by its path relative to the scanned folder."""


def scan_folder(folder: Path, *, recursive: bool = True, skip: Path | None = None) -> Scan:
    """Find the image files in a folder by their suffixes, and in the folders inside, other than `skip`.

    Hidden files and folders are skipped. Links to files are followed, links to folders are not, so that a loop of links
    ends.
    """
    files: list[FoundFile] = []
    unreadable: dict[str, str] = {}
    pending = [""]
    while pending:
        inside = pending.pop()
        try:
            with os.scandir(folder / inside) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    path = os.path.join(inside, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        if recursive and (skip is None or folder / path != skip):
                            pending.append(path)
                    elif IMAGE.matches(entry.name) and (file := _find(entry, path)) is not None:
                        files.append(file)
        except OSError as error:
            unreadable[inside or "."] = system_reason(error)
    return Scan(sorted(files), unreadable)


def _find(entry: os.DirEntry[str], path: str) -> FoundFile | None:
    """Return a file; None for what is no file, such as a pipe or a link to a folder."""
    try:
        facts = entry.stat()
    except OSError:  # a link to nothing, or a file that has just been removed
        return None
    return FoundFile(path, facts.st_size, facts.st_mtime_ns) if stat.S_ISREG(facts.st_mode) else None
