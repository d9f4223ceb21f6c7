"""Bodies that are not sent as application/json: routes that read them as if they were."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.types import Message

from limner.server.errors import MediaTypeError

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
                return await handler(_as_json(request, json.dumps(single).encode()))
            if kind != JSON:
                raise MediaTypeError(f"expected {JSON} or a form, got '{kind[:60]}'")
            return await handler(_as_json(request))

        return handle


def reads_forms(model: type[BaseModel]) -> dict[str, Any]:
    """Return the part of the OpenAPI description which says that a form has the fields of the JSON."""
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
