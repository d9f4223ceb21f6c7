"""The OpenAPI description of the service, as /openapi.json gives it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

import limner
from limner.server.errors import COMPATIBLE

SUMMARY = (
    "Captions and translations by image-conditioned language models. Besides the API of Limner, the service speaks "
    "those of Ollama, OpenAI and LibreTranslate, as far as its models can do what they request."
)


def describe_api(app: FastAPI) -> None:
    """Give an application its OpenAPI description, which is made at the first request."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(generate())
        assert app.openapi_schema is not None, "generated above"
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(description: dict[str, Any]) -> None:
    """Add what all routes share, and leave out the status that only the own API answers an invalid body with."""
    description["info"] |= {"version": limner.__version__, "description": SUMMARY}
    components = description.setdefault("components", {})
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "API key, where the service requires one"}
    }
    for path, operations in description["paths"].items():
        for operation in operations.values():
            operation["security"] = [{"key": []}, {}]
            if path.startswith(COMPATIBLE):
                operation["responses"].pop("422", None)
