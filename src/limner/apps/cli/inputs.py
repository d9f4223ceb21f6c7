"""Inputs of commands: files named on the command line, in folders or on standard input, and files of sentences."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limner.errors import MediaError, SettingsError, counted
from limner.files import decode_utf8, read_bytes

if TYPE_CHECKING:
    from limner.media.modality import Modality

logger = logging.getLogger(__name__)
STANDARD_INPUT = Path("-")
DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")
"""Beginnings of the paths by which a shell passes the output of a command, as in `<(command)`."""


def read_lines(file: Path) -> list[str]:
    """Read lines of a file or of standard input, separated by line feeds alone; sentences may have other separators."""
    is_pipe = str(file).startswith(DESCRIPTORS)  # of a shell; other pipes may have no writer, and are refused
    try:
        read = Path.read_bytes if is_pipe else read_bytes
        data = sys.stdin.buffer.read() if file == STANDARD_INPUT else read(file)
    except OSError as error:
        raise SettingsError(
            f"{file}: cannot be read ({error.strerror}); expected a text file, one line per sentence"
        ) from None
    lines = decode_utf8(data, SettingsError, lambda line: f"{file}, line {line}").split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def find_input_files(
    paths: Sequence[Path], modality: Modality, readable: Sequence[Modality], recursive: bool = False
) -> list[Path]:
    """Replace each folder by the files in it, and `-` by the files and folders that standard input lists.

    Folders have files of the readable modalities; the modality of the model is named in messages. A folder without
    files is logged. SettingsError if there is no other input, or standard input lists none; MediaError if none of the
    files exists.
    """
    files, empty, any_folder = list[Path](), list[SettingsError](), False
    for path in _with_listed(paths):
        if path.is_dir():
            any_folder = True
            try:
                files += _inside(path, modality, readable, recursive)
            except SettingsError as error:
                empty.append(error)
        else:
            files.append(path)
    if empty and not files:
        raise empty[0]
    for reason in empty:
        logger.warning("%s", reason)
    if not any(file.exists() for file in files):
        and_more = f", nor do {len(files) - 1} more" if len(files) > 1 else ""
        raise MediaError(f"{files[0]}: no such file{and_more}; name {modality.plural} or folders that exist")
    if recursive and not any_folder:
        raise SettingsError("--recursive: has no effect on files; name a folder, or leave it out")
    return files


def _with_listed(paths: Sequence[Path]) -> Iterator[Path]:
    """Replace `-` by the paths that standard input lists, one per line."""
    for path in paths:
        if path != STANDARD_INPUT:
            yield path
            continue
        data = sys.stdin.buffer.read()
        listed = [line for line in data.splitlines() if line.strip()]
        if b"\0" in data:
            raise SettingsError("standard input: expected one file per line, got binary data; name the file itself")
        if not listed:
            raise SettingsError("standard input: expected one file per line, got none; list them, as with 'ls *.jpg'")
        yield from (Path(os.fsdecode(line)) for line in listed)


def _inside(folder: Path, modality: Modality, readable: Sequence[Modality], recursive: bool) -> list[Path]:
    entries = folder.rglob("*") if recursive else folder.iterdir()
    files = [file for file in entries if any(kind.matches(file) for kind in readable) and not file.is_dir()]
    # hidden: a name of the file or of one of its folders starts with a dot, as macOS adds to archives
    inside = sorted(file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts))
    if hidden := len(files) - len(inside):
        count = counted(hidden, "hidden file is", "hidden files are")
        logger.warning("%s: %s not read; name a hidden file to read it", folder, count)
    if inside:
        return inside
    deeper = not recursive and any(entry.is_dir() for entry in folder.iterdir())
    remedy = f"; add --recursive for the {modality.plural} in its folders" if deeper else ""
    raise SettingsError(f"{folder}: no {modality.plural} in this folder{remedy or '; name another folder, or files'}")
