"""The Responses interface of OpenAI: /v1/responses, with the messages and the sampling of /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field

from limner.apps.server.chats import ChatFields, Message, SamplingFields, finish_reason, read_chat
from limner.apps.server.errors import error_body, problem_of
from limner.apps.server.jobs import FinalEvent
from limner.apps.server.limner_api import ERRORS, EngineOf, sse_response
from limner.apps.server.openai_api import CompletionMessage
from limner.apps.server.request_bodies import JSONRoute, LenientBody
from limner.apps.server.service import EventStream
from limner.storage.json_text import to_json

PATH = "/v1/responses"
LOGPROBS = "message.output_text.logprobs"
"""Value of `include` that requests log-probabilities."""
REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is not complete, by the reason of its end."""


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
    200: {"content": {"text/event-stream": {}}, "description": "A response, or events with its parts"}
}


@router.post(PATH, responses=_STREAMED)
async def respond(body: ResponsesBody, engine: EngineOf, request: Request) -> Any:  # noqa: ANN401
    """Caption the image of the last message of the user, or translate its text."""
    body.response_format = None if body.text is None else body.text.format
    body.logprobs = LOGPROBS in (body.include or ())
    messages = [Message("system", body.instructions or "")]
    messages += [Message("user", body.input)] if isinstance(body.input, str) else [one.read() for one in body.input]
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
    status = "incomplete" if reason else "completed"
    details = reason and {"reason": reason}
    output = [_message(head, status, [part])]
    return head | {"status": status, "incomplete_details": details, "output": output, "usage": usage}


def _message(head: dict[str, Any], status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    id_ = head["id"].replace("resp_", "msg_")
    return {"id": id_, "type": "message", "role": "assistant", "status": status, "content": content}


def _part(text: str, logprobs: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


async def _events(stream: EventStream, body: ResponsesBody, head: dict[str, Any]) -> AsyncIterator[dict[str, str]]:
    """Yield the events of a response, each with its number; an error after the first one is an event as well."""
    count = 0

    def event(name: str, **fields: Any) -> dict[str, str]:  # noqa: ANN401
        nonlocal count
        count += 1
        return {"event": name, "data": to_json({"type": name, "sequence_number": count - 1, **fields})}

    begun = head | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    place = {"item_id": _message(head, "", [])["id"], "output_index": 0, "content_index": 0}
    try:
        yield event("response.created", response=begun)
        yield event("response.output_item.added", output_index=0, item=_message(head, "in_progress", []))
        yield event("response.content_part.added", part=_part("", None), **place)
        with closing(stream):
            async for token in stream:
                if not isinstance(token, FinalEvent):
                    logprobs = body.logprobs_of([token]) or []
                    yield event("response.output_text.delta", delta=token.text, logprobs=logprobs, **place)
                    continue
                whole = _response(token, body, head)
                item = whole["output"][0]
                part = item["content"][0]
                yield event("response.output_text.done", text=part["text"], logprobs=part["logprobs"], **place)
                yield event("response.content_part.done", part=part, **place)
                yield event("response.output_item.done", output_index=0, item=item)
                yield event(f"response.{whole['status']}", response=whole)
    except Exception as error:
        yield event("error", **error_body(PATH, problem_of(error))["error"])
