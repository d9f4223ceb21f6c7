"""The OpenAI interface: /v1/chat/completions, /v1/responses and /v1/models/{id}.

/v1/models is in `limner.apps.server.limner_api`, and /v1/embeddings in `limner.apps.server.embeddings_api`. `read_chat`
describes the meaning of the texts of a request. Requests and responses have the field names of OpenAI.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field

from limner.apps.server.chats import ChatFields, Message, SamplingFields, finish_reason, read_chat
from limner.apps.server.errors import NotSupportedError, error_body
from limner.apps.server.jobs import FinalEvent
from limner.apps.server.limner_api import ERRORS, EngineOf, model_body, sse_response
from limner.apps.server.request_bodies import JSONRoute, LenientBody
from limner.apps.server.schemas import ModelBody
from limner.apps.server.service import EventStream
from limner.storage.json_text import to_json

MAX_CHOICES = 20
"""Largest number of sentences of one request."""
PATH = "/v1/chat/completions"
DONE = "[DONE]"
"""Data of the last event of a stream."""
RESPONSES = "/v1/responses"
LOGPROBS = "message.output_text.logprobs"
"""Value of `include` by which a response has log-probabilities."""
REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reasons of incomplete responses in the terms of OpenAI, by `finish_reason`."""


class ImageURL(LenientBody):
    """Image of a message."""

    url: str
    """`data:` URL of an image; http(s) URLs only of hosts that the service allows."""


class ContentPart(LenientBody):
    """Part of a message: `text` or `image_url`, of responses `input_text` or `input_image`; other types are refused."""

    type: str
    text: str | None = None
    image_url: ImageURL | str | None = None


class CompletionMessage(LenientBody):
    """A message of a chat; other parts of a conversation have no role, and no effect."""

    role: str = ""
    content: str | list[ContentPart] | None = None

    def read(self, param: str) -> Message:
        """Return the text and the images of a message of the field `param`; NotSupportedError for other parts."""
        if self.content is None or isinstance(self.content, str):
            return Message(self.role, self.content or "")
        texts, images = [], []
        for part in self.content:
            if part.type in ("image_url", "input_image") and part.image_url is not None:
                images.append(part.image_url if isinstance(part.image_url, str) else part.image_url.url)
            elif part.type in ("text", "input_text", "output_text", "refusal"):
                texts.append(part.text or "")
            else:
                expected = "parts of type text or image_url, and images with their image_url"
                raise NotSupportedError(f"{param}.content: expected {expected}, got '{part.type[:40]}'", param)
        return Message(self.role, "\n".join(texts), images)


class StreamOptions(LenientBody):
    """Options of a stream."""

    include_usage: bool | None = None
    """Send the numbers of tokens before the end of the stream."""


class CompletionBody(ChatFields, SamplingFields):
    """Request of POST /v1/chat/completions."""

    messages: Annotated[list[CompletionMessage], Field(min_length=1, max_length=1_000)]
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    """Number of sentences: the best of the beam, or samples."""
    stream_options: StreamOptions | None = None


class TextFields(LenientBody):
    """Form of the response."""

    format: dict[str, Any] | None = None
    """`text`, `json_object`, or the JSON schema of labels; other schemas are refused."""


class ResponsesBody(ChatFields, SamplingFields):
    """Request of POST /v1/responses."""

    input: str | Annotated[list[CompletionMessage], Field(min_length=1, max_length=1_000)]
    """Source sentence, or the messages of a chat."""
    instructions: str | None = None
    """Without effect."""
    text: TextFields | None = None
    include: list[str] | None = None
    """`message.output_text.logprobs` for log-probabilities; others have no effect."""


router = APIRouter(tags=["OpenAI"], responses=ERRORS, route_class=JSONRoute)
_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "The whole, or events with its parts"}
}


@router.get("/v1/models/{name:path}")
async def model(name: str, engine: EngineOf) -> ModelBody:
    """Describe a served model."""
    return model_body(engine.models.find(name)[0])


@router.post(PATH, responses=_STREAMED)
async def complete(body: CompletionBody, engine: EngineOf, request: Request) -> Any:  # noqa: ANN401
    """Caption the image of the last message of the user, or translate its text."""
    messages = [message.read("messages") for message in body.messages]
    stream = await engine.generate(await read_chat(request, body, body, messages, param="messages", count=body.n or 1))
    id_ = f"chatcmpl-{secrets.token_hex(12)}"
    header: dict[str, Any] = {"id": id_, "created": int(time.time()), "model": body.model}
    if body.stream:
        return sse_response(_encoded(_chunks(stream, body, header)), engine.settings)
    final = await stream.final()
    answer = {"object": "chat.completion", "choices": _choices(final, body), "usage": _usage(final)}
    return header | answer


def _choices(final: FinalEvent, body: CompletionBody) -> list[dict[str, Any]]:
    choices: list[dict[str, Any]] = []
    for index, (sentence, tokens) in enumerate(zip(final.sentences, final.tokens, strict=True)):
        content, reason = body.logprobs_of(tokens), finish_reason(sentence, "content_filter")
        message = {"role": "assistant", "content": "".join(token.text for token in tokens), "refusal": None}
        logprobs = None if content is None else {"content": content, "refusal": None}
        choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
    return choices


