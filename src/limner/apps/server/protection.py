"""Checks of every request before its route: host, key, size and time of the body, and disconnection of the client.

A single middleware reads the connection: it receives the body within its limits, passes it to the application, and
cancels the application when the client leaves.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from limner.apps.server.errors import InvalidRequestError, QueueFullError, ServerError, TooLargeError, error_response
from limner.apps.server.request_bodies import FORM, LARGE, MULTIPART, converted, form_fields
from limner.apps.server.service import ServiceEngine
from limner.apps.server.settings import BODIES_AT_ONCE, ServerSettings
from limner.errors import LimnerError
from limner.files.structured import parse_json
from limner.storage.json_text import to_json

LOCAL = ("localhost", "ip6-localhost", "")
OPEN_PATHS = ("/", "/health", "/favicon.ico", "/ping", "/languages", "/frontend/settings")
"""Paths that need no key: the page, which asks for the key, the state of the service, and paths that LibreTranslate
clients read before they have a key."""
OPEN_FOLDER = "/static/"
"""Beginning of the paths of the files of the page."""
KEY_IN_BODY = ("/translate", "/detect")
"""Paths of LibreTranslate, whose clients send the key in the body."""
CLIENT_CLOSED = 499
"""Status in the log of a request whose client left."""
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "media-src 'self' blob:; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
}
"""Security headers of all responses."""
logger = logging.getLogger(__name__)
access_logger = logging.getLogger("limner.access")
EngineOfApp = Callable[[], ServiceEngine]


class Keys:
    """API keys, compared in constant time."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]
        self.required = bool(keys)
        """Whether requests need a key."""

    def accepts(self, key: str | None) -> bool:
        """Whether a key is accepted."""
        sent = (key or "").encode("utf-8", "surrogateescape")
        equal = [hmac.compare_digest(known, sent) for known in self._keys]  # all: the time does not tell which
        return any(equal)


@dataclass
class _Response:
    """Status and size of a response, for the log and the metrics."""

    status: int = 0
    bytes: int = 0
    complete: bool = False
    started: float = field(default_factory=time.perf_counter)


