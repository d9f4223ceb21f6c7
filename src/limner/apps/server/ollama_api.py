"""The Ollama interface: /api/generate, /api/chat, /api/tags, /api/ps, /api/show, /api/version, /api/embed.

PhotoPrism, the AI content describer of NVDA and the clients of Ollama speak it. See `read_conversation` for what the
texts of a request mean.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

import limner
from limner.apps.server.conversations import DEFAULT_TAG, Conversation, Message, find_model, read_conversation
from limner.apps.server.engine import EventStream
from limner.apps.server.errors import InvalidRequestError, error_body, problem_of
from limner.apps.server.events import FinalEvent
from limner.apps.server.generation_options import SamplingFields, StopText
from limner.apps.server.models import ServedModel
from limner.apps.server.ollama_schemas import (
    ChatBody,
    ChatResponse,
    EmbedBody,
    EmbeddingsBody,
    EmbedResponse,
    GenerateBody,
    GenerateResponse,
    GenerationResponse,
    OllamaAnswer,
    OllamaError,
    ShowBody,
)
from limner.apps.server.own_api import EngineOf
from limner.apps.server.request_bodies import AnyTypeRoute

NDJSON = "application/x-ndjson"
FOREVER = "9999-12-31T23:59:59Z"
"""When the models leave the memory."""
_UNITS = ((9, "B"), (6, "M"), (3, "K"))
"""Units of a number of parameters, with their powers of ten."""
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": OllamaError} for status in (400, 401, 404, 408, 413, 415, 421, 422, 429, 500, 501, 503, 504)
}
GenerationBody = GenerateBody | ChatBody
Line = Callable[..., GenerationResponse]
"""Makes one line of a response from its text and its fields."""


router = APIRouter(prefix="/api", tags=["Ollama"], responses=ERRORS, route_class=AnyTypeRoute)
_STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {NDJSON: {}}, "description": "One object, or its parts"}}


@router.post("/generate", response_model=GenerateResponse, response_model_exclude_none=True, responses=_STREAMED)
async def generate(body: GenerateBody, engine: EngineOf, request: Request) -> Any:  # noqa: ANN401
    """Caption an image, or translate a sentence."""
    started = time.perf_counter_ns()
    line = _line(body, GenerateResponse, lambda text: {"response": text})
    if not body.prompt and not body.images:
        find_model(engine.models, body.model)
        return line("", done=True, done_reason="load")
    messages = [Message("user", body.prompt or "", body.images or ())]
    if body.system:
        messages.insert(0, Message("system", body.system))
    return await _answer(body, messages, request, line, started)


@router.post("/chat", response_model=ChatResponse, response_model_exclude_none=True, responses=_STREAMED)
async def chat(body: ChatBody, engine: EngineOf, request: Request) -> Any:  # noqa: ANN401
    """Caption the image of the last message of the user, or translate its text."""
    started = time.perf_counter_ns()
    line = _line(body, ChatResponse, lambda text: {"message": OllamaAnswer(content=text)})
    if not body.messages:
        find_model(engine.models, body.model)
        return line("", done=True, done_reason="load")
    messages = [Message(message.role, message.content or "", message.images or ()) for message in body.messages]
    return await _answer(body, messages, request, line, started)


def _line(
    body: GenerationBody, response: type[GenerationResponse], content: Callable[[str], Mapping[str, Any]]
) -> Line:
    def line(text: str, *, done: bool, **fields: Any) -> GenerationResponse:  # noqa: ANN401
        return response(model=body.model, created_at=rfc3339(), done=done, **content(text), **fields)

    return line


async def _answer(
    body: GenerationBody, messages: Sequence[Message], request: Request, line: Line, started: int
) -> GenerationResponse | StreamingResponse:
    """Generate a sentence; a stream of lines unless `stream` is false."""
    options = body.options or SamplingFields()
    stop = options.stop_text()
    conversation = await read_conversation(request, body, messages, "images")
    stream = await conversation.generate(request.app.state.engine, options, probable_tokens=body.probable_tokens)
    lines = _lines(stream, conversation, body, line, stop, started)
    if body.stream is None or body.stream:
        return StreamingResponse(_encoded(lines), media_type=NDJSON)
    texts, logprobs, last = [], [], None
    async for last, text in lines:
        texts.append(text)
        logprobs += last.logprobs or []
    assert last is not None, "a stream ends with a line"
    fields = last.model_dump(exclude={"model", "created_at", "response", "message", "logprobs"})
    return line("".join(texts), logprobs=logprobs if body.logprobs else None, **fields)


async def _lines(
    stream: EventStream, conversation: Conversation, body: GenerationBody, line: Line, stop: StopText, started: int
) -> AsyncIterator[tuple[GenerationResponse, str]]:
    """Yield the lines of a response with their texts; the last one has the durations."""
    accepted, first, count, final = time.perf_counter_ns(), None, 0, None
    try:
        async for event in stream:
            first = first or time.perf_counter_ns()
            if isinstance(event, FinalEvent):
                final = event
                if not final.best.is_sure and (text := stop.feed(final.best.display_text)):  # no token was delivered
                    yield line(text, done=False), text
            elif not stop.stopped:
                count += 1
                if (text := stop.feed(event.text)) or body.logprobs:
                    yield line(text, done=False, logprobs=body.logprobs_of([event])), text
            if stop.stopped:
                break
    finally:
        await stream.aclose()
    ended = time.perf_counter_ns()
    text = stop.end()
    fields = {
        "done_reason": "stop" if final is None or final.best.ended else "length",
        "total_duration": ended - started,
        "load_duration": accepted - started,
        "prompt_eval_count": conversation.input_tokens,
        "prompt_eval_duration": (first or ended) - accepted,
        "eval_count": max(0, count - conversation.given_tokens),
        "eval_duration": max(1, ended - (first or ended)),
    }
    yield line(text, done=True, **fields), text


async def _encoded(lines: AsyncIterator[tuple[GenerationResponse, str]]) -> AsyncIterator[str]:
    """Yield lines of JSON; an error after the first one is a line as well, as in Ollama."""
    try:
        async for one, _ in lines:
            yield one.model_dump_json(exclude_none=True) + "\n"
    except Exception as error:
        yield OllamaError.model_validate(error_body("/api/", problem_of(error))).model_dump_json() + "\n"


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
    """List the served models; the languages of a model of several are its tags."""
    return {"models": [_listed(served, tag) for served in engine.models for tag in _tags(served)]}


@router.get("/ps")
async def running(engine: EngineOf) -> dict[str, list[dict[str, Any]]]:
    """List the models in memory: all that are served."""

    def state(served: ServedModel) -> dict[str, Any]:
        return {"expires_at": FOREVER, "size_vram": 0, "context_length": served.facts.max_length}

    return {"models": [_listed(served, DEFAULT_TAG) | state(served) for served in engine.models]}


@router.post("/show")
async def show(body: ShowBody, engine: EngineOf) -> dict[str, Any]:
    """Describe a model."""
    name = body.model or body.name
    if not name:
        raise InvalidRequestError("model: expected the name of a served model", "model")
    served, _ = find_model(engine.models, name)
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
        "capabilities": ["completion"] + ["vision"] * served.uses_image + ["embedding"] * facts.has_word_vectors,
        "modified_at": rfc3339(served.created),
    }


@router.post("/embed")
async def embed(body: EmbedBody, engine: EngineOf) -> EmbedResponse:
    """Compute the mean word vector of each text, scaled to length one."""
    started = time.perf_counter_ns()
    if body.dimensions:
        raise InvalidRequestError("dimensions: not supported; leave it out", "dimensions")
    served, _ = find_model(engine.models, body.model)
    texts = [body.input] if isinstance(body.input, str) else body.input
    vectors = [_unit(one) for one in await engine.embed(texts, model=served.name)] if texts else []
    tokenizer = served.trained().tokenizer
    return EmbedResponse(
        model=body.model,
        embeddings=vectors,
        total_duration=time.perf_counter_ns() - started,
        load_duration=0,
        prompt_eval_count=sum(len(tokenizer.encode(text)) for text in texts),
    )


@router.post("/embeddings")
async def embeddings(body: EmbeddingsBody, engine: EngineOf) -> dict[str, list[float]]:
    """Compute the mean word vector of a text."""
    served, _ = find_model(engine.models, body.model)
    vectors = await engine.embed([body.prompt], model=served.name) if body.prompt else [[]]
    return {"embedding": vectors[0]}


def _tags(served: ServedModel) -> tuple[str, ...]:
    """Return the tags that select a language of a model."""
    return (DEFAULT_TAG, *(served.languages if len(served.languages) > 1 else ()))


def _listed(served: ServedModel, tag: str) -> dict[str, Any]:
    name = f"{served.name}:{tag}"
    return {
        "name": name,
        "model": name,
        "modified_at": rfc3339(served.created),
        "size": served.facts.size,
        "digest": served.facts.digest,
        "details": _details(served),
    }


def _details(served: ServedModel) -> dict[str, Any]:
    kind, count = served.facts.architecture, served.facts.parameters
    size = next((f"{count / 10**power:.1f}{unit}" for power, unit in _UNITS if count >= 10**power), str(count))
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": kind,
        "families": [kind],
        "parameter_size": size,
        "quantization_level": "F32",
    }


def _unit(vector: Sequence[float]) -> list[float]:
    norm = math.hypot(*vector) or 1.0
    return [value / norm for value in vector]
