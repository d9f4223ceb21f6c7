"""Embeddings of sentences and images in a joint space, in the APIs of OpenAI, Ollama and Immich."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from pydantic import Field

from limner.apps.server import ollama_api, openai_api
from limner.apps.server.errors import InvalidRequestError, NotSupportedError
from limner.apps.server.images import decode_image_text
from limner.apps.server.jobs import GenerationRequest
from limner.apps.server.libretranslate_api import MAX_CHARACTERS
from limner.apps.server.limner_api import ERRORS, EngineOf
from limner.apps.server.request_bodies import MULTIPART, LenientBody, UploadRoute, converted, reads
from limner.apps.server.service import ServiceEngine
from limner.files.structured import StructureError, parse_json
from limner.media.image import image_size
from limner.runs.concepts import Vector, pooled_vector
from limner.storage.json_text import to_json
from limner.text.vocab import SPECIAL_TOKENS

IMMICH_SIZE = 512
"""Size of the vectors of Immich's default model; vectors are padded with zeros, which changes no cosine."""


class EmbeddingBody(LenientBody):
    """Request of POST /v1/embeddings and POST /api/embed."""

    model: Annotated[str, Field(min_length=1, max_length=300)]
    """Name of a served captioner with a joint space; a tag selects one of its languages."""
    input: str | Annotated[list[str], Field(min_length=1, max_length=2_048)]
    """Sentence, or image as a `data:` URL; or a list."""
    encoding_format: Literal["float", "base64"] | None = None
    """`base64` for the bytes of little-endian float32 numbers, else lists of numbers. Without effect in Ollama."""


class PromptBody(LenientBody):
    """Request of POST /api/embeddings, the older API of Ollama for one vector."""

    model: Annotated[str, Field(min_length=1, max_length=300)]
    """Name of a served captioner with a joint space; a tag selects one of its languages."""
    prompt: str
    """Sentence, or image as a `data:` URL."""


class ImmichBody(LenientBody):
    """Request of POST /predict."""

    entries: str
    """Tasks in JSON; only `clip` is answered, whatever its model."""
    image: str | None = None
    """Image to embed, as an uploaded file."""
    text: str | None = None
    """Sentence to embed."""


router = APIRouter(tags=["Immich"], responses=ERRORS, route_class=UploadRoute)


@openai_api.router.post("/v1/embeddings")
async def embeddings(body: EmbeddingBody, engine: EngineOf) -> dict[str, Any]:
    """Compute the vectors of sentences and images; their cosine is the similarity."""
    vectors = await _vectors(engine, body.model, await _inputs(body))
    is_base64 = body.encoding_format == "base64"
    values = [base64.b64encode(row.astype("<f4").tobytes()).decode() if is_base64 else row.tolist() for row in vectors]
    data = [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(values)]
    return {"object": "list", "model": body.model, "data": data, "usage": {"prompt_tokens": 0, "total_tokens": 0}}


@ollama_api.router.post("/embed")
async def embed(body: EmbeddingBody, engine: EngineOf) -> dict[str, Any]:
    """Compute the vectors of sentences and images; see /v1/embeddings."""
    started = time.perf_counter_ns()
    vectors = await _vectors(engine, body.model, await _inputs(body))
    durations = {"total_duration": time.perf_counter_ns() - started, "load_duration": 0, "prompt_eval_count": 0}
    return {"model": body.model, "embeddings": [vector.tolist() for vector in vectors], **durations}


@ollama_api.router.post("/embeddings")
async def embed_prompt(body: PromptBody, engine: EngineOf) -> dict[str, Any]:
    """Compute the vector of a sentence or an image; see /v1/embeddings."""
    (vector,) = await _vectors(engine, body.model, await _inputs(EmbeddingBody(model=body.model, input=body.prompt)))
    return {"embedding": vector.tolist()}


@router.get("/ping", response_class=PlainTextResponse)
async def ping() -> str:
    """Return that the service runs, for Immich."""
    return "pong"


@router.post("/predict", openapi_extra=reads(MULTIPART, ImmichBody))
async def predict(body: ImmichBody, engine: EngineOf) -> dict[str, Any]:
    """Compute the vector of an image or a sentence in the joint space of the first model with a joint space."""
    try:
        tasks = parse_json(body.entries)
    except StructureError as error:
        raise InvalidRequestError(f"entries: {error}; correct the JSON", "entries") from None
    if not isinstance(tasks, dict) or {*tasks} != {"clip"}:
        raise NotSupportedError("entries: the models embed images and sentences; leave out tasks but 'clip'", "entries")
    image = None if body.image is None else await converted(decode_image_text, body.image)
    content = body.text if image is None else image
    if content is None:
        raise InvalidRequestError("image: expected an image or a text; add one", "image")
    (vector,) = await _vectors(engine, None, [content])
    padded = np.pad(vector, (0, max(0, IMMICH_SIZE - len(vector))))
    response: dict[str, Any] = {"clip": to_json(padded.tolist())}
    if image is not None:
        response["imageWidth"], response["imageHeight"] = await asyncio.to_thread(image_size, image)
    return response


async def _inputs(body: EmbeddingBody) -> list[str | bytes]:
    inputs = [body.input] if isinstance(body.input, str) else body.input
    decode = partial(decode_image_text, param="input")
    return [await converted(decode, text) if text.startswith("data:image/") else text for text in inputs]


async def _vectors(engine: ServiceEngine, name: str | None, contents: Sequence[str | bytes]) -> list[Vector]:
    """Return the vector of each sentence or image; None for the first model that has a joint space.

    NotSupportedError if the model has no joint space, MediaError if an image cannot be decoded.
    """
    able = next((served for served in engine.models if served.joint_folder(None)), None)
    served, lang = (able or engine.models.get(None, "describe"), None) if name is None else engine.models.find(name)
    space = await engine.compute("search", lambda: served.joint(lang))

    def sentence_vector(sentence: str) -> Vector:
        if len(sentence) > MAX_CHARACTERS:
            raise InvalidRequestError(
                f"input: expected at most {MAX_CHARACTERS:,} characters; shorten the text", "input"
            )
        if set(space.tokenizer.encode(sentence)) <= {SPECIAL_TOKENS.unk}:
            raise InvalidRequestError(f"'{sentence[:40]}': no word is in the vocabulary; use other words", "input")
        return space.sentence_vector(sentence)

    async def vector(content: str | bytes) -> Vector:
        if isinstance(content, str):
            return await engine.compute("search", lambda: sentence_vector(content))
        job = await engine.read(GenerationRequest(served, served.generator(lang), content))
        assert job.features is not None, "a captioner with a joint space has a backbone"
        (embedded,) = space.image_vectors(pooled_vector(job.features)[None])
        return np.asarray(embedded)

    return [await vector(content) for content in contents]
