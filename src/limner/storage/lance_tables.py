"""Opening and reading of Lance tables whose files may be damaged, and of the records of indexes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from limner.errors import LimnerError, SettingsError, system_reason
from limner.files.structured import read_json_file
from limner.settings import Settings
from limner.storage.places import is_remote, storage_options, store_errors, unreachable

Record = TypeVar("Record", bound=Settings)

_LANCE_DETAILS = re.compile(r"(External error: )?LanceError\(\w+\): (Generic \w+ error: )?|, [^ ,]+\.rs:\d+:\d+")
_HINT = "_versions/latest_version_hint.json"


@contextmanager
def damage_raised_as(error_of: Callable[[str], LimnerError], path: Path | None = None) -> Iterator[None]:
    """Convert the exceptions of Lance and Arrow for damaged files, panics included, to the result of `error_of`.

    An object store at `path` that cannot be reached is no damage.
    """
    try:
        yield
    except (LimnerError, MemoryError):
        raise
    except Exception as error:
        if path is not None and (lost := unreachable(path, error)) is not None:
            raise lost from None
        raise error_of(_first_line(error)) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of PyO3, which has no importable class
            raise
        raise error_of(_first_line(error)) from None


@contextmanager
def write_errors_raised_as(error_type: type[LimnerError], path: Path, remedy: str) -> Iterator[None]:
    """Convert the exceptions of Lance, Arrow and clients of stores where a table cannot be written."""
    try:
        yield
    except store_errors(path, (OSError, ValueError, RuntimeError)) as error:
        if (lost := unreachable(path, error)) is not None:
            raise lost from None
        raise error_type(f"{path}: cannot be written ({system_reason(error)}); {remedy}") from error


def open_table(path: Path) -> Any:  # noqa: ANN401 (Lance has no types)
    """Open the newest version of a table.

    Raises:
        OSError, ValueError: the table is damaged, or its newest version is missing; see `damage_raised_as`.
    """
    import lance

    newest = 0 if is_remote(path) else _newest_version(path)  # first: another process may add versions meanwhile
    dataset = lance.dataset(str(path), storage_options=storage_options(path))
    _ = dataset.schema  # Lance reads it now, so that damage is found here
    if newest > dataset.version:
        raise ValueError(f"version {newest} is missing, the newest that is left is {dataset.version}")
    return dataset


def state_of(path: Path) -> str:
    """Return a text that changes with every commit to a table, and when it is written anew."""
    files = path.glob("_versions/*")
    return " ".join(sorted(file.name if is_remote(path) else f"{file.name} {_write_time(file)}" for file in files))


def _write_time(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # a version that is removed at this moment
        return 0


def unfinished(path: Path) -> list[Path]:
    """Return the files that an interrupted write of Lance has left in a local table, or that a write is making now."""
    return [] if is_remote(path) else list(path.glob("**/.tmp*"))


def remove_unfinished(path: Path) -> None:
    """Remove the files that an interrupted write of Lance has left in a local table; the caller holds its lock."""
    for leftover in unfinished(path):
        leftover.unlink(missing_ok=True)


def _newest_version(path: Path) -> int:
    """Return the number of the newest version by the hint that Lance writes beside the versions; 0 without a hint."""
    try:
        return int(read_json_file(path / _HINT)["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _first_line(error: BaseException) -> str:
    """Return the first line of an error of Lance, without error types and places in its source."""
    return _LANCE_DETAILS.sub("", next(iter(str(error).splitlines()), "")) or type(error).__name__


def load_record(kind: type[Record], file: Path, version: int, error_type: type[LimnerError], remedy: str) -> Record:
    """Read the record of an index.

    Raises:
        LimnerError: the file is missing, damaged, or of another version; of type `error_type`.
    """
    try:
        values = read_json_file(file)
        if isinstance(values, dict) and values.get("version") != version:
            raise error_type(f"{file}: expected an index of version {version}, found {values.get('version')}; {remedy}")
        return kind.parse(values)
    except FileNotFoundError:
        raise error_type(f"{file.parent}: expected an index, found no {file.name}; {remedy}") from None
    except (OSError, ValueError, TypeError, SettingsError) as error:
        reason = str(error).partition("\n")[0]
        raise error_type(f"{file}: damaged record of an index ({reason}); {remedy}") from None
