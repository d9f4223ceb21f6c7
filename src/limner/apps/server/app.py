"""The application: routes, limits, keys, errors and metrics in one place."""

from __future__ import annotations

import gc
import logging
import mimetypes
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

import limner
from limner.apps.server import embeddings_api, libretranslate_api, limner_api, ollama_api, openai_api
from limner.apps.server.errors import COMPATIBLE, Problem, error_response
from limner.apps.server.indexes import FolderOpener, open_indexes
from limner.apps.server.models import Models, load_served_models
from limner.apps.server.protection import Keys, ProtectedApp
from limner.apps.server.request_bodies import IGNORED
from limner.apps.server.service import ServiceEngine
from limner.apps.server.settings import ServerSettings, read_keys
from limner.errors import LimnerError

APIS = (limner_api, ollama_api, openai_api, embeddings_api, libretranslate_api)
"""Modules of all APIs, each with a router, which gets the engine by `Depends(get_engine)` of `limner_api`."""
SUMMARY = (
    "Captions and translations by image-conditioned language models. Besides the API of Limner, the service speaks the "
    "APIs of Ollama, OpenAI, LibreTranslate and Immich, as far as its models can do what they request."
)
PAGE = Path(__file__).parent / "static"
"""Folder of the files of the page."""
NO_FIELD = re.compile(r"body|[A-Z]\w*|(constrained-)?str|\w+\[.*\]")
"""Part of a place of pydantic that is no field: the body, or one of the types that a field may have."""
SHARED = ("limner.plots", "web")
"""Package and folder of the files that page and report share: style sheet, and heat maps of attention."""

logger = logging.getLogger(__name__)


def create_app(settings: ServerSettings, open_folder: FolderOpener, models: Models | None = None) -> FastAPI:
    """Create the application; the models are loaded when it starts, unless they are given."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        served = load_served_models(settings) if models is None else models
        engine = ServiceEngine(served, settings, open_indexes(settings, served, open_folder))
        app.state.engine = engine
        engine.start()
        gc.collect()
        gc.freeze()  # a collection of cyclic garbage stops all threads: it leaves out what stays, models and modules
        try:
            yield
        finally:
            await engine.stop()
            gc.unfreeze()

    app = FastAPI(title="Limner", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.settings, app.state.keys = settings, Keys(read_keys(settings))
    app.state.logged_fields = set()
    for api in APIS:
        app.include_router(api.router)
    _describe_api(app)
    _add_error_handlers(app)
    mount_page(app)
    app.add_middleware(ProtectedApp, settings=settings, keys=app.state.keys, engine=lambda: app.state.engine)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[IGNORED],
        )
    return app


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every error with the error object of the API of the path."""

    @app.exception_handler(LimnerError)
    async def limner_error(request: Request, error: LimnerError) -> JSONResponse:
        response = error_response(request.url.path, error)
        if response.status_code == 500:
            logger.error("%s %s: %s", request.method, request.url.path, error)
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        # A field of several types has an error for each type: the deepest error is of the best fitting type.
        first = max(error.errors(), key=lambda entry: (len(entry["loc"]), not entry["type"].endswith("_type")))
        place = ".".join(str(part) for part in first["loc"] if not NO_FIELD.fullmatch(str(part)))
        message = str(first["msg"]).removeprefix("Value error, ")
        if first["type"] == "missing":
            message += "; add it"
        if first["type"] == "extra_forbidden":
            message = "unknown field; check the name, /openapi.json lists the fields"
        if first["type"] == "model_attributes_type":
            message = "expected an object of JSON"
        if place or first["type"] != "value_error":  # an error of several fields names them
            message = f"{place or 'body'}: {message}"
        status = 400 if request.url.path.startswith(COMPATIBLE) else 422
        problem = Problem(status, "invalid_request_error", message, place or None)
        return error_response(request.url.path, problem)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
        remedy = "; /openapi.json lists the paths and their methods" if error.status_code in (404, 405) else ""
        return error_response(request.url.path, Problem(error.status_code, kind, f"{error.detail}{remedy}"))


def _describe_api(app: FastAPI) -> None:
    """Add the common parts of all routes to the OpenAPI description, which is made at the first request.

    Status 422, which only the API of Limner uses for an invalid body, is left out of the other APIs.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        description = generate()
        description["info"] |= {"version": limner.__version__, "description": SUMMARY}
        scheme = {"type": "http", "scheme": "bearer", "description": "API key, where the service requires one"}
        description.setdefault("components", {})["securitySchemes"] = {"key": scheme}
        for path, operations in description["paths"].items():
            for operation in operations.values():
                operation["security"] = [{"key": []}, {}]
                if path.startswith(COMPATIBLE):
                    operation["responses"].pop("422", None)
        return description

    app.openapi = openapi  # type: ignore[method-assign]


class PageFiles(StaticFiles):
    """Files that browsers cache and validate each time, so that a new version of Limner is effective at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the file, or 304 if the browser has this version."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


def mount_page(app: FastAPI) -> None:
    """Serve the page at `/` and its files below `/static`."""
    mimetypes.add_type("text/javascript", ".js")  # some Windows machines say text/plain, which browsers refuse to run
    files = PageFiles(directory=PAGE, packages=[SHARED])

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    app.add_route("/", index, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount("/static", files, name="page")
