"""Errors of the service, and the error object of each API.

Raise a `LimnerError` or one of the classes below anywhere in a route: the application answers with the right status and
with the error object of the API that the path belongs to (`error_body`). No traceback is ever sent.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fastapi.responses import JSONResponse

from limner.errors import ImageTooLargeError, LimnerError, MediaError, MissingExtraError, ResourceError, SettingsError

STRING_ERRORS = ("/api/", "/translate", "/languages", "/detect", "/frontend/", "/suggest")
"""Beginnings of the paths whose error object is `{"error": "message"}`: Ollama and LibreTranslate."""
COMPATIBLE = (*STRING_ERRORS, "/v1/chat/", "/v1/responses", "/v1/embeddings", "/predict")
"""Beginnings of the paths of other programs' interfaces, which answer an invalid body with 400 and not with 422."""


KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "too_large_error",
    415: "media_type_error",
    421: "host_error",
    429: "overloaded_error",
    503: "unavailable_error",
    504: "timeout_error",
}
"""Type of the error object of each status; other statuses have the type of an invalid request."""


class ServerError(LimnerError):
    """An error with a status of HTTP: 401 for a wrong key, 408 for a slow body, 421 for another host, and so on."""

    status = 400

    def __init__(self, message: str, param: str | None = None, *, status: int | None = None) -> None:
        """Create the error with its message and the wrong field of the request; `status` overrides the class."""
        super().__init__(message)
        self.param, self.status = param, status or self.status


class InvalidRequestError(ServerError):
    """A field of the request is missing or wrong."""


class NotSupportedError(ServerError):
    """The model lacks a capability that the request needs, such as JSON or calls of tools."""


class NotFoundError(ServerError):
    """The model, index, file or path does not exist."""

    status = 404


class TooLargeError(ServerError):
    """The body or the image is larger than allowed."""

    status = 413


class QueueFullError(ServerError):
    """More requests wait than are accepted; repeat after `retry_after` seconds."""

    status = 429

    def __init__(self, message: str, retry_after: float) -> None:
        """Create the error with its message and the seconds after which to repeat the request."""
        super().__init__(message)
        self.retry_after = retry_after


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
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {} if self.retry_after is None else {"Retry-After": str(max(1, math.ceil(self.retry_after)))}


def problem_of(error: BaseException) -> Problem:
    """Return the problem that an error is answered with; unexpected errors are answered without their text."""
    if isinstance(error, ServerError):
        supported = not isinstance(error, NotSupportedError)
        kind = KINDS.get(error.status, "invalid_request_error") if supported else "not_supported_error"
        return Problem(error.status, kind, str(error), error.param, getattr(error, "retry_after", None))
    if isinstance(error, ImageTooLargeError):
        return Problem(413, "too_large_error", str(error), "image")
    if isinstance(error, MediaError):
        return Problem(400, "invalid_image_error", str(error), "image")
    if isinstance(error, SettingsError):
        field = str(error).removeprefix("decoding: ").partition(":")[0]  # of 'decoding: beam_size: …'
        param = field if field.replace(".", "_").isidentifier() else None
        return Problem(400, "invalid_request_error", str(error), param)
    if isinstance(error, ResourceError):
        return Problem(413, "too_large_error", str(error))
    if isinstance(error, MissingExtraError):
        return Problem(501, "not_supported_error", str(error))
    return Problem(500, "server_error", "the service failed to answer; its log names the reason")


def error_response(path: str, error: BaseException | Problem, **headers: str) -> JSONResponse:
    """Return the response to an error, with the error object of the API that a path belongs to."""
    problem = error if isinstance(error, Problem) else problem_of(error)
    return JSONResponse(error_body(path, problem), problem.status, {**problem.headers, **headers})


def error_body(path: str, error: BaseException | Problem) -> dict[str, Any]:
    """Return the error object of the API that a path belongs to.

    The API of Limner and OpenAI's share `{"error": {"message", "type", "param", "code"}}`.
    """
    problem = error if isinstance(error, Problem) else problem_of(error)
    if path.startswith(STRING_ERRORS):
        return {"error": problem.message}
    code = None  # that clients of OpenAI know an error by
    if problem.status == 401:
        code = "invalid_api_key"
    if problem.status == 404:
        code = "model_not_found" if problem.param == "model" else problem.kind
    return {"error": {"message": problem.message, "type": problem.kind, "param": problem.param, "code": code}}
