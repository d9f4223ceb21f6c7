"""Running the service: the bound socket, uvicorn, several processes, and their end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from functools import partial
from ipaddress import ip_address
from typing import Any, NoReturn

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.supervisors import Multiprocess

from limner.apps.server.app import create_app
from limner.apps.server.indexes import FolderOpener, open_indexes
from limner.apps.server.models import Models, load_served_models
from limner.apps.server.protection import access_logger
from limner.apps.server.settings import ServerSettings, read_keys
from limner.apps.server.worker import MULTIPROCESS_VARIABLE
from limner.errors import SettingsError
from limner.process import flush_streams

logger = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that wait to be accepted."""
INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C."""
START_SECONDS = 60
"""Time limit in seconds for a worker process to import its modules and respond to the supervisor, which then replaces
the process."""
HEAD_SECONDS = 10.0
"""Time limit of the head of a request; the time limit of the body is a setting."""

_Base: Any = AutoHTTPProtocol


def bind(settings: ServerSettings) -> socket.socket:
    """Open the socket that the service listens at; SettingsError if this is not possible, or as `read_keys`."""
    keys = read_keys(settings)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise SettingsError(
            f"{settings.host}:{settings.port}: cannot listen there ({error.strerror}); choose another --port or --host"
        ) from None
    bound.set_inheritable(True)
    bound.listen(BACKLOG)
    if not keys and not ip_address(bound.getsockname()[0]).is_loopback:
        logger.warning("%s: other machines can send requests without a key; name a --key-file", address_of(bound))
    return bound


def address_of(bound: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def load(settings: ServerSettings, open_folder: FolderOpener) -> Models | None:
    """Load the models, and check the indexes; None for several processes, which load their own models.

    The errors are described at `load_served_models` and `open_indexes`.
    """
    models = load_served_models(settings)
    open_indexes(settings, models, open_folder)
    return models if settings.workers == 1 else None


def serve(settings: ServerSettings, models: Models | None, bound: socket.socket, open_folder: FolderOpener) -> None:
    """Answer requests until SIGTERM or SIGINT; accepted requests are finished within `stop_timeout`.

    The process then ends without waiting for its threads, with status 0 after SIGTERM and 130 after SIGINT. `models`
    are the result of `load`; several processes load their own, and pickle `open_folder`.
    """
    options: dict[str, Any] = {
        "http": GuardedProtocol,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": settings.stop_timeout,
        "timeout_worker_healthcheck": START_SECONDS,
    }
    log_requests()
    if settings.workers == 1 and models is not None:
        if threading.current_thread() is threading.main_thread():
            for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, INTERRUPTED)):
                signal.signal(number, partial(_end, status))  # uvicorn repeats the signal when it has finished
        app = create_app(settings, open_folder, models)
        uvicorn.Server(uvicorn.Config(app, **options)).run(sockets=[bound])
        return
    create = partial(_app_of_process, settings, open_folder)
    with tempfile.TemporaryDirectory() as shared:  # where the processes add up their metrics
        os.environ[MULTIPROCESS_VARIABLE] = shared
        processes = _Processes(uvicorn.Config(create, factory=True, workers=settings.workers, **options), [bound])
        processes.run()
    sys.exit(processes.status)


class GuardedProtocol(_Base):  # type: ignore[misc]
    """The protocol of uvicorn with a time limit for the head of each request."""

    _guard: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401
        """Wait for the head of the first request."""
        super().connection_made(transport)
        self._start_guard()

    def data_received(self, data: bytes) -> None:
        """Read data, and wait for the rest of the head of a request that has begun."""
        super().data_received(data)
        if self._has_request():
            self._stop_guard()
        else:
            self._start_guard()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_guard()
        super().connection_lost(exc)

    def _has_request(self) -> bool:
        """Whether a request is complete up to its body, and not yet answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _start_guard(self) -> None:
        if self._guard is None:
            self._guard = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._close_if_idle)

    def _stop_guard(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None

    def _close_if_idle(self) -> None:
        self._guard = None
        if not self._has_request():
            self.transport.close()


class _Processes(Multiprocess):
    """The processes of uvicorn, with the exit status of the signal that ended them."""

    status = 0

    def handle_int(self) -> None:
        """End after Ctrl-C."""
        self.status = INTERRUPTED
        super().handle_int()


def _end(status: int, *_: object) -> NoReturn:
    """End the process at once: the end of the interpreter would wait for threads that are stuck in a computation."""
    logging.shutdown()
    os._exit(flush_streams(status, logger.error))


def log_requests() -> None:
    """Write the lines of the access log to standard error as they are, and errors of the server as well."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access_logger.handlers, access_logger.propagate = [handler], False
    access_logger.setLevel(logging.INFO)


def _app_of_process(settings: ServerSettings, open_folder: FolderOpener) -> FastAPI:
    """Create the application of one of several processes."""
    log_requests()
    return create_app(settings, open_folder)
