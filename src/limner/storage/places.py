"""Places of collections and their Lance tables: folders, and object stores with a URI such as s3://bucket/path.

Object stores need the extra `remote`. Credentials and the endpoint come from the environment, as every program of the
store reads them: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from limner.errors import CollectionError, LimnerError, SettingsError, system_reason
from limner.files.structured import read_json_file
from limner.settings import Settings

_URI = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+)", re.DOTALL)
SCHEMES = ("s3", "gs", "az")
"""Object stores that both Lance and fsspec know."""
_TIMES = {"connect_timeout": "10s", "request_timeout": "60s", "client_max_retries": "3"}
_CAUSES = (
    (re.compile("NoSuchBucket|bucket does not exist", re.I), "the bucket does not exist"),
    (re.compile("credentials|InvalidAccessKeyId", re.I), "there are no valid credentials"),
    (re.compile("SignatureDoesNotMatch|AccessDenied|Access Denied|403 Forbidden|Forbidden"), "the access is denied"),
    (re.compile("error sending request|timed? ?out|Could not connect|Connection|50[0-9] ", re.I), "no answer"),
)


def place(path: Path | str) -> Path:
    """Return a folder as a path, or the URI of an object store as an object with the methods of a path.

    Raises:
        SettingsError: the URI is of an unknown store, or the extra of object stores is not installed.
    """
    if is_remote(path) or (match := _URI.fullmatch(str(path))) is None:
        return path if not isinstance(path, str) else Path(path)
    scheme, rest = match.groups()
    if scheme not in SCHEMES:
        raise SettingsError(f"{scheme}://{rest}: expected a folder or a URI of {', '.join(SCHEMES)}, found '{scheme}'")
    try:
        from upath import UPath
    except ImportError:
        raise SettingsError(
            f"{scheme}://{rest}: object stores need the extra 'remote'; run 'pip install limner[remote]'"
        ) from None
    # Others may write to the store: the entries of a folder are listed each time.
    return cast("Path", UPath(f"{scheme}://{rest.rstrip('/')}", use_listings_cache=False))


def is_collection(path: Path | str) -> bool:
    """Whether a folder is a collection; true for every URI, which is checked when it is opened."""
    location = place(path)
    return is_remote(location) or (location / "items.lance").is_dir()


def is_remote(path: Path | str) -> bool:
    """Whether a path was made of a URI by `place`."""
    return not isinstance(path, Path | str)


def storage_options(path: Path | str) -> dict[str, str] | None:
    """Options of Lance for a place; None for a folder. Requests have a timeout, so that a lost store is an error."""
    if not is_remote(path):
        return None
    endpoint = os.environ.get("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", ""))
    return {**_TIMES, **({"allow_http": "true"} if endpoint.startswith("http://") else {})}


def unreachable(path: Path, error: BaseException) -> CollectionError | None:
    """Return the error for a store that cannot be reached; None for a folder, and for errors of other kinds."""
    if not is_remote(path):
        return None
    text = f"{type(error).__name__}: {error}"
    cause = next((words for pattern, words in _CAUSES if pattern.search(text)), None)
    if cause is None:
        return None
    return CollectionError(
        f"{path}: cannot be reached ({cause}); check the name, the credentials "
        "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and the endpoint (AWS_ENDPOINT_URL), then repeat the command"
    )


def store_errors(path: Path, error_types: tuple[type[Exception], ...]) -> tuple[type[Exception], ...]:
    """Return `error_types`, with the exceptions of the client of the store for a path in an object store."""
    if not is_remote(path):
        return error_types
    from botocore.exceptions import BotoCoreError

    return (*error_types, cast("type[Exception]", BotoCoreError))


def this_writer() -> str:
    """Name of this process, for the error message of another process that writes to the same store."""
    return f"process {os.getpid()} on {socket.gethostname()}"


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
    """Open the newest version of a table; OSError or ValueError if it is damaged, see `damage_raised_as`."""
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
    """Read the record of an index; raise `error_type` if it is missing, damaged, or of another version."""
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
