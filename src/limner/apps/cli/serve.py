"""The command that answers requests of other programs: serve."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from limner.apps.cli.app import USE
from limner.apps.cli.options import HubOptions, command, without_none
from limner.apps.cli.terminal import activity, echo
from limner.apps.server.settings import ServerSettings
from limner.errors import MissingExtraError
from limner.storage.json_text import to_json

PACKAGES = ("aiohttp", "fastapi", "prometheus_client", "sse_starlette", "starlette", "uvicorn")
"""Packages of the extra `serve`."""


@command(USE)
def serve(
    *,
    settings: Annotated[dict[str, Any], ServerSettings],
    hub: HubOptions,
    backbone: str | None = None,
    device: str = "cpu",
    as_json: bool = False,
) -> None:
    """Answer requests of other programs for captions, translations, scores and search, and serve a page.

    Prints its address when it is ready, such as `listening on http://127.0.0.1:8000`, and runs until Ctrl-C or SIGTERM.

    Example: `limner serve --model runs/mrnn --port 8000`

    Options:
        models (--model RUN): Trained model to serve; default: the built-in captioner and translator. Repeatable.
        aliases (--alias NAME=MODEL): Other name of a served model, such as qwen2.5vl:3b=limner, for programs with fixed
            names; MODEL may have a language: limner:de. Repeatable.
        indexes (--index FOLDER): Folder indexed by 'limner index', or collection, to search. Repeatable.
        host: Address to listen at; default: 127.0.0.1, for this machine only.
        port: Port to listen at; 0 for a free one; default: 8000.
        workers: Processes; each loads the models, into its own memory; default: 1.
        key_file (FILE): File of API keys, one a line; the variable LIMNER_API_KEYS has keys as well; default: no key is
            needed.
        allowed_hosts (--allow-host NAME): Name of this machine in the Host header, besides localhost. Repeatable.
        cors_origins (--cors-origin ORIGIN): Origin of pages of other hosts that may send requests; default: none.
            Repeatable.
        image_hosts (--image-host HOST): Host, or private address, that images are fetched from by URL; default: none.
            Repeatable.
        max_body: Largest body of a request in bytes; default: 20 MiB.
        max_queue: Requests that are accepted and not answered yet; others get status 429; default: 256.
        timeout: Time limit of a request in seconds; default: 60.
        stop_timeout: Time in seconds for accepted requests when the service stops; default: 10.
        withheld (TEXT): Text in place of a withheld caption for clients of Ollama and OpenAI, such as 'a photo';
            default: no text.
        strict: Refuse fields of requests of other programs that have no effect on the models; default: they are
            accepted, and named in the header Limner-Ignored and once in the log.
    """
    chosen = ServerSettings.parse({**settings, **without_none(backbone=backbone), "hub": hub, "device": device})
    try:
        from limner.apps.photos.index import FolderIndex
        from limner.apps.server.run import address_of, bind, load
        from limner.apps.server.run import serve as answer
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in PACKAGES:
            raise MissingExtraError("limner serve", "serve") from None
        raise
    bound = bind(chosen)
    with activity("loading the models"):
        models = load(chosen, FolderIndex.open)
    address = address_of(bound)
    echo(to_json({"listening": address}) if as_json else f"listening on {address}")
    sys.stdout.flush()
    answer(chosen, models, bound, FolderIndex.open)
