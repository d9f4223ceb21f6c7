"""Requests and responses of the OpenAI interface, with the field names of OpenAI."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from limner.apps.server.conversations import Message
from limner.apps.server.errors import NotSupportedError
from limner.apps.server.generation_options import ChatFields, GeneratedLogprob, SamplingFields
from limner.apps.server.request_bodies import LenientBody

MAX_CHOICES = 20
"""Largest number of sentences of one request."""


class ImageURL(LenientBody):
    """Image of a message."""

    url: str
    """`data:` URL of an image; http(s) URLs only of hosts that the service allows."""


class ContentPart(LenientBody):
    """Part of a message: `text` or `image_url`; other types are refused."""

    type: str
    text: str | None = None
    image_url: ImageURL | None = None


class CompletionMessage(LenientBody):
    """A message of a chat."""

    role: str
    content: str | list[ContentPart] | None = None

    def read(self) -> Message:
        """Return the text and the images.

        Raises:
            NotSupportedError: a part is neither text nor an image.
        """
        if self.content is None or isinstance(self.content, str):
            return Message(self.role, self.content or "")
        texts, images = [], []
        for part in self.content:
            if part.type == "image_url" and part.image_url is not None:
                images.append(part.image_url.url)
            elif part.type in ("text", "refusal"):
                texts.append(part.text or "")
            else:
                raise NotSupportedError(
                    f"messages.content: expected parts of type text or image_url, got '{part.type[:40]}'", "messages"
                )
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


class Logprobs(BaseModel):
    """Log-probabilities of a choice."""

    content: list[GeneratedLogprob]
    refusal: None = None


class CompletionAnswer(BaseModel):
    """Message of the model."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class CompletionChoice(BaseModel):
    """A generated sentence."""

    index: int
    message: CompletionAnswer
    logprobs: Logprobs | None = None
    finish_reason: Literal["stop", "length"]


class Usage(BaseModel):
    """Numbers of tokens: of the source sentence or the prefix, and of the generated sentences."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """Response of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
