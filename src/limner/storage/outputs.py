"""Files that the user names for results: what may be replaced, whether the place is writable, and a fallback.

A command claims its outputs before its work and saves them after it. A file is replaced only if Limner wrote it as that
kind of file, which a mark in the file tells, or its beginning (tables and JSON of captions); plain text tells nothing,
and is never replaced. Files inside a run or a collection belong to it. `--force` lifts both rules.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TextIO

from limner.errors import SettingsError, WriteError
from limner.files import kind_of_file, open_file

GENERATOR = "Limner"
"""Value of the marks: the element `generator` of HTML pages, the entry `Software` of PNG files, the comment of JPEG
files and the creator of SVG files."""
_MARKS = {
    ".html": b'<meta name="generator" content="Limner"',
    ".png": b"tEXtSoftware\0Limner",
    ".jpg": b"Limner\xff",
    ".jpeg": b"Limner\xff",
    ".svg": b"<dc:title>Limner</dc:title>",
}
_HEAD_BYTES = 4096
"""Number of bytes at the beginning of a file that tell who wrote it."""
_RUN_RECORD = "recipe.json"
"""First file of a run."""
_MODEL_CONFIG, _MODEL_FILES = "config.json", ("model.safetensors", "log.jsonl")
"""Configuration of a model; together with one of the other files it tells that a folder is a run, or a pre-trained
network."""
_COLLECTION_FILE = "items.lance"
_PROBE = bytes(4096)


class SavedOutput(NamedTuple):
    """Where results were saved."""

    path: Path
    """File of the results; the fallback if the named place failed."""
    error: WriteError | None = None
    """Error of the named place; it names the fallback."""

    def require(self) -> None:
        """Raise the error of the named place, if there is one; call it after the results are printed."""
        if self.error is not None:
            raise self.error


def claim_file(
    path: Path,
    option: str,
    *,
    force: bool = False,
    default: Path | None = None,
    is_own: Callable[[Path], bool] | None = None,
) -> Path:
    """Check before the work that a file may be written: nothing of others is replaced, and the place is writable.

    Args:
        path: file that the user names.
        option: name of the option, for the errors.
        force: replace files of others, and files in runs and collections.
        default: file in a run that the command writes if no file is named; it may be replaced.
        is_own: function that tells whether an existing file was written by Limner as this kind; default: by its mark.

    Returns:
        `path`.

    Raises:
        SettingsError: the file must not be written, or cannot be.
    """
    what = f"{option} {path}"
    kind = _kind(path, what)
    if kind == "folder":
        raise SettingsError(f"{what}: is a folder; name a file in it")
    if kind not in (None, "file"):
        raise SettingsError(f"{what}: is a {kind}; name a file, or leave out {option}")
    if not force and not (default is not None and _same(path, default)):
        require_outside(path, what)
        if kind == "file" and path.stat().st_size and not (is_own or is_marked)(path):
            raise SettingsError(
                f"{what}: exists, and cannot be recognised as a file of this kind that Limner wrote; name another "
                "file, or add --force to replace it"
            )
    require_writable(path.parent, what)
    return path


def claim_folder(
    path: Path,
    option: str,
    *,
    force: bool | None = None,
    suffixes: tuple[str, ...] = (),
    records: Mapping[str, str] | None = None,
) -> Path:
    """Check before the work that files may be written to a folder, which may exist.

    Args:
        path: folder that the user names.
        option: name of the option, for the errors.
        force: replace files of others, and write to runs and collections; None for a command that never does.
        suffixes: suffixes of the files that will be written to it under names that are not known yet.
        records: names of files that will be written to it, each with the name of what Limner writes before.

    Returns:
        `path`.

    Raises:
        SettingsError: the folder must not be written to, or cannot be.
    """
    what = f"{option} {path}"
    kind = _kind(path, what)
    if kind not in (None, "folder"):
        raise SettingsError(f"{what}: expected a folder, found a {kind}; name a folder")
    if not force:
        require_outside(path, what, can_force=force is not None)
        for file in sorted(path.iterdir()) if kind and suffixes else ():
            if file.suffix.lower() in suffixes and file.is_file() and not is_marked(file):
                raise SettingsError(
                    f"{what}: contains {file.name}, which Limner did not write; name another folder, or add --force "
                    "to replace files of the same names"
                )
        for name, before in (records or {}).items():
            if (path / name).exists() and not (path / before).exists():
                raise SettingsError(f"{what}: contains {name}, which Limner did not write; name another folder")
    require_writable(path, what)
    return path


def require_writable(folder: Path, what: str) -> None:
    """Check that files can be written to a folder, or to the nearest folder above it that exists.

    Raises:
        SettingsError: they cannot; `what` names the output.
    """
    existing = next((one for one in (folder, *folder.parents) if one.exists()), Path())
    try:
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(_PROBE)
            probe.flush()
    except OSError as error:
        raise SettingsError(
            f"{what}: cannot be written ({error.strerror}); name a place in a folder that you can write to and that "
            "has free space"
        ) from None


def is_marked(path: Path) -> bool:
    """Whether a file has the mark of files of its suffix that Limner writes; false for kinds without a mark."""
    mark = _MARKS.get(path.suffix.lower())
    return mark is not None and mark in _head(path)


def begins_with(path: Path, pattern: re.Pattern[bytes]) -> bool:
    """Whether the beginning of a file matches a pattern, by which a kind of file without a mark is known."""
    return pattern.match(_head(path)) is not None


def _head(path: Path) -> bytes:
    with open_file(path) as stream:
        return stream.read(_HEAD_BYTES)


def save_output(path: Path, write: Callable[[Path], object]) -> SavedOutput:
    """Write results to a file, or to a fallback in another folder if that fails.

    Args:
        path: file to create or to replace.
        write: function that writes the results to a file.
    """
    try:
        write(path)
    except (WriteError, OSError) as error:
        reason = str(error).removeprefix(f"{path}: ").partition(";")[0]
    else:
        return SavedOutput(path)
    for fallback in fallback_files(path):
        with suppress(WriteError, OSError):
            write(fallback)
            remedy = f"the results are in {fallback} instead"
            return SavedOutput(fallback, WriteError(f"{path}: {reason}; {remedy}"))
        fallback.unlink(missing_ok=True)
    return SavedOutput(path, WriteError(f"{path}: {reason}; no other place can be written; free disk space"))


class OutputStream:
    """A text file that is written while results arrive; if it fails, all of them go to a fallback.

    A context manager, at whose end the error of the named file is raised.

    Args:
        path: file to create or to replace.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._texts: list[str] = []
        self._failures: list[str] = []
        self._stream: TextIO | None = None

    def __enter__(self) -> Self:
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._open(self.path)
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._failures and error is None:
            place = f"the results are in {self.path} instead" if self._stream else "the results were printed"
            raise WriteError(f"{self._failures[0]}; {place}; free disk space")

    def write(self, text: str) -> None:
        """Write a text at once."""
        self._texts.append(text)
        if self._stream is None:
            sys.stdout.write(text)
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            self._fail(error)

    def _open(self, path: Path) -> None:
        self.path = path
        try:
            self._stream = path.open("w", encoding="utf-8", newline="")
            self._stream.write("".join(self._texts))
            self._stream.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Go on in a fallback, the last of which is standard output."""
        self._failures.append(f"{self.path}: cannot be written ({error.strerror})")
        with suppress(OSError):  # closing writes what is buffered
            if self._stream is not None:
                self._stream.close()
        self._stream = None
        if len(self._failures) > 1:
            sys.stdout.write("".join(self._texts))
            return
        fallback = next(fallback_files(self.path), None)
        if fallback is None:
            sys.stdout.write("".join(self._texts))
        else:
            self._open(fallback)


def require_saved(outputs: Iterable[SavedOutput]) -> None:
    """Raise one error for all outputs that were not saved in their places; call it after the results are printed."""
    if errors := [output.error for output in outputs if output.error is not None]:
        raise WriteError("; ".join(map(str, errors)))


def fallback_files(path: Path) -> Iterator[Path]:
    """Create an empty file for results of `path` in each folder where this is possible: temporary, current, home."""
    for folder in dict.fromkeys((tempfile.gettempdir(), os.getcwd(), os.path.expanduser("~"))):
        with suppress(OSError):
            handle, name = tempfile.mkstemp(path.suffix, f"limner-{path.stem[:100]}-", folder)
            os.close(handle)
            yield Path(name)


def _kind(path: Path, what: str) -> str | None:
    """Return the kind of a file; None if there is none."""
    try:
        return kind_of_file(path.stat().st_mode)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise SettingsError(f"{what}: {path.parent} is not a folder; name a place in a folder") from None
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise SettingsError(f"{what}: cannot be written ({reason}); name another place") from None


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory, or a pre-trained network."""
    if (folder / _RUN_RECORD).exists():
        return True
    return (folder / _MODEL_CONFIG).exists() and any((folder / name).exists() for name in _MODEL_FILES)


def require_outside(path: Path, what: str, *, can_force: bool = True, runs_only: bool = False) -> None:
    """Raise SettingsError if a path is inside a run directory or, unless `runs_only`, a collection, or is one."""
    real = Path(os.path.realpath(path))
    for folder in (real, *real.parents):
        is_collection = not runs_only and (folder / _COLLECTION_FILE).exists()
        if is_collection or is_run(folder):
            owner = "collection" if is_collection else "run"
            remedy = ", or add --force" if can_force else ""
            place = "is" if folder == real else "is inside"
            raise SettingsError(f"{what}: {place} the {owner} {folder}; name a place outside of it{remedy}")


def _same(path: Path, other: Path) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)
