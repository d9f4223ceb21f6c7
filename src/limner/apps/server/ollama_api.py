"""The Ollama interface: /api/generate, /api/chat, /api/tags, /api/ps, /api/show, /api/version.

PhotoPrism, the AI content describer of NVDA and the clients of Ollama speak it. `read_chat` describes the meaning of
the texts of a request. Requests and responses have the field names of Ollama.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

import limner
from limner.apps.server import limner_api
from limner.apps.server.chats import ChatFields, Message, SamplingFields, finish_reason, read_chat
from limner.apps.server.errors import InvalidRequestError, error_body
from limner.apps.server.jobs import FinalEvent
from limner.apps.server.limner_api import EngineOf
from limner.apps.server.models import DEFAULT_TAG, ServedModel
from limner.apps.server.request_bodies import AnyTypeRoute, LenientBody
from limner.apps.server.service import EventStream, ServiceEngine
from limner.storage.json_text import to_json

NDJSON = "application/x-ndjson"
FOREVER = "9999-12-31T23:59:59Z"
"""Time at which the models leave the memory, far in the future."""
_UNITS = ((9, "B"), (6, "M"), (3, "K"))
"""Units of a number of parameters, with their powers of ten."""


class GenerateBody(ChatFields):
    """Request of POST /api/generate; `stream` is true by default."""

    prompt: str | None = None
    """Source sentence; without effect on captions."""
    system: str | None = None
    """Without effect."""
    images: list[str] | None = None
    """An image in base64."""
    options: SamplingFields | None = None


class OllamaMessage(LenientBody):
    """A message of a chat."""

    role: str
    content: str | None = None
    images: list[str] | None = None


class ChatBody(ChatFields):
    """Request of POST /api/chat; `stream` is true by default."""

    messages: list[OllamaMessage] | None = None
    options: SamplingFields | None = None


class ShowBody(LenientBody):
    """Request of POST /api/show."""

    model: str | None = None
    name: str | None = None
    """Earlier name of `model`."""


class OllamaError(BaseModel):
    """Response to a request that cannot be answered."""

    error: str


ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": OllamaError} for status in limner_api.ERRORS}
GenerationBody = GenerateBody | ChatBody
Content = Callable[[str], dict[str, Any]]
"""Function that makes the field with the generated text: `response` or `message`."""


router = APIRouter(prefix="/api", tags=["Ollama"], responses=ERRORS, route_class=AnyTypeRoute)
_STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {NDJSON: {}}, "description": "One object, or its parts"}}


@router.post("/generate", responses=_STREAMED)
async def generate(body: GenerateBody, request: Request) -> Any:  # noqa: ANN401
    """Caption an image, or translate a sentence."""
    started = time.perf_counter_ns()
    system = [Message("system", body.system)] if body.system else []
    user = [Message("user", body.prompt or "", body.images or ())] if body.prompt or body.images else []
    return await _answer(body, system + user if user else [], request, lambda text: {"response": text}, started)


@router.post("/chat", responses=_STREAMED)
async def chat(body: ChatBody, request: Request) -> Any:  # noqa: ANN401
    """Caption the image of the last message of the user, or translate its text."""
    started = time.perf_counter_ns()
    messages = [Message(message.role, message.content or "", message.images or ()) for message in body.messages or ()]

    def content(text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    return await _answer(body, messages, request, content, started)


async def _answer(
    body: GenerationBody, messages: Sequence[Message], request: Request, content: Content, started: int
) -> dict[str, Any] | StreamingResponse:
    """Generate a sentence; a stream of lines unless `stream` is false. Without messages only the model is checked."""
    engine: ServiceEngine = request.app.state.engine

    def line(text: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
        present = {name: value for name, value in fields.items() if value is not None}
        return {"model": body.model, "created_at": rfc3339(), "done": False, **content(text), **present}

    if not messages:
        engine.models.find(body.model)
        return line("", done=True, done_reason="load")
    options = body.options or SamplingFields()
    stream = await engine.generate(await read_chat(request, body, options, messages, param="images"))
    parts = _parts(stream, body, started)
    if body.stream is None or body.stream:
        return StreamingResponse(_encoded(line(text, **fields) async for text, fields in parts), media_type=NDJSON)
    texts: list[str] = []
    logprobs: list[dict[str, Any]] = []
    end: dict[str, Any] = {}
    async for text, end in parts:
        texts.append(text)
        logprobs += end.get("logprobs") or []
    return line("".join(texts), **end, logprobs=logprobs if body.logprobs else None)


async def _parts(stream: EventStream, body: GenerationBody, started: int) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield the texts of a response with their fields.

    The last part has the reason of the end, see `finish_reason`, the numbers of tokens, and durations in nanoseconds:
    `total` from the arrival of the request to the end, `load` of checking the request and decoding its image,
    `prompt_eval` of waiting, computing features and decoding up to the first token that is decided, `eval` from this
    token to the end.
    """
    accepted, first, count, reason = time.perf_counter_ns(), None, 0, "stop"
    with closing(stream):
        async for event in stream:
            first = first or time.perf_counter_ns()
            if isinstance(event, FinalEvent):
                reason = finish_reason(event.best, "abstained")
                break
            count += 1
            if event.text or body.logprobs:
                yield event.text, {"logprobs": body.logprobs_of([event])}
    ended = time.perf_counter_ns()
    first = first or ended
    end: dict[str, Any] = {"done": True, "done_reason": reason}
    end |= {"total_duration": ended - started, "load_duration": accepted - started}
    end |= {"prompt_eval_count": stream.job.input_tokens, "prompt_eval_duration": first - accepted}
    yield "", end | {"eval_count": count, "eval_duration": max(1, ended - first)}


