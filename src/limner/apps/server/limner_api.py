"""The API of Limner: /v1/describe, /translate, /score, /search, /explain, /models; /health and /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from sse_starlette import EventSourceResponse

import limner
from limner.apps.server import schemas
from limner.apps.server.errors import InvalidRequestError, NotFoundError, error_body
from limner.apps.server.images import read_image_reference
from limner.apps.server.jobs import FinalEvent, GenerationRequest, Job
from limner.apps.server.models import ServedModel, trained_models
from limner.apps.server.request_bodies import MULTIPART, UploadRoute, reads
from limner.apps.server.service import EventStream, ServiceEngine
from limner.apps.server.settings import ServerSettings
from limner.generation.request import RuleOptions
from limner.generation.sentences import is_outside_domain
from limner.media.image import require_pixels
from limner.storage.json_text import to_json

if TYPE_CHECKING:
    from limner.decoding.scoring import SentenceScore

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorBody, "description": "error"}
    for status in (400, 401, 404, 408, 413, 415, 421, 422, 429, 500, 501, 503, 504)
}
"""Responses of every route in the OpenAPI description."""
EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "contentMediaType": "application/json"}},
    "required": ["event", "data"],
}
"""Schema of one server-sent event; before OpenAPI 3.2, the schema of `text/event-stream` describes one event."""
EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, "text/event-stream": {"schema": EVENT}}}
}
router = APIRouter(tags=["limner"], responses=ERRORS, route_class=UploadRoute)


async def get_engine(request: Request) -> ServiceEngine:
    """Return the engine of the application for `Depends`; a coroutine, as `Depends` calls functions in a thread."""
    engine: ServiceEngine = request.app.state.engine
    return engine


EngineOf = Annotated[ServiceEngine, Depends(get_engine)]


@router.get("/health")
async def health(engine: EngineOf) -> schemas.HealthBody:
    """Return whether the service is running, and how many requests wait."""
    status, models = "stopping" if engine.stopping else "ok", list(engine.models.by_name)
    return schemas.HealthBody(status=status, version=limner.__version__, models=models, waiting=engine.active)


@router.get("/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
async def metrics(engine: EngineOf) -> Response:
    """Return counters and times in the text format of Prometheus."""
    return Response(engine.metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/models")
async def models(engine: EngineOf) -> schemas.ModelList:
    """List the served models, in the shape of OpenAI with the fields of Limner added, and the indexed folders."""

    def count() -> list[schemas.IndexBody]:
        return [schemas.IndexBody(name=name, images=len(index)) for name, index in engine.indexes]

    indexes = await engine.compute("file", count) if engine.indexes.by_name else []
    return schemas.ModelList(data=[model_body(served) for served in engine.models], indexes=indexes)


def model_body(served: ServedModel) -> schemas.ModelBody:
    """Return a served model for a response."""
    names = ("created", "task", "languages", "source", "uses_image", "explains")
    values = {name: getattr(served, name) for name in names}
    generator = served.generator(None)
    decoding = generator.decoding.model_dump(include={"beam_size", "length_penalty"})
    if generator.rules is not None and generator.rules.concepts is not None:
        decoding["length_penalty"] = 1.0  # by which they rank unless a request names another exponent
    return schemas.ModelBody.model_validate({"id": served.name, **values, **decoding})


@router.post(
    "/v1/describe",
    response_model=schemas.DescribeResponse,
    responses=EVENT_STREAM,
    openapi_extra=reads(MULTIPART, schemas.DescribeBody),
)
async def describe(body: schemas.DescribeBody, engine: EngineOf, request: Request) -> Any:  # noqa: ANN401
    """Caption an image, sent as JSON with base64 or as an uploaded file of a form."""
    image = await read_image_reference(body.image, engine.fetcher)
    served = engine.models.get(body.model, "describe", body.lang)
    rule_options = RuleOptions(True, body.concepts, body.min_confidence)
    requested = GenerationRequest(served, served.generator(body.lang), image, None, body.decoding(), body.prefix)
    stream = await engine.generate(
        requested._replace(must_include=body.must_include, attention=body.attention, rule_options=rule_options)
    )

    def response(final: FinalEvent) -> schemas.DescribeResponse:
        tags = [] if body.tags is False else final.job.tags
        return schemas.DescribeResponse(
            model=served.name,
            lang=final.job.lang,
            captions=sentence_bodies(final),
            tags=[schemas.TagBody(name=name, probability=probability) for name, probability in tags],
            abstained=not final.best.is_sure,
            grid_size=final.grid_size,
            box=final.box,
        )

    if body.stream:
        return sse_response(server_sent_events(stream, request.url.path, response), engine.settings)
    return response(await stream.final())


def sentence_bodies(final: FinalEvent) -> list[schemas.SentenceBody]:
    """Return the sentences of a stream for a response."""
    bodies = []
    for sentence, tokens in zip(final.sentences, final.tokens, strict=True):
        values = {**sentence._asdict(), "display_text": sentence.display_text, "tokens": tokens}
        bodies.append(schemas.SentenceBody.model_validate(values))
    return bodies


@router.post(
    "/v1/translate",
    response_model=schemas.TranslationResponse,
    responses=EVENT_STREAM,
    openapi_extra=reads(MULTIPART, schemas.TranslationRequest),
)
async def translate(body: schemas.TranslationRequest, engine: EngineOf, request: Request) -> Any:  # noqa: ANN401
    """Translate a sentence or several, with the help of an image where the model uses images."""
    texts = [body.text] if isinstance(body.text, str) else body.text
    if texts is body.text and (body.stream or body.explain):
        raise InvalidRequestError("stream and explain are for one sentence; send text as a string", "text")
    image = None if body.image is None else await read_image_reference(body.image, engine.fetcher)
    served = engine.models.translator(body.model, body.source, body.target)
    generator = served.generator(body.target)
    if body.explain:
        await engine.compute("explain", lambda: trained_models(generator))
    requested = GenerationRequest(served, generator, image, None, body.decoding(), must_include=body.must_include)
    streams = [await engine.generate(requested._replace(text=text)) for text in texts]

    def response(*finals: FinalEvent) -> schemas.TranslationResponse:
        translations = [sentence_bodies(final) for final in finals]
        guesses = [
            final.job.decoding.sample is None
            and final.job.constraint is None
            and is_outside_domain(final.job.source_tokens or (), final.best)
            for final in finals
        ]
        return schemas.TranslationResponse(
            model=served.name,
            source=served.source or "",
            lang=generator.lang,
            translations=translations if texts is body.text else translations[0],
            out_of_domain=guesses if texts is body.text else guesses[0],
        )

    if body.stream:
        return sse_response(server_sent_events(streams[0], request.url.path, response), engine.settings)
    try:
        finals = await asyncio.gather(*(stream.final() for stream in streams))
    finally:
        for stream in streams:
            stream.close()
    answer = response(*finals)
    if body.explain and finals[0].best.tokens:
        job, tokens = streams[0].job, finals[0].best.tokens
        answer.explanation = await engine.compute("explain", lambda: _explain(job, tokens))
    return answer


@router.post("/v1/score", openapi_extra=reads(MULTIPART, schemas.ScoreBody))
async def score(body: schemas.ScoreBody, engine: EngineOf) -> schemas.ScoreResponse:
    """Compute the log-probability and the perplexity of sentences given an image."""
    image = await read_image_reference(body.image, engine.fetcher)
    served, sentences = engine.models.get(body.model, "describe", body.lang), body.sentences

    def score() -> list[SentenceScore]:
        trained = served.trained(body.lang)  # without torch, an error that says so
        from limner.inference.scorer import Scorer

        return Scorer(trained, served.backbone).score(image, sentences)

    scores = await engine.compute("score", score)
    values = [{"text": text, **score._asdict()} for text, score in zip(sentences, scores, strict=True)]
    return schemas.ScoreResponse.model_validate({"scores": values})


@router.post("/v1/search", openapi_extra=reads(MULTIPART, schemas.SearchBody))
async def search(body: schemas.SearchBody, engine: EngineOf) -> schemas.SearchResponse:
    """Search an indexed folder by a sentence or an image, or a collection by a sentence."""
    query = body.query or await read_image_reference(body.image or "", engine.fetcher)
    name, _ = engine.indexes.get(body.index)

    def search() -> schemas.SearchResponse:
        if isinstance(query, bytes):
            require_pixels(query, engine.settings.max_pixels)
        return engine.indexes.search(name, query, body.limit)

    return await engine.compute("search", search)


@router.get("/v1/thumbnail", responses={200: {"content": {"image/jpeg": {}}}}, response_class=Response)
async def thumbnail(
    engine: EngineOf,
    name: Annotated[str, Query(max_length=4_096, description="Name of a found image.")],
    index: Annotated[str | None, Query(description="Name of an index; default: the first.")] = None,
) -> Response:
    """Return the small copy of an indexed image; other files are never read."""
    _, searched = engine.indexes.get(index)
    stored = await engine.compute("file", lambda: searched.thumbnail(name))
    if stored is None:
        raise NotFoundError(f"name '{name[:200]}': the index has no such image", "name")
    return Response(stored, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


@router.post("/v1/explain", openapi_extra=reads(MULTIPART, schemas.ExplainBody))
async def explain(body: schemas.ExplainBody, engine: EngineOf) -> schemas.ExplainResponse:
    """Return the attention over the image of each word of a caption, given or generated."""
    image = await read_image_reference(body.image, engine.fetcher)
    served = engine.models.get(body.model, "describe", body.lang)
    requested = GenerationRequest(served, served.generator(body.lang), image)
    await engine.compute("explain", lambda: trained_models(requested.generator))
    if body.caption is None:
        final = await (await engine.generate(requested)).final()
        job, caption, tokens = final.job, final.best.text, list(final.best.tokens)
    else:
        job, caption = await engine.read(requested), body.caption
        tokens = job.generator.tokenizer.encode(caption)
    if not tokens:
        raise InvalidRequestError(f"caption: expected at least one word, got '{caption[:99]}'", "caption")
    explained = await engine.compute("explain", lambda: _explain(job, tokens))
    return schemas.ExplainResponse(model=served.name, lang=job.lang, caption=caption, explanation=explained)


def _explain(job: Job, tokens: Sequence[int]) -> schemas.SentenceExplanation:
    from limner.apps.server.explanations import explain_sentence  # imports torch

    return explain_sentence(job, tokens)


def sse_response(events: AsyncIterator[Any], settings: ServerSettings) -> EventSourceResponse:
    """Return server-sent events; a stream that has begun is finished when the service stops."""
    return EventSourceResponse(events, shutdown_grace_period=settings.stop_timeout)


async def server_sent_events(
    stream: EventStream, path: str, response: Callable[[FinalEvent], BaseModel]
) -> AsyncIterator[dict[str, str]]:
    """Yield the events of a stream: `token`, then `done` with the response, or `error`."""
    try:
        index = 0
        async for event in stream:
            if isinstance(event, FinalEvent):
                yield {"event": "done", "data": response(event).model_dump_json()}
            else:
                yield {"event": "token", "data": to_json({"index": index, **event._asdict()})}
                index += 1
    except Exception as error:
        yield {"event": "error", "data": to_json(error_body(path, error))}
    finally:
        stream.close()