def _usage(final: FinalEvent) -> dict[str, int]:
    """Numbers of tokens: of the source sentence or the prefix, and of the generated sentences."""
    read, generated = final.job.input_tokens, sum(map(len, final.tokens))
    return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}


async def _chunks(stream: EventStream, body: CompletionBody, header: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Yield the parts of a completion: the first sentence as it is decided, the other sentences at the end."""

    def chunk(index: int, delta: dict[str, str], content: Any = None, **ending: Any) -> dict[str, Any]:  # noqa: ANN401
        scores = {} if content is None else {"logprobs": {"content": content}}
        return header | {"choices": [{"index": index, "delta": delta, **scores, **ending}]}

    yield chunk(0, {"role": "assistant", "content": ""})
    with closing(stream):
        async for event in stream:
            if not isinstance(event, FinalEvent):
                content = body.logprobs_of([event])
                if event.text or content:
                    yield chunk(0, {"content": event.text}, content)
                continue
            for choice in _choices(event, body):
                if index := choice["index"]:
                    delta = {"role": "assistant", "content": choice["message"]["content"]}
                    yield chunk(index, delta, choice["logprobs"] and choice["logprobs"]["content"])
                yield chunk(index, {}, finish_reason=choice["finish_reason"])
            if body.stream_options is not None and body.stream_options.include_usage:
                yield header | {"choices": [], "usage": _usage(event)}


async def _encoded(chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, str]]:
    """Yield server-sent events; an error after the first event is an event as well."""
    try:
        async for chunk in chunks:
            yield {"data": to_json(chunk | {"object": "chat.completion.chunk"})}
        yield {"data": DONE}
    except Exception as error:
        yield {"data": to_json(error_body(PATH, error))}


@router.post(RESPONSES, responses=_STREAMED)
async def respond(body: ResponsesBody, engine: EngineOf, request: Request) -> Any:  # noqa: ANN401
    """Caption the image of the last message of the user, or translate its text."""
    body.response_format = None if body.text is None else body.text.format
    body.logprobs = LOGPROBS in (body.include or ())
    messages = [Message("system", body.instructions or "")]
    items = [CompletionMessage(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    messages += [item.read("input") for item in items]
    stream = await engine.generate(await read_chat(request, body, body, messages, param="input"))
    head = {"id": f"resp_{secrets.token_hex(12)}", "object": "response", "created_at": int(time.time())}
    head |= {"model": body.model, "error": None, "tools": [], "tool_choice": "none", "parallel_tool_calls": False}
    if body.stream:
        return sse_response(_events(stream, body, head), engine.settings)
    return _response(await stream.final(), body, head)


def _response(final: FinalEvent, body: ResponsesBody, head: dict[str, Any]) -> dict[str, Any]:
    tokens, read = final.tokens[0], final.job.input_tokens
    reason = REASONS.get(finish_reason(final.best, "content_filter"))
    usage: dict[str, Any] = {"input_tokens": read, "output_tokens": len(tokens), "total_tokens": read + len(tokens)}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    part = _part("".join(token.text for token in tokens), body.logprobs_of(tokens))
    status, details = ("incomplete", {"reason": reason}) if reason else ("completed", None)
    output = [_message(head, status, [part])]
    return head | {"status": status, "incomplete_details": details, "output": output, "usage": usage}


def _message(head: dict[str, Any], status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    id_ = head["id"].replace("resp_", "msg_")
    return {"id": id_, "type": "message", "role": "assistant", "status": status, "content": content}


def _part(text: str, logprobs: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


async def _events(stream: EventStream, body: ResponsesBody, head: dict[str, Any]) -> AsyncIterator[dict[str, str]]:
    """Yield the events of a response, each with its number; an error after the first event is an event as well."""
    count = 0

    def event(name: str, **fields: Any) -> dict[str, str]:  # noqa: ANN401
        nonlocal count
        count += 1
        return {"event": name, "data": to_json({**fields, "type": name, "sequence_number": count - 1})}

    begun = head | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    place = {"item_id": _message(head, "", [])["id"], "output_index": 0, "content_index": 0}
    try:
        yield event("response.created", response=begun)
        yield event("response.output_item.added", output_index=0, item=_message(head, "in_progress", []))
        yield event("response.content_part.added", part=_part("", None), **place)
        with closing(stream):
            async for token in stream:
                if isinstance(token, FinalEvent):
                    whole = _response(token, body, head)
                    break
                logprobs = body.logprobs_of([token]) or []
                yield event("response.output_text.delta", delta=token.text, logprobs=logprobs, **place)
        (item,) = whole["output"]
        (part,) = item["content"]
        yield event("response.output_text.done", text=part["text"], logprobs=part["logprobs"], **place)
        yield event("response.content_part.done", part=part, **place)
        yield event("response.output_item.done", output_index=0, item=item)
        yield event(f"response.{whole['status']}", response=whole)
    except Exception as error:
        yield event("error", **error_body(RESPONSES, error)["error"])
