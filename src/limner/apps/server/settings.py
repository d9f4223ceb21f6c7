"""Settings of the service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Self

from pydantic import model_validator

from limner.bounds import BatchSize, Bounds, Bytes, Port, Processes, RequestCount, TimeLimit
from limner.errors import SettingsError
from limner.files import read_bytes
from limner.hub.settings import HubSettings
from limner.runs.pretrained import model_name
from limner.settings import Settings

KEYS_VARIABLE = "LIMNER_API_KEYS"
"""Environment variable with API keys, separated by commas or white space."""
BODIES_AT_ONCE = 16
"""Number of bodies and fetched images of the maximum size that are received together."""


class ServerSettings(Settings):
    """Settings of `limner serve`."""

    models: tuple[str, ...] = ()
    """Run directories that are served; empty for the built-in models."""
    aliases: tuple[str, ...] = ()
    """Other names of models: NAME=MODEL, where MODEL may have a language as its tag."""
    indexes: tuple[str, ...] = ()
    """Indexed folders that can be searched."""
    hub: HubSettings = HubSettings()
    """Settings of the captioners of the hub."""
    backbone: str | None = None
    """New place of the backbone of the models, if it has moved since the training."""
    device: str = "cpu"
    """Device to compute on: cpu or cuda."""
    host: str = "127.0.0.1"
    """Address to listen at; the default accepts connections of this machine only."""
    port: Port = 8000
    """Port to listen at; 0 for a free one."""
    workers: Processes = 1
    """Number of processes; each loads the models and uses their memory again."""
    key_file: str | None = None
    """File with API keys, one a line; the variable LIMNER_API_KEYS has keys as well. Without any, none is needed."""
    allowed_hosts: tuple[str, ...] = ()
    """Names in the Host header that are accepted besides localhost and addresses in numbers."""
    cors_origins: tuple[str, ...] = ()
    """Origins of pages of other hosts that may send requests; none by default."""
    image_hosts: tuple[str, ...] = ()
    """Hosts that images may be fetched from by http(s) URL; none by default."""
    max_body: Bytes = 20 << 20
    """Largest body of a request in bytes."""
    max_pixels: Annotated[int, Bounds(1, 89_478_485)] = 50_000_000
    """Largest number of pixels of an image."""
    max_queue: RequestCount = 256
    """Largest number of requests that are accepted and not yet answered; further requests are answered with 429."""
    max_batch: BatchSize = 16
    """Largest number of images that are encoded together; 1 for one request at a time."""
    timeout: TimeLimit = 60.0
    """Time limit of a request in seconds, waiting included."""
    body_timeout: TimeLimit = 20.0
    """Time limit of the reception of a body in seconds."""
    fetch_timeout: TimeLimit = 10.0
    """Time limit in seconds of fetching an image by its URL, from the look-up of the host to the last byte."""
    stop_timeout: TimeLimit = 10.0
    """Time in seconds for accepted requests to be finished when the service stops; then they are cancelled."""
    feature_cache: Annotated[int, Bounds(0, 2**44)] = 64 << 20
    """Memory in bytes for the features of the latest images, so that a repeated image is not encoded again."""
    withheld: str = ""
    """Text in place of a withheld caption in the interfaces of other programs; empty for none."""
    strict: bool = False
    """Whether fields of other programs' requests that have no effect are errors."""
    access_log: bool = True
    """Whether a line of JSON about each request is written to standard error, without contents."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [model_name(run) for run in self.models]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two models are named '{repeated}': models are named by their folder; rename one")
        if wrong := next((alias for alias in self.aliases if "=" not in alias.strip("=")), None):
            raise ValueError(f"alias '{wrong}': expected NAME=MODEL, such as llava=limner")
        return self


def read_keys(settings: ServerSettings) -> tuple[str, ...]:
    """Return the API keys of the key file and of the environment; SettingsError for a missing file, or a wrong key."""
    keys = os.environ.get(KEYS_VARIABLE, "").replace(",", " ").split()
    if settings.key_file is not None:
        try:
            text = read_bytes(Path(settings.key_file)).decode()
        except OSError as error:
            raise SettingsError(
                f"{settings.key_file}: cannot be read ({error.strerror}); name a file of keys"
            ) from None
        except UnicodeDecodeError:
            raise SettingsError(f"{settings.key_file}: expected text in UTF-8; name a file of keys") from None
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        if not lines:
            raise SettingsError(f"{settings.key_file}: expected one API key a line, found none; add one")
        keys += lines
    for key in keys:
        if not key.isascii() or not key.isprintable() or " " in key:
            raise SettingsError("API key: expected printable ASCII characters without spaces; change the key")
    return tuple(keys)
