"""Output files that the user names: checks before the work, and writing.

A command claims its outputs before its work and saves them after it. A file that exists is not replaced, and nothing is
written inside a run or a collection; `--force` lifts both rules.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TextIO

from limner.errors import LimnerError, SettingsError, WriteError, system_reason
from limner.files import kind_of_file

_RUN_RECORD = "recipe.json"
"""File that a run directory has from its beginning."""
_MODEL_CONFIG, _MODEL_FILES = "config.json", ("model.safetensors", "log.jsonl")
"""Configuration of a model, and files of which one beside it marks a folder as a run, or a pre-trained network."""
_COLLECTION_FILE = "items.lance"
_PROBE = bytes(4096)


class SavedOutput(NamedTuple):
    """A file of results, and whether it was saved."""

    path: Path
    """File of the results."""
    error: WriteError | None = None
    """Error of writing the file; None if it was saved."""

    def require(self) -> None:
        """Raise the error of the file, if there is one; call it after the results are printed."""
        require_saved([self])


def claim_file(path: Path, option: str, *, force: bool = False, default: Path | None = None) -> Path:
    """Check before the work that a file may be written: nothing is replaced, and the place is writable.

    Args:
        path: file that the user names, which is returned.
        option: name of the option, for the errors.
        force: replace files, and write to runs and collections.
        default: file in a run that the command writes if no file is named; it may be replaced.

    Raises:
        SettingsError: the file must not be written, or cannot be.
    """
    label = f"{option} {path}"
    kind = _kind(path, label)
    if kind == "folder":
        raise SettingsError(f"{label}: is a folder; name a file in it")
    if kind not in (None, "file"):
        raise SettingsError(f"{label}: is a {kind}; name a file, or leave out {option}")
    if not force and (default is None or os.path.realpath(path) != os.path.realpath(default)):
        require_outside(path, label)
        if kind == "file" and path.stat().st_size:
            raise SettingsError(f"{label}: exists; name another file, or add --force to replace it")
    require_writable(path.parent, label)
    return path


def claim_folder(
    path: Path,
    option: str,
    *,
    force: bool | None = None,
    suffixes: tuple[str, ...] = (),
    records: Mapping[str, str] | None = None,
) -> Path:
    """Check before the work that files may be written to a folder, which may exist and is returned.

    Args:
        path: folder that the user names.
        option: name of the option, for the errors.
        force: replace files, and write to runs and collections; None for a command that never does.
        suffixes: suffixes of the files that will be written to the folder, under names that are not known yet.
        records: names of files that will be written to the folder, each with the name of a file that Limner writes
            before.

    Raises:
        SettingsError: the folder must not be written to, or cannot be.
    """
    label = f"{option} {path}"
    kind = _kind(path, label)
    if kind not in (None, "folder"):
        raise SettingsError(f"{label}: expected a folder, found a {kind}; name a folder")
    if not force:
        require_outside(path, label, can_force=force is not None)
        for file in sorted(path.iterdir()) if kind and suffixes else ():
            if file.suffix.lower() in suffixes and file.is_file():
                raise SettingsError(
                    f"{label}: contains {file.name}; name another folder, or add --force to replace files of the same "
                    "names"
                )
        for name, before in (records or {}).items():
            if (path / name).exists() and not (path / before).exists():
                raise SettingsError(f"{label}: contains {name}, which Limner did not write; name another folder")
    require_writable(path, label)
    return path


def require_writable(folder: Path, label: str) -> None:
    """Check that files can be written to a folder, or to its nearest existing parent; SettingsError if not."""
    existing = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path())
    try:
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(_PROBE)
            probe.flush()
    except OSError as error:
        raise SettingsError(
            f"{label}: cannot be written ({error.strerror}); name a place in a folder that you can write to and that "
            "has free space"
        ) from None


def save_output(path: Path, write: Callable[[Path], object]) -> SavedOutput:
    """Write results to a file with `write`; after an error, the caller prints the results before it is raised."""
    try:
        write(path)
    except (WriteError, OSError) as error:
        if isinstance(error, OSError):
            error = WriteError(
                f"{path}: cannot be written ({system_reason(error)}); free disk space, or name another place"
            )
        return SavedOutput(path, error)
    return SavedOutput(path)


def require_saved(outputs: Iterable[SavedOutput]) -> None:
    """Raise one error for all outputs that were not saved; call it after the results are printed."""
    if errors := [output.error for output in outputs if output.error is not None]:
        raise WriteError("; ".join(map(str, errors)))


class OutputStream:
    """A text file that is written while results arrive; after an error, all results go to standard output.

    A context manager, at whose end the error of the file is raised.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._texts: list[str] = []
        self._stream: TextIO = sys.stdout
        self._error: OSError | None = None

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self.path.open("w", encoding="utf-8", newline="")
        except OSError as error:
            self._error = error
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._error is None:
            self._stream.close()
        elif error is None:
            raise WriteError(
                f"{self.path}: cannot be written ({system_reason(self._error)}); the results were printed: free disk "
                "space"
            )

    def write(self, text: str) -> None:
        """Write a text at once."""
        self._texts.append(text)
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            if self._error is not None:
                raise
            self._error = error
            with suppress(OSError):  # closing writes what is buffered
                self._stream.close()
            self._stream = sys.stdout
            self._stream.write("".join(self._texts))


