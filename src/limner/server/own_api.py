"""The own API: /v1/describe, /v1/translate, /v1/score, /v1/search, /v1/explain, /v1/models, and /health."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from sse_starlette import EventSourceResponse

import limner
from limner.server.engine import Engine, EventStream
from limner.server.errors import error_body, problem_of
from limner.server.events import FinalEvent, GeneratedSentence, TokenEvent
from limner.server.images import read_image_reference
from limner.server.models import ServedModel
from limner.server.schemas import (
    DescribeBody,
    DescribeResponse,
    ErrorBody,
    HealthBody,
    ModelBody,
    ModelList,
    SentenceBody,
    TagBody,
)
from limner.storage.json_text import to_json

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504)
}
"""Responses of every route in the OpenAPI description."""

router = APIRouter(tags=["limner"], responses=ERRORS)


def get_engine(request: Request) -> Engine:
    """Return the engine of the application, for `Depends`."""
    engine: Engine = request.app.state.engine
    return engine


EngineOf = Annotated[Engine, Depends(get_engine)]


@router.get("/health")
async def health(engine: EngineOf) -> HealthBody:
    """Tell whether the service answers, and how many requests wait."""
    status = "stopping" if engine.stopping else "ok"
    return HealthBody(
        status=status, version=limner.__version__, models=list(engine.models.by_name), waiting=engine.active
    )


@router.get("/v1/models")
async def models(engine: EngineOf) -> ModelList:
    """List the served models, in the shape of OpenAI with the fields of Limner added."""
    return ModelList(data=[model_body(one) for one in engine.models])


def model_body(served: ServedModel) -> ModelBody:
    """Return a served model for a response."""
    return ModelBody(
        id=served.name,
        created=served.created,
        task=served.task,
        languages=list(served.languages),
        source=served.source,
        uses_image=served.uses_image,
    )


@router.post("/v1/describe")
async def describe(body: DescribeBody, engine: EngineOf, request: Request) -> Any:  # noqa: ANN401
    """Caption an image."""
    image = await read_image_reference(body.image, engine.settings)
    stream = await engine.describe(
        image,
        model=body.model,
        lang=body.lang,
        decoding=body.decoding(),
        prefix=body.prefix,
        must_include=body.must_include,
        attention=body.attention,
    )
    if body.stream:
        return EventSourceResponse(server_sent_events(stream, request.url.path, caption_response))
    return caption_response(await stream.final())


def caption_response(final: FinalEvent) -> DescribeResponse:
    """Return the response of a finished caption."""
    return DescribeResponse(
        model=final.model,
        lang=final.lang,
        captions=[sentence_body(one) for one in final.sentences],
        tags=[TagBody(name=name, probability=probability) for name, probability in final.tags],
        grid_size=final.grid_size,
    )


def sentence_body(one: GeneratedSentence) -> SentenceBody:
    """Return a sentence for a response."""
    return SentenceBody.model_validate({**one._asdict(), "tokens": [token._asdict() for token in one.tokens]})


async def server_sent_events(
    stream: EventStream,
    path: str,
    response: Any,  # noqa: ANN401
) -> AsyncIterator[dict[str, str]]:
    """Yield the events of a stream: `token`, then `done` with the response, or `error`."""
    try:
        async for event in stream:
            if isinstance(event, TokenEvent):
                yield {"event": "token", "data": to_json(event._asdict())}
            else:
                yield {"event": "done", "data": response(event).model_dump_json()}
    except Exception as error:
        yield {"event": "error", "data": to_json(error_body(path, problem_of(error)))}
    finally:
        await stream.aclose()