class ProtectedApp:
    """Middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, keys: Keys, engine: EngineOfApp) -> None:
        """Create the middleware; `engine` returns the engine once the application has started."""
        self.app, self.settings, self.keys, self.engine = app, settings, keys, engine
        self._buffered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        response = _Response()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                response.status = message["status"]
                present = {name for name, _ in message["headers"]}
                more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in present]
                message = {**message, "headers": [*message["headers"], *more]}
            else:
                response.bytes += len(message.get("body", b""))
                response.complete = not message.get("more_body", False)
            try:
                async with asyncio.timeout(self.settings.timeout):
                    await send(message)
            except TimeoutError:  # the client does not read
                response.status = CLIENT_CLOSED
                raise

        try:
            await self._respond(scope, receive, counted, response)
        finally:
            self._record(scope, response)

    async def _respond(self, scope: Scope, receive: Receive, send: Send, response: _Response) -> None:
        held = 0
        try:
            self._require_host(scope)
            if scope["path"] not in KEY_IN_BODY:
                self._require_key(scope)
            body = await self._body(scope, receive)
            if body is None:
                response.status = CLIENT_CLOSED
                return
            if scope["path"] in KEY_IN_BODY:
                self._require_key(scope, await _key_in(scope, body) if self.keys.required else None)
            held = len(body)
            self._buffered += held
            await self._run(scope, receive, send, body, response)
        except (LimnerError, asyncio.CancelledError) as error:
            if response.status:  # it has begun: the connection is closed before its end
                return
            stopped = ServerError("the service stopped before the answer was complete; repeat the request", status=503)
            reason = error if isinstance(error, LimnerError) else stopped
            await error_response(scope["path"], reason, Connection="close")(scope, receive, send)
        finally:
            self._buffered -= held

    def _require_host(self, scope: Scope) -> None:
        """Refuse names of other hosts in the header Host, so that pages of other sites cannot reach a local service."""
        host = Headers(scope=scope).get("host", "").lower()
        name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
        if name in LOCAL or name in self.settings.allowed_hosts:
            return
        try:
            ipaddress.ip_address(name)
        except ValueError:
            raise ServerError(
                f"host '{name[:100]}': not the name of this service; start limner serve with --allow-host {name[:100]}",
                status=421,
            ) from None

    def _require_key(self, scope: Scope, key_in_body: str | None = None) -> None:
        path = scope["path"]
        if not self.keys.required or path in OPEN_PATHS or path.startswith(OPEN_FOLDER) or scope["method"] == "OPTIONS":
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        if not self.keys.accepts(key.strip() if scheme.lower() == "bearer" else key_in_body):
            raise ServerError("no API key, or a wrong one; send the header 'Authorization: Bearer KEY'", status=401)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Receive the body within its limits of size and time; None if the client leaves."""
        limit, engine = self.settings.max_body, self.engine()
        declared = Headers(scope=scope).get("content-length", "0")
        if not (declared.isascii() and declared.isdigit()):
            raise InvalidRequestError(f"Content-Length '{declared[:20]}': expected a number")
        if int(declared[:20]) > limit:
            raise TooLargeError(
                f"body of {int(declared[:20]):,} bytes: expected at most {limit:,}; send a smaller image"
            )
        if scope["method"] == "POST" and engine.active >= self.settings.max_queue:
            raise engine.queue_full()
        size, chunks = 0, list[bytes]()
        try:
            async with asyncio.timeout(self.settings.body_timeout):
                while (message := await receive())["type"] != "http.disconnect":
                    chunk = message.get("body", b"")
                    self._buffered += len(chunk)
                    size += len(chunk)
                    chunks.append(chunk)
                    if size > limit:
                        raise TooLargeError(f"body of more than {limit:,} bytes; send a smaller image")
                    if self._buffered > BODIES_AT_ONCE * limit:
                        raise QueueFullError("too many large bodies at once; repeat the request later", 1.0)
                    if not message.get("more_body", False):
                        return b"".join(chunks)
            return None
        except TimeoutError:
            seconds = f"{self.settings.body_timeout:g}"
            late = f"the body was not received within {seconds} seconds; send it faster"
            raise ServerError(late, status=408) from None
        finally:
            self._buffered -= size

    async def _run(self, scope: Scope, receive: Receive, send: Send, body: bytes, response: _Response) -> None:
        """Run the application on a received body; it is cancelled when the client leaves."""
        left, position = asyncio.Event(), 0
        is_form = Headers(scope=scope).get("content-type", "").lower().startswith(MULTIPART)
        step = LARGE if is_form else max(1, len(body))

        async def replay() -> Message:
            nonlocal position
            if position < len(body) or not position:
                if position:
                    await asyncio.sleep(0)  # other requests between two parts of a form
                part, position = body[position : position + step], position + step
                return {"type": "http.request", "body": part, "more_body": position < len(body)}
            await left.wait()
            return {"type": "http.disconnect"}

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()

        running = asyncio.ensure_future(self.app(scope, replay, send))
        watching = asyncio.ensure_future(watch())
        try:
            await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and not response.complete:
                running.cancel()
            await running
        except asyncio.CancelledError:
            if not left.is_set():
                raise
            response.status = CLIENT_CLOSED
        except Exception as error:
            if response.status != CLIENT_CLOSED:
                logger.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
            if not response.status:
                await error_response(scope["path"], error)(scope, receive, send)
        finally:
            watching.cancel()
            running.cancel()

    def _record(self, scope: Scope, response: _Response) -> None:
        """Write the line of the log, and count the request."""
        seconds = time.perf_counter() - response.started
        route = getattr(scope.get("route"), "path", "other")  # not the path, which clients choose
        metrics = self.engine().metrics
        method = scope["method"] if scope["method"] in METHODS else "other"
        metrics.requests.labels(method, route, response.status).inc()
        metrics.seconds.labels(route).observe(seconds)
        if self.settings.access_log:
            line = {"time": round(time.time(), 3), "client": (scope.get("client") or ("",))[0]}
            line |= {"method": scope["method"][:20], "path": scope["path"][:200], "status": response.status}
            access_logger.info(to_json(line | {"seconds": round(seconds, 4), "bytes": response.bytes}))


METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH")
"""Methods that are counted by name."""


async def _key_in(scope: Scope, body: bytes) -> str | None:
    """Return the field `api_key` of a body of JSON or of a form; InvalidRequestError for a form that has files."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    fields: Any = None
    if Headers(scope=scope).get("content-type", "").lower().startswith((MULTIPART, FORM)):
        fields = {name: values[0] for name, values in (await form_fields(Request(scope, receive))).items()}
    else:
        with suppress(ValueError):
            fields = await converted(parse_json, body)
    key = fields.get("api_key") if isinstance(fields, dict) else None
    return key if isinstance(key, str) else None
