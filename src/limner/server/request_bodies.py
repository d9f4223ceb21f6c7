"""Bodies that are not sent as application/json: routes that read them as if they were."""

from __future__ import annotations

import base64
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.types import Message

from limner.server.errors import MediaTypeError
from limner.storage.json_text import to_json

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
JSON = "application/json"
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class JSONRoute(APIRoute):
    """A route whose body is JSON whatever its Content-Type, as curl without a header sends it to Ollama."""

    def get_route_handler(self) -> Handler:
        """Return the handler of requests."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_as_json(request))

        return handle


class FormRoute(APIRoute):
    """A route that reads the fields of forms as those of JSON."""

    def get_route_handler(self) -> Handler:
        """Return the handler of requests."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
            if request.method != "POST":
                return await handler(request)
            if kind in (FORM, MULTIPART):
                async with request.form(max_files=0) as form:
                    fields = {key: form.getlist(key) for key in form}
                single = {key: values[0] if len(values) == 1 else values for key, values in fields.items()}
                return await handler(_as_json(request, to_json(single).encode()))
            if kind != JSON:
                raise MediaTypeError(f"expected {JSON} or a form, got '{kind[:60]}'")
            return await handler(_as_json(request))

        return handle


class UploadRoute(APIRoute):
    """A route that reads the fields of a form with an uploaded image as those of JSON, with the image in base64."""

    def get_route_handler(self) -> Handler:
        """Return the handler of requests."""
        handler = super().get_route_handler()
        lists = _list_fields(self)

        async def handle(request: Request) -> Response:
            kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
            if request.method != "POST" or kind == JSON:
                return await handler(request)
            if kind != MULTIPART:
                raise MediaTypeError(f"expected {JSON} or {MULTIPART}, got '{kind[:60]}'")
            fields: dict[str, Any] = {}
            async with request.form(max_files=1, max_fields=100) as form:
                for key in form:
                    values = [await _field(value) for value in form.getlist(key)]
                    fields[key] = values if key in lists else values[-1]
            return await handler(_as_json(request, to_json(fields).encode()))

        return handle


async def _field(value: str | UploadFile) -> str:
    """Return the text of a field, or an uploaded file in base64."""
    return value if isinstance(value, str) else base64.b64encode(await value.read()).decode()


def _list_fields(route: APIRoute) -> set[str]:
    """Return the fields of the body of a route that are lists."""
    model = route.body_field.field_info.annotation if route.body_field is not None else None
    fields = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
    return {name for name, one in fields.items() if "list" in str(one.annotation)}


def reads_uploads(model: type[BaseModel]) -> dict[str, Any]:
    """Return the part of the OpenAPI description by which a form has the fields of the JSON."""
    return {"requestBody": {"content": {MULTIPART: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}}}


def reads_forms(model: type[BaseModel]) -> dict[str, Any]:
    """Return the part of the OpenAPI description by which a form has the fields of the JSON."""
    return {"requestBody": {"content": {FORM: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}}}


def _as_json(request: Request, content: bytes | None = None) -> Request:
    """Return a request with the Content-Type of JSON, and with another body where one is given."""
    others = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
    scope = {**request.scope, "headers": [*others, (b"content-type", JSON.encode())]}
    if content is None:
        return Request(scope, request.receive)

    async def receive() -> Message:
        return {"type": "http.request", "body": content, "more_body": False}

    return Request(scope, receive)
