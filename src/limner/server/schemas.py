"""Requests and responses of the own API, as its OpenAPI description documents them."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from limner.bounds import (
    Bounds,
    LengthPenalty,
    PositiveShare,
    Probability,
    Seed,
    Temperature,
    VocabularySize,
)

EXAMPLE_IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
MAX_BEAM = 100
"""Largest beam of a request."""
MAX_TOKENS = 200
"""Largest length of a generated sentence in tokens."""
MAX_SENTENCES = 1_000
"""Largest number of sentences of one request."""

ServedBeam = Annotated[int, Bounds(1, MAX_BEAM)]
ServedLength = Annotated[int, Bounds(1, MAX_TOKENS)]
ServedMinimum = Annotated[int, Bounds(0, MAX_TOKENS)]


class Body(BaseModel):
    """Base class of requests: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


class DecodingBody(Body):
    """Fields of every request that generates sentences."""

    model: str | None = None
    """Name of a served model; default: the first that can do it."""
    beam_size: ServedBeam | None = None
    """Hypotheses kept in each step; 1 is greedy search; with `sample` the number of samples."""
    n_best: ServedBeam | None = None
    """Number of sentences to return."""
    length_penalty: LengthPenalty | None = None
    """Exponent of the length by which log-probabilities are divided."""
    min_length: ServedMinimum | None = None
    """Minimum length in tokens."""
    max_length: ServedLength | None = None
    """Maximum length in tokens."""
    sample: bool = False
    """Sample tokens instead of beam search."""
    temperature: Temperature | None = None
    """With `sample`: divisor of the log-probabilities."""
    top_k: VocabularySize | None = None
    """With `sample`: number of most probable tokens to draw from."""
    top_p: PositiveShare | None = None
    """With `sample`: probability mass of the most probable tokens to draw from."""
    seed: Seed | None = None
    """With `sample`: random seed."""
    must_include: Annotated[list[str], Field(max_length=20)] = []
    """Words or phrases that every sentence includes; 'dog|puppy' is satisfied by either."""
    stream: bool = False
    """Answer with server-sent events: `token` for each decided token, then `done`, or `error`."""

    @model_validator(mode="after")
    def _sampling_is_asked_for(self) -> Self:
        given = [name for name in ("temperature", "top_k", "top_p", "seed") if getattr(self, name) is not None]
        if given and not self.sample:
            raise ValueError(f"{', '.join(given)}: has an effect only with sample: true")
        return self

    def decoding(self) -> dict[str, Any]:
        """Return the changes of `DecodingSettings`."""
        names = ("beam_size", "n_best", "length_penalty", "min_length", "max_length")
        changes = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.sample:
            sampling = {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "seed")}
            changes["sample"] = {name: value for name, value in sampling.items() if value is not None}
        return changes


class DescribeBody(DecodingBody):
    """Request of POST /v1/describe."""

    model_config = ConfigDict(json_schema_extra={"example": {"image": EXAMPLE_IMAGE, "beam_size": 3, "n_best": 2}})

    image: str
    """Image in base64, or as a `data:` URL."""
    lang: str | None = None
    """Language of the captions; default: the first of the model."""
    prefix: Annotated[str, Field(max_length=1_000)] = ""
    """Words that every caption starts with."""
    tags: bool | None = None
    """Whether to name things in the image; default: as the model does."""
    min_confidence: Probability | None = None
    """Abstain from captions of lower confidence, where the model has one."""
    attention: bool = False
    """Return the attention over the image of each token, where the model has one."""


class TokenBody(BaseModel):
    """A generated token."""

    text: str
    log_prob: float
    token_id: int
    confidence: float | None = None
    attention: list[float] | None = None


class SentenceBody(BaseModel):
    """A generated sentence."""

    text: str
    log_prob: float
    score: float
    ended: bool
    confidence: float | None = None
    tokens: list[TokenBody]


class TagBody(BaseModel):
    """Name of a thing in the image."""

    name: str
    probability: float


class DescribeResponse(BaseModel):
    """Response of POST /v1/describe."""

    model_config = ConfigDict(protected_namespaces=())

    model: str
    lang: str
    captions: list[SentenceBody]
    tags: list[TagBody]
    grid_size: tuple[int, int] | None = None


class ModelBody(BaseModel):
    """A served model; the first four fields are those of OpenAI's list of models."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "limner"
    task: str
    languages: list[str]
    source: str | None
    uses_image: bool


class ModelList(BaseModel):
    """Response of GET /v1/models."""

    object: str = "list"
    data: list[ModelBody]


class ErrorDetail(BaseModel):
    """What was expected, what was found, and what to do."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Response to a request that cannot be answered."""

    error: ErrorDetail


class HealthBody(BaseModel):
    """Response of GET /health."""

    status: str
    version: str
    models: list[str]
    waiting: int
