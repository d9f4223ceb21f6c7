"""Places of collections: folders of this machine, and object stores that are named by a URI such as s3://bucket/path.

Object stores need the extra `remote`. Credentials and the endpoint come from the environment, as every program of the
store reads them: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import cast

from limner.errors import CollectionError, SettingsError

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
        SettingsError: the URI is of an unknown store, or the extra is not installed.
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
