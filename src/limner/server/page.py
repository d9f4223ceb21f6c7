"""The page at `/`: static files of the package, which need no network but the service."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

PAGE = Path(__file__).parent / "static"
"""Files of the page."""
SHARED = ("limner", "templates/shared")
"""Package and folder of the files that the report has as well: the look, and the heat maps of attention."""


class PageFiles(StaticFiles):
    """Files that browsers keep and check each time, so that a new version of Limner is seen at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the file, or 304 for one that the browser has."""
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
