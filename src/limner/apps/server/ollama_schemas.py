"""Requests and responses of the Ollama interface, with the field names of Ollama."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from limner.apps.server.generation_options import ChatFields, GeneratedLogprob, SamplingFields
from limner.apps.server.request_bodies import LenientBody


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


class GenerationResponse(BaseModel):
    """Fields of both responses; the last line of a stream has the durations, in nanoseconds."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    model: str
    created_at: str
    done: bool
    done_reason: str | None = None
    """'stop', 'length' where the sentence was cut off, or 'load' of an empty request."""
    total_duration: int | None = None
    """From the arrival of the request to the end."""
    load_duration: int | None = None
    """Checking the request and decoding its image; the models are loaded before."""
    prompt_eval_count: int | None = None
    """Number of tokens of the source sentence, or of the words that the caption starts with."""
    prompt_eval_duration: int | None = None
    """Waiting, computing the features of the image, and decoding up to the first token that is decided."""
    eval_count: int | None = None
    """Number of generated tokens."""
    eval_duration: int | None = None
    """From the first token to the end."""
    logprobs: list[GeneratedLogprob] | None = None


class GenerateResponse(GenerationResponse):
    """Response, or one line of the response, of POST /api/generate."""

    response: str


class OllamaAnswer(BaseModel):
    """Message of the model."""

    role: str = "assistant"
    content: str


class ChatResponse(GenerationResponse):
    """Response, or one line of the response, of POST /api/chat."""

    message: OllamaAnswer


class ShowBody(LenientBody):
    """Request of POST /api/show."""

    model: str | None = None
    name: str | None = None
    """Earlier name of `model`."""


class EmbedBody(LenientBody):
    """Request of POST /api/embed."""

    model: Annotated[str, Field(min_length=1, max_length=300)]
    input: Annotated[str, Field(max_length=100_000)] | Annotated[list[str], Field(max_length=1_000)]
    """A text, or a list; texts of any length are embedded."""
    dimensions: int | None = None
    """Not supported."""


class EmbedResponse(BaseModel):
    """Response of POST /api/embed: vectors of length one."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingsBody(LenientBody):
    """Request of POST /api/embeddings, the earlier form of /api/embed."""

    model: Annotated[str, Field(min_length=1, max_length=300)]
    prompt: Annotated[str, Field(max_length=100_000)] | None = None


class OllamaError(BaseModel):
    """Response to a request that cannot be answered."""

    error: str
