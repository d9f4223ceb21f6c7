"""The OpenAI interface: /v1/chat/completions and /v1/models/{id}; /v1/models is in `limner.apps.server.own_api`.

See `read_conversation` for what the texts of a request mean.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request

from limner.apps.server.conversations import Conversation, find_model, read_conversation
from limner.apps.server.engine import EventStream
from limner.apps.server.errors import error_body, problem_of
from limner.apps.server.events import FinalEvent, GeneratedToken, TokenEvent
from limner.apps.server.generation_options import StopText
from limner.apps.server.openai_schemas import (
    Completion,
    CompletionAnswer,
    CompletionBody,
    CompletionChoice,
    Logprobs,
    Usage,
)
from limner.apps.server.own_api import ERRORS, EngineOf, model_body, sse_response
from limner.apps.server.request_bodies import JSONRoute
from limner.apps.server.schemas import ModelBody
from limner.storage.json_text import to_json

PATH = "/v1/chat/completions"
DONE = "[DONE]"
"""Data of the last event of a stream."""

router = APIRouter(tags=["OpenAI"], responses=ERRORS, route_class=JSONRoute)
_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "A completion, or events with its parts"}
}


@router.get("/v1/models/{name:path}")
async def model(name: str, engine: EngineOf) -> ModelBody:
    """Describe a served model."""
    served, _ = find_model(engine.models, name)
    return model_body(served)


@router.post(PATH, response_model=Completion, responses=_STREAMED)
async def complete(body: CompletionBody, engine: EngineOf, request: Request) -> Any:  # noqa: ANN401
    """Caption the image of the last message of the user, or translate its text."""
    stop = body.stop_text()
    conversation = await read_conversation(request, body, [message.read() for message in body.messages], "messages")
    stream = await conversation.generate(engine, body, count=body.n or 1, probable_tokens=body.probable_tokens)
    header: dict[str, Any] = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": body.model,
    }
    if body.stream:
        return sse_response(_encoded(_chunks(stream, conversation, body, stop, header)), engine.settings)
    final = await stream.final()
    return Completion(
        **header,
        choices=[_choice(final, index, body, stop) for index in range(len(final.sentences))],
        usage=_usage(final, conversation),
    )


def _choice(final: FinalEvent, index: int, body: CompletionBody, stop: StopText) -> CompletionChoice:
    sentence = final.sentences[index]
    text, stopped = stop.cut(sentence.display_text)
    return CompletionChoice(
        index=index,
        message=CompletionAnswer(content=text),
        logprobs=_logprobs(final.tokens[index] if sentence.is_sure else (), body),
        finish_reason="stop" if stopped or sentence.ended else "length",
    )


async def _chunks(
    stream: EventStream, conversation: Conversation, body: CompletionBody, stop: StopText, header: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the parts of a completion: the first sentence as it is decided, the others at the end."""

    def chunk(index: int, delta: dict[str, str], logprobs: Logprobs | None = None, **ending: Any) -> dict[str, Any]:  # noqa: ANN401
        scores = {} if logprobs is None else {"logprobs": logprobs.model_dump(exclude_none=True)}
        return header | {"choices": [{"index": index, "delta": delta, **scores, **ending}]}

    yield chunk(0, {"role": "assistant", "content": ""})
    try:
        async for event in stream:
            if isinstance(event, TokenEvent):
                if not stop.stopped and ((text := stop.feed(event.text)) or body.logprobs):
                    yield chunk(0, {"content": text}, _logprobs([event], body))
                continue
            unsure = "" if event.best.is_sure else stop.feed(event.best.display_text)  # no token was delivered
            if text := unsure + stop.end():
                yield chunk(0, {"content": text})
            for index in range(len(event.sentences)):
                choice = _choice(event, index, body, stop)
                if index:
                    yield chunk(index, {"role": "assistant", "content": choice.message.content}, choice.logprobs)
                yield chunk(index, {}, finish_reason=choice.finish_reason)
            if body.stream_options is not None and body.stream_options.include_usage:
                yield header | {"choices": [], "usage": _usage(event, conversation).model_dump()}
    finally:
        await stream.aclose()


async def _encoded(chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, str]]:
    """Yield server-sent events; an error after the first one is an event as well."""
    try:
        async for chunk in chunks:
            yield {"data": to_json(chunk | {"object": "chat.completion.chunk"})}
        yield {"data": DONE}
    except Exception as error:
        yield {"data": to_json(error_body(PATH, problem_of(error)))}


def _usage(final: FinalEvent, conversation: Conversation) -> Usage:
    count = sum(max(0, len(sentence.tokens) - conversation.given_tokens) for sentence in final.sentences)
    return Usage(
        prompt_tokens=conversation.input_tokens, completion_tokens=count, total_tokens=conversation.input_tokens + count
    )


def _logprobs(tokens: Sequence[TokenEvent | GeneratedToken], body: CompletionBody) -> Logprobs | None:
    content = body.logprobs_of(tokens)
    return None if content is None else Logprobs(content=content)
