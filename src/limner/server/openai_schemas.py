"""Requests and responses of the OpenAI interface, with the field names of OpenAI."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from limner.server.conversations import Message
from limner.server.errors import NotSupportedError

MAX_CHOICES = 20
"""Largest number of sentences of one request."""
MAX_TOP_LOGPROBS = 20

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "moderation": (),
}
"""Fields for what the models cannot do, with the values that request nothing."""


class OpenAIBody(BaseModel):
    """Base class: fields that are not named here have no effect."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True, protected_namespaces=())


class ImageURL(OpenAIBody):
    """Image of a message."""

    url: str
    """`data:` URL of an image; http(s) URLs only of hosts that the service allows."""
    detail: str | None = None
    """Without effect."""


class ContentPart(OpenAIBody):
    """Part of a message: `text` or `image_url`; other types are refused."""

    type: str
    text: str | None = None
    image_url: ImageURL | None = None


class CompletionMessage(OpenAIBody):
    """A message of a chat."""

    role: str
    content: str | list[ContentPart] | None = None

    def read(self) -> Message:
        """Return the text and the images.

        Raises:
            NotSupportedError: a part is neither text nor an image, or the message is of a tool.
        """
        if self.role not in ("system", "developer", "user", "assistant"):
            raise NotSupportedError(
                f"messages.role: expected system, developer, user or assistant, got '{self.role[:40]}'", "messages"
            )
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


class StreamOptions(OpenAIBody):
    """Options of a stream."""

    include_usage: bool | None = None
    """Send the numbers of tokens before the end of the stream."""


class CompletionBody(OpenAIBody):
    """Request of POST /v1/chat/completions."""

    model: Annotated[str, Field(min_length=1, max_length=300)]
    """Name of a served model; a tag selects one of its languages, such as 'en:de'."""
    messages: Annotated[list[CompletionMessage], Field(min_length=1, max_length=1_000)]
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    """Number of sentences: the best of the beam, or samples."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of tokens; earlier name of `max_completion_tokens`."""
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of tokens; the maximum of the model applies as well."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """0, or none: the model's own decoding, usually beam search; above: sampling."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample from the most probable tokens with this mass."""
    top_k: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Sample from the most probable tokens; not a field of OpenAI."""
    seed: int | None = None
    """Seed of sampling."""
    stop: str | list[str] | None = None
    """Texts that end the sentence, and are left out."""
    stream: bool | None = None
    """Answer with server-sent events."""
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    """Return the log-probability of each token."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    """Number of probable tokens to return at each position."""
    presence_penalty: float | None = None
    """Not supported, except 0."""
    frequency_penalty: float | None = None
    """Not supported, except 0."""
    logit_bias: dict[str, float] | None = None
    """Not supported."""
    tools: list[Any] | None = None
    """Not supported."""
    tool_choice: Any = None
    """Not supported."""
    functions: list[Any] | None = None
    """Not supported."""
    function_call: Any = None
    """Not supported."""
    response_format: dict[str, Any] | None = None
    """Not supported, except text."""
    modalities: list[str] | None = None
    """Not supported, except text."""
    audio: Any = None
    """Not supported."""
    prediction: Any = None
    """Not supported."""
    web_search_options: Any = None
    """Not supported."""
    moderation: Any = None
    """Not supported."""

    def require_supported(self) -> None:
        """Check for what the models cannot do.

        Raises:
            NotSupportedError: a field requests it.
        """
        for name, neutral in _NEUTRAL.items():
            value = getattr(self, name)
            if value is not None and value not in neutral:
                raise NotSupportedError(f"{name}: the models of this service do not support it; leave it out", name)
        if self.top_logprobs is not None and not self.logprobs:
            raise NotSupportedError("top_logprobs: expected logprobs to be true as well", "top_logprobs")

    @property
    def stops(self) -> list[str]:
        """Texts that end the sentence."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class TopLogprob(BaseModel):
    """A token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A generated token, with the most probable ones at its position."""

    top_logprobs: list[TopLogprob] = []


class Logprobs(BaseModel):
    """Log-probabilities of a choice."""

    content: list[TokenLogprob]
    refusal: None = None


FinishReason = Literal["stop", "length"]


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
    finish_reason: FinishReason


class Usage(BaseModel):
    """Numbers of tokens: of the source sentence or the prefix, and of the generated sentences."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """Response of POST /v1/chat/completions."""

    model_config = ConfigDict(protected_namespaces=())

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class Delta(BaseModel):
    """Text that an event adds to a choice."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    """Part of a choice."""

    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None


class CompletionChunk(BaseModel):
    """Data of an event of a stream."""

    model_config = ConfigDict(protected_namespaces=())

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
