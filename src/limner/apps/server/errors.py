"""Errors of the service, and the error object of each API.

Raise a `LimnerError` or one of the classes below anywhere in a route: the application answers with the right status and
with the error object of the API that the path belongs to (`error_body`). No traceback is ever sent.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from limner.errors import ImageTooLargeError, LimnerError, MediaError, MissingExtraError, ResourceError, SettingsError

STRING_ERRORS = ("/api/", "/translate", "/languages", "/detect", "/frontend/", "/suggest")
"""Beginnings of the paths whose error object is `{"error": "message"}`: Ollama and LibreTranslate."""
COMPATIBLE = (*STRING_ERRORS, "/v1/chat/")
"""Beginnings of the paths of other programs' interfaces, which answer an invalid body with 400 and not with 422."""


class ServerError(LimnerError):
    """An error with a status of HTTP."""

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        """Name the problem.

        Args:
            message: what was expected, what was found, what to do.
            param: field of the request that is wrong.
        """
        super().__init__(message)
        self.param = param


class InvalidRequestError(ServerError):
    """A field of the request is missing or wrong."""


class NotSupportedError(ServerError):
    """The model cannot do what the request needs, such as JSON or calls of tools."""

    kind = "not_supported_error"


class UnauthorisedError(ServerError):
    """No API key, or a wrong one."""

    status, kind = 401, "authentication_error"


class HostRefusedError(ServerError):
    """The Host header names a host that the service does not answer for."""

    status, kind = 421, "host_error"


class NotFoundError(ServerError):
    """There is no such model, index, file or path."""

    status, kind = 404, "not_found_error"


class BodyTimeoutError(ServerError):
    """The body was not received in time."""

    status, kind = 408, "timeout_error"


class TooLargeError(ServerError):
    """The body or the image is larger than allowed."""

    status, kind = 413, "too_large_error"


class MediaTypeError(ServerError):
    """The body has a type that the path does not read."""

    status, kind = 415, "media_type_error"


class QueueFullError(ServerError):
    """More requests wait than are accepted; repeat after `retry_after` seconds."""

    status, kind = 429, "overloaded_error"

    def __init__(self, message: str, retry_after: float) -> None:
        """Return when to repeat the request."""
        super().__init__(message)
        self.retry_after = retry_after


class StoppingError(ServerError):
    """The service is stopping: it finishes accepted requests and accepts no new ones."""

    status, kind = 503, "unavailable_error"


class RequestTimeoutError(ServerError):
    """The request was not answered within the time limit."""

    status, kind = 504, "timeout_error"


class Problem(NamedTuple):
    """Content of an error response."""

    status: int
    kind: str
    message: str
    param: str | None = None
    retry_after: float | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""
        if self.status == UnauthorisedError.status:
            return {"WWW-Authenticate": "Bearer"}
        return {} if self.retry_after is None else {"Retry-After": str(max(1, math.ceil(self.retry_after)))}


def problem_of(error: BaseException) -> Problem:
    """Return what is answered for an error; an unexpected one is answered without its text."""
    if isinstance(error, ServerError):
        return Problem(error.status, error.kind, str(error), error.param, getattr(error, "retry_after", None))
    if isinstance(error, ImageTooLargeError):
        return Problem(413, "too_large_error", str(error), "image")
    if isinstance(error, MediaError):
        return Problem(400, "invalid_image_error", str(error), "image")
    if isinstance(error, SettingsError):
        return Problem(400, "invalid_request_error", str(error), _first_key(str(error)))
    if isinstance(error, ResourceError):
        return Problem(413, "too_large_error", str(error))
    if isinstance(error, MissingExtraError):
        return Problem(501, "not_supported_error", str(error))
    return Problem(500, "server_error", "the service failed to answer; its log names the reason")


def _first_key(message: str) -> str | None:
    """Return the field that a message about settings begins with, such as 'decoding: beam_size: …'."""
    head = message.removeprefix("decoding: ").partition(":")[0]
    return head if head.replace(".", "_").isidentifier() else None


def error_body(path: str, problem: Problem) -> dict[str, Any]:
    """Return the error object of the API that a path belongs to.

    The own API and OpenAI's share `{"error": {"message", "type", "param", "code"}}`.
    """
    if path.startswith(STRING_ERRORS):
        return {"error": problem.message}
    return {
        "error": {
            "message": problem.message,
            "type": problem.kind,
            "param": problem.param,
            "code": _code(problem),
        }
    }


def _code(problem: Problem) -> str | None:
    """Return the code that clients of OpenAI know an error by."""
    if problem.status == UnauthorisedError.status:
        return "invalid_api_key"
    if problem.status == NotFoundError.status:
        return "model_not_found" if problem.param == "model" else problem.kind
    return None
