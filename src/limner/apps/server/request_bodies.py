"""Bodies of requests: JSON and forms, whose fields are read as fields of JSON."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, get_args

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from limner.apps.server.errors import InvalidRequestError, ServerError
from limner.files.structured import HALF_PAIR, StructureError, half_pair_in, one_line, parse_json

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
JSON = "application/json"
MAX_FIELDS = 1_000
"""Number of fields of an object, above which the names of all would be checked for seconds."""
MAX_IGNORED = 40
"""Number of fields without effect that a response names."""
MAX_LOGGED = 1_000
"""Number of fields without effect that are logged by one process."""
_FIELD = re.compile(r"[A-Za-z0-9_.-]{1,60}")
LARGE = 1 << 18
"""Bytes from which a text is converted in a thread, as it would hold up the event loop."""
IGNORED = "Limner-Ignored"
"""Header with the fields of a request that had no effect."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Content = TypeVar("Content", str, bytes)
Result = TypeVar("Result")
logger = logging.getLogger(__name__)


class LenientBody(BaseModel):
    """Base class of the requests of other programs: fields that are not declared have no effect."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


class JSONRoute(APIRoute):
    """A route whose body is JSON.

    Every body is read and checked here; names of fields without effect are collected in `request.state.ignored`, also
    by routes.
    """

    any_type = False
    """Whether the body is JSON whatever its Content-Type."""
    forms: tuple[str, ...] = ()
    """Media types of forms whose fields are read as fields of JSON."""
    max_files = 0
    """Number of files of a form, which are read as base64."""

    def get_route_handler(self) -> Handler:
        """Return the handler of requests."""
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler
        model: type[BaseModel] = self.body_field.field_info.annotation  # type: ignore[assignment]

        async def handle(request: Request) -> Response:
            value = await self._read(request, model)
            ignored = request.state.ignored = ignored_fields(value, model)
            if ignored and request.app.state.settings.strict:
                remedy = "leave it out, or start limner serve without --strict"
                raise InvalidRequestError(
                    f"{ignored[0]}: without effect on the models of this service; {remedy}", ignored[0]
                )
            response = await handler(_ReadRequest(request, value))
            if ignored:
                response.headers[IGNORED] = ", ".join(ignored)
                logged: set[str] = request.app.state.logged_fields
                new = [name for name in ignored if name not in logged]
                if new and len(logged) < MAX_LOGGED:
                    logged.update(new)
                    fields = ", ".join(new)
                    logger.warning("%s: without effect on the models of this service: %s", request.url.path, fields)
            return response

        return handle

    async def _read(self, request: Request, model: type[BaseModel]) -> Any:  # noqa: ANN401  (any JSON value)
        """Return the value of the body, or the fields of a form; None without one, ServerError for an invalid one."""
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind in self.forms:
            fields = await form_fields(request, self.max_files)
            if not self.max_files:
                return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}
            lists = {name for name, field in model.model_fields.items() if "list" in str(field.annotation)}
            return {name: values if name in lists else values[-1] for name, values in fields.items()}
        if kind != JSON and not self.any_type:
            raise ServerError(f"expected {' or '.join((JSON, *self.forms))}, got '{kind[:60]}'", status=415)
        body = await request.body()
        try:
            return await converted(parse_json, body) if body else None
        except StructureError as error:
            if error.place is not None:
                raise _half_pair(error.place) from None
            raise InvalidRequestError(f"{error}; correct the body") from None


class AnyTypeRoute(JSONRoute):
    """A route whose body is JSON whatever its Content-Type, as curl without a header sends it to Ollama."""

    any_type = True


class FormRoute(JSONRoute):
    """A route that reads the fields of forms as fields of JSON."""

    forms = FORM, MULTIPART


class UploadRoute(JSONRoute):
    """A route that reads the fields of a form with an uploaded image as fields of JSON, with the image in base64."""

    forms, max_files = (MULTIPART,), 1


async def form_fields(request: Request, max_files: int = 0) -> dict[str, list[str]]:
    """Return the fields of a form, files in base64; InvalidRequestError for a damaged form, or one with too many."""
    fields: dict[str, list[str]] = {}
    try:
        async with request.form(max_files=max_files, max_fields=100 if max_files else MAX_FIELDS) as form:
            for name, value in form.multi_items():
                if (place := half_pair_in({name: value if isinstance(value, str) else ""})) is not None:
                    raise _half_pair(place)
                if not isinstance(value, str):
                    value = (await converted(base64.b64encode, await value.read())).decode()
                fields.setdefault(name, []).append(value)
    except (HTTPException, MultiPartException, ValueError) as error:  # ValueError: a charset that cannot be decoded
        reason = getattr(error, "detail", None) or getattr(error, "message", None) or error
        remedy = "send fields of text, " + ("one image" if max_files else "without files")
        raise InvalidRequestError(f"the form cannot be read ({one_line(str(reason))}); {remedy}") from None
    return fields


_CONVERTER = ThreadPoolExecutor(1, "convert bodies")
"""Thread of large bodies, whose values take several times their memory."""


async def converted(function: Callable[[Content], Result], content: Content) -> Result:
    """Call a function with the content of a request; large contents wait for one thread."""
    if len(content) <= LARGE:
        return function(content)
    return await asyncio.get_running_loop().run_in_executor(_CONVERTER, function, content)


def _half_pair(place: str) -> InvalidRequestError:
    return InvalidRequestError(f"{place[:200] or 'body'}: {HALF_PAIR}; send whole characters", place[:200] or None)


def ignored_fields(value: object, model: type[BaseModel], place: str = "") -> list[str]:
    """Return the undeclared fields of a lenient request whose value is not null, false, 0 or empty.

    InvalidRequestError for an object with more than `MAX_FIELDS` fields, of every request.
    """
    if not isinstance(value, dict):
        return []
    if len(value) > MAX_FIELDS:
        where, got = place.removesuffix("."), f"got {len(value):,}; leave out unknown fields"
        raise InvalidRequestError(f"{where or 'body'}: expected at most {MAX_FIELDS:,} fields, {got}", where or None)
    if not issubclass(model, LenientBody):
        return []
    names: list[str] = []
    for name, content in value.items():
        field = model.model_fields.get(name)
        if field is None:
            names += [f"{place}{name}"] if content and _FIELD.fullmatch(name) else []
            continue
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, LenientBody):
                names += ignored_fields(content, kind, f"{place}{name}.")
    return names[:MAX_IGNORED]


def reads(media_type: str, model: type[BaseModel]) -> dict[str, Any]:
    """Return the part of the OpenAPI description that gives a form the fields of the JSON."""
    return {"requestBody": {"content": {media_type: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}}}


class _ReadRequest(Request):
    """A request whose body has been read; FastAPI takes the value from `json`, if `body` has bytes."""

    def __init__(self, request: Request, value: object) -> None:
        headers = [header for header in request.scope["headers"] if header[0] != b"content-type"]
        super().__init__({**request.scope, "headers": [*headers, (b"content-type", JSON.encode())]}, request.receive)
        self._value = value

    async def body(self) -> bytes:
        return b"" if self._value is None else b"read"

    async def json(self) -> Any:  # noqa: ANN401  (any JSON value)
        return self._value
