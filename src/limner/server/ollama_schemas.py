"""Requests and responses of the Ollama interface, with the field names of Ollama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from limner.server.errors import NotSupportedError

MAX_TOP_LOGPROBS = 20

_NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "min_p": (0,),
    "tfs_z": (0, 1),
    "typical_p": (0, 1),
    "repeat_penalty": (0, 1),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "mirostat": (0,),
}
"""Options that change the tokens and that the models do not have, with the values that change nothing."""


class OllamaBody(BaseModel):
    """Base class: as in Ollama, unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True, protected_namespaces=())


class Options(OllamaBody):
    """Options of generation. Those of memory and hardware, such as num_ctx and num_thread, have no effect."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    num_predict: int | None = None
    """Maximum number of tokens; zero or below for the maximum of the model."""
    temperature: Annotated[float, Field(ge=0, le=1000)] | None = None
    """0: the model's own decoding, usually beam search; above: sampling."""
    top_k: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Sample from the most probable tokens; 0 for all."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample from the most probable tokens with this mass."""
    seed: int | None = None
    """Seed of sampling; negative for a random one."""
    stop: list[str] | str | None = None
    """Texts that end the sentence, and are left out."""

    def require_supported(self) -> None:
        """Check the options that the models do not have.

        Raises:
            NotSupportedError: one has a value that would change the result.
        """
        for name, neutral in _NEUTRAL.items():
            value = (self.model_extra or {}).get(name)
            if value is not None and value not in neutral:
                raise NotSupportedError(
                    f"options.{name}: not supported, and {value!r} would change the result; leave it out", name
                )

    @property
    def max_tokens(self) -> int | None:
        """Maximum number of tokens, None for that of the model."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None

    @property
    def stops(self) -> list[str]:
        """Texts that end the sentence."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class GenerationBody(OllamaBody):
    """Fields of both requests that generate."""

    model: Annotated[str, Field(min_length=1, max_length=300)]
    """Name of a served model; a tag selects one of its languages, such as 'en:de'."""
    stream: bool | None = None
    """Whether to answer with one line of JSON a token; default: true."""
    format: str | dict[str, Any] | None = None
    """Not supported: JSON and JSON schemas are refused."""
    options: Options | None = None
    keep_alive: float | str | None = None
    """Without effect: the models stay in memory."""
    think: bool | str | None = None
    """Not supported: true is refused."""
    logprobs: bool | None = None
    """Return the log-probability of each token."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    """Number of probable tokens to return at each position."""

    def require_supported(self) -> None:
        """Check for what the models cannot do.

        Raises:
            NotSupportedError: JSON, thinking, tools, or an option that the models do not have.
        """
        for name in ("format", "think", "tools", "suffix", "template", "context"):
            if getattr(self, name, None):
                raise NotSupportedError(f"{name}: the models of this service do not support it; leave it out", name)
        if self.options is not None:
            self.options.require_supported()


class GenerateBody(GenerationBody):
    """Request of POST /api/generate."""

    prompt: str | None = None
    """Request for a description, "Caption: …" with the words that the caption starts with, or a source sentence."""
    system: str | None = None
    images: list[str] | None = None
    """One image in base64."""
    suffix: str | None = None
    """Not supported."""
    template: str | None = None
    """Not supported."""
    context: list[int] | None = None
    """Not supported."""


class OllamaMessage(OllamaBody):
    """A message of a chat."""

    role: str
    content: str | None = None
    images: list[str] | None = None


class ChatBody(GenerationBody):
    """Request of POST /api/chat."""

    messages: list[OllamaMessage] | None = None
    tools: list[Any] | None = None
    """Not supported."""


class OllamaToken(BaseModel):
    """A token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class OllamaLogprob(OllamaToken):
    """A generated token, with the most probable ones at its position."""

    top_logprobs: list[OllamaToken] | None = None


class GenerationResponse(BaseModel):
    """Fields of both responses; the last line of a stream has the durations, in nanoseconds."""

    model_config = ConfigDict(use_attribute_docstrings=True, protected_namespaces=())

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
    logprobs: list[OllamaLogprob] | None = None


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


class ModelDetails(BaseModel):
    """Kind and size of a model."""

    parent_model: str = ""
    format: str = "safetensors"
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str = "F32"


class ListedModel(BaseModel):
    """A model of GET /api/tags."""

    model_config = ConfigDict(protected_namespaces=())

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class TagsResponse(BaseModel):
    """Response of GET /api/tags."""

    models: list[ListedModel]


class RunningModel(ListedModel):
    """A model of GET /api/ps."""

    expires_at: str
    size_vram: int
    context_length: int


class RunningResponse(BaseModel):
    """Response of GET /api/ps."""

    models: list[RunningModel]


class ShowBody(OllamaBody):
    """Request of POST /api/show."""

    model: str | None = None
    name: str | None = None
    """Earlier name of `model`."""


class ShowResponse(BaseModel):
    """Response of POST /api/show."""

    model_config = ConfigDict(protected_namespaces=())

    license: str
    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, str | int | list[str] | None]
    capabilities: list[str]
    modified_at: str


class VersionResponse(BaseModel):
    """Response of GET /api/version."""

    version: str


class EmbedBody(OllamaBody):
    """Request of POST /api/embed."""

    model: Annotated[str, Field(min_length=1, max_length=300)]
    input: Annotated[str, Field(max_length=100_000)] | Annotated[list[str], Field(max_length=1_000)]
    truncate: bool | None = None
    """Without effect: texts of any length are embedded."""
    dimensions: int | None = None
    """Not supported."""
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None


class EmbedResponse(BaseModel):
    """Response of POST /api/embed: vectors of length one."""

    model_config = ConfigDict(protected_namespaces=())

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingsBody(OllamaBody):
    """Request of POST /api/embeddings, the earlier form of /api/embed."""

    model: Annotated[str, Field(min_length=1, max_length=300)]
    prompt: Annotated[str, Field(max_length=100_000)] | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None


class EmbeddingsResponse(BaseModel):
    """Response of POST /api/embeddings."""

    embedding: list[float]


class OllamaError(BaseModel):
    """Response to a request that cannot be answered."""

    error: str