def _kind(path: Path, label: str) -> str | None:
    """Return the kind of a file; None if nothing is there."""
    try:
        return kind_of_file(path.stat().st_mode)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise SettingsError(f"{label}: {path.parent} is not a folder; name a place in a folder") from None
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise SettingsError(f"{label}: cannot be written ({reason}); name another place") from None


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory, or a pre-trained network."""
    if (folder / _RUN_RECORD).exists():
        return True
    return (folder / _MODEL_CONFIG).exists() and any((folder / name).exists() for name in _MODEL_FILES)


def require_outside(path: Path, label: str, *, can_force: bool = True, runs_only: bool = False) -> None:
    """Raise SettingsError if a path is, or is in, a run directory or, unless `runs_only`, a collection."""
    real = Path(os.path.realpath(path))
    for folder in (real, *real.parents):
        is_collection = not runs_only and (folder / _COLLECTION_FILE).exists()
        if is_collection or is_run(folder):
            owner = "collection" if is_collection else "run"
            remedy = ", or add --force" if can_force else ""
            place = "is" if folder == real else "is inside"
            raise SettingsError(f"{label}: {place} the {owner} {folder}; name a place outside of it{remedy}")


MAX_NAME_BYTES = 200
"""Maximum length of a name in UTF-8; file systems allow 255 bytes, and suffixes are added."""
_SEPARATORS = ("/", "\\")


def require_name(name: str, label: str, error_type: type[LimnerError] = SettingsError) -> str:
    """Check that a name can be a file name, so that nothing is written outside of its folder; return it.

    Raises:
        LimnerError: of type `error_type`: the name is empty or too long, begins with a dot or a space, or contains a
            path separator or a character that cannot be printed.
    """
    problem = None
    if not name.strip():
        problem = "is empty"
    elif any(separator in name for separator in _SEPARATORS):
        problem = "contains a path separator"
    elif name[0] in ". ":
        problem = f"begins with {'a dot' if name[0] == '.' else 'a space'}"
    elif not name.isprintable():
        problem = "contains characters that cannot be printed"
    elif len(name.encode(errors="surrogateescape")) > MAX_NAME_BYTES:
        problem = f"is longer than {MAX_NAME_BYTES} bytes"
    if problem is None:
        return name
    shown = name if len(name) <= 40 else f"{name[:40]}…"
    raise error_type(
        f"{label} {shown!r}: {problem}; expected a name such as 'test', without '/' and '\\', which becomes a file name"
    )


def name_or_default(name: str | None, default: str, label: str) -> str:
    """Check a name with `require_name`, and return it, or the default for None; SettingsError if it is no file name."""
    return default if name is None else require_name(name, label)