async def _encoded(lines: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Yield lines of JSON; an error after the first line is a line as well, as in Ollama."""
    try:
        async for line in lines:
            yield to_json(line) + "\n"
    except Exception as error:
        yield to_json(error_body("/api/", error)) + "\n"


def rfc3339(seconds: float | None = None) -> str:
    """Return a time in seconds since 1970, by default now, as Ollama writes it."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@router.head("/version", include_in_schema=False)
@router.get("/version")
async def version() -> dict[str, str]:
    """Return the version of Limner."""
    return {"version": limner.__version__}


@router.head("/tags", include_in_schema=False)
@router.get("/tags")
async def tags(engine: EngineOf) -> dict[str, list[dict[str, Any]]]:
    """List the served models; a model of several languages has them as tags."""
    return {"models": [_listed(served, tag) for served in engine.models for tag in served.tags]}


@router.get("/ps")
async def running(engine: EngineOf) -> dict[str, list[dict[str, Any]]]:
    """List the models in memory, which are all served models."""

    def state(served: ServedModel) -> dict[str, Any]:
        return {"expires_at": FOREVER, "size_vram": 0, "context_length": served.facts.max_length}

    return {"models": [_listed(served, DEFAULT_TAG) | state(served) for served in engine.models]}


@router.post("/show")
async def show(body: ShowBody, engine: EngineOf) -> dict[str, Any]:
    """Describe a model."""
    name = body.model or body.name
    if not name:
        raise InvalidRequestError("model: expected the name of a served model", "model")
    served, _ = engine.models.find(name)
    facts, kind = served.facts, served.facts.architecture
    return {
        "license": "",
        "modelfile": f"# A model of limner serve: it cannot be rebuilt from a Modelfile.\nFROM {served.name}\n",
        "parameters": "",
        "template": "{{ .Prompt }}",
        "details": _details(served),
        "model_info": {
            "general.architecture": kind,
            "general.parameter_count": facts.parameters,
            "general.languages": list(served.languages),
            f"{kind}.context_length": facts.max_length,
            f"{kind}.vocab_size": facts.vocabulary,
            "limner.task": served.task,
            "limner.source_language": served.source,
        },
        "capabilities": ["completion"]
        + ["vision"] * served.uses_image
        + ["embedding"] * bool(served.joint_folder(None)),
        "modified_at": rfc3339(served.created),
    }


def _listed(served: ServedModel, tag: str) -> dict[str, Any]:
    lang = served.languages[0] if tag == DEFAULT_TAG else tag  # names with one digest are one model for clients
    name = served.name if ":" in served.name else f"{served.name}:{tag}"  # an alias may have a tag
    digest = hashlib.sha256(f"{served.facts.digest} {lang}".encode()).hexdigest()
    facts = {"modified_at": rfc3339(served.created), "size": served.facts.size, "digest": digest}
    return {"name": name, "model": name, **facts, "details": _details(served)}


def _details(served: ServedModel) -> dict[str, Any]:
    kind, count = served.facts.architecture, served.facts.parameters
    size = next((f"{count / 10**power:.1f}{unit}" for power, unit in _UNITS if count >= 10**power), str(count))
    facts = {"family": kind, "families": [kind], "parameter_size": size}
    return {"parent_model": "", "format": "safetensors", **facts, "quantization_level": "F32"}
