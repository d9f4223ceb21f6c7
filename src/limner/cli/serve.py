"""The command that answers requests of other programs: serve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limner.bounds import Bytes, Port, Processes, RequestCount, TimeLimit
from limner.cli.app import USE, app
from limner.cli.options import BackboneOption, DeviceOption, JsonOption, Number, given
from limner.cli.terminal import activity, echo
from limner.errors import MissingExtraError

if TYPE_CHECKING:
    from limner.server.settings import ServerSettings

PACKAGES = ("aiohttp", "fastapi", "prometheus_client", "sse_starlette", "starlette", "uvicorn")
"""Packages of the extra `serve`."""

ServedModelsOption = Annotated[
    list[Path] | None,
    typer.Option("--model", metavar="RUN", help="Trained model to serve; default: the built-in captioner. Repeatable."),
]
IndexOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--index", metavar="FOLDER", help="Folder indexed by 'limner index', or collection, to search. Repeatable."
    ),
]
HostOption = Annotated[
    str | None, typer.Option("--host", help="Address to listen at; default: 127.0.0.1, for this machine only.")
]
PortOption = Annotated[
    int | None, typer.Option("--port", help="Port to listen at; 0 for a free one; default: 8000.", parser=Number(Port))
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Processes; each loads the models, into its own memory; default: 1.",
        parser=Number(Processes),
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help="File of API keys, one a line; the variable LIMNER_API_KEYS has keys as well; default: no key is needed.",
    ),
]
AllowedHostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host", metavar="NAME", help="Name of this machine in the Host header, besides localhost. Repeatable."
    ),
]
CorsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin",
        metavar="ORIGIN",
        help="Origin of pages of other hosts that may send requests; default: none. Repeatable.",
    ),
]
ImageHostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--image-host",
        metavar="HOST",
        help="Host, or private address, that images are fetched from by URL; default: none. Repeatable.",
    ),
]
MaxBodyOption = Annotated[
    int | None,
    typer.Option("--max-body", help="Largest body of a request in bytes; default: 20 MiB.", parser=Number(Bytes)),
]
MaxQueueOption = Annotated[
    int | None,
    typer.Option(
        "--max-queue",
        help="Requests that are accepted and not answered yet; others get status 429; default: 256.",
        parser=Number(RequestCount),
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", help="Time limit of a request in seconds; default: 60.", parser=Number(TimeLimit)),
]
StopTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--stop-timeout",
        help="Time in seconds for accepted requests when the service stops; default: 10.",
        parser=Number(TimeLimit),
    ),
]
AnyPromptOption = Annotated[
    bool,
    typer.Option(
        "--any-prompt",
        help="Ignore the text of prompts that a captioning model cannot follow; default: such prompts are refused.",
    ),
]


@app.command(rich_help_panel=USE)
def serve(
    model: ServedModelsOption = None,
    index: IndexOption = None,
    host: HostOption = None,
    port: PortOption = None,
    workers: WorkersOption = None,
    key_file: KeyFileOption = None,
    allow_host: AllowedHostOption = None,
    cors_origin: CorsOption = None,
    image_host: ImageHostOption = None,
    max_body: MaxBodyOption = None,
    max_queue: MaxQueueOption = None,
    timeout: TimeoutOption = None,
    stop_timeout: StopTimeoutOption = None,
    any_prompt: AnyPromptOption = False,
    backbone: BackboneOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Answer requests of other programs for captions, translations, scores and search, and serve a page.

    Prints its address when it is ready, such as `listening on http://127.0.0.1:8000`, and runs until Ctrl-C or SIGTERM.

    Example: `limner serve --model runs/mrnn --port 8000`
    """
    from limner.server.settings import ServerSettings

    texts = {"models": model, "indexes": index, "allowed_hosts": allow_host, "cors_origins": cors_origin}
    lists = {name: [*map(str, values)] for name, values in {**texts, "image_hosts": image_host}.items() if values}
    limits = given(max_body=max_body, max_queue=max_queue, timeout=timeout, stop_timeout=stop_timeout)
    places = given(
        host=host, port=port, workers=workers, backbone=backbone, key_file=str(key_file) if key_file else None
    )
    _serve(ServerSettings.parse({**lists, **limits, **places, "device": device, "any_prompt": any_prompt}), as_json)


def _serve(settings: ServerSettings, as_json: bool) -> None:
    """Load the models, and answer requests until the process receives a signal to stop."""
    try:
        from limner.server.run import address_of, bind, load, serve
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in PACKAGES:
            raise MissingExtraError("limner serve", "serve") from None
        raise
    from limner.storage.json_text import to_json

    bound = bind(settings)
    with activity("loading the models"):
        models = load(settings)
    address = address_of(bound)
    echo(to_json({"listening": address}) if as_json else f"listening on {address}")
    sys.stdout.flush()
    serve(settings, models, bound)
