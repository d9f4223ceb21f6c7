"""Requests and responses of the API of Limner, as its OpenAPI description documents them."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from limner.bounds import Bounds, Count, LengthPenalty, PositiveShare, Probability, Seed, Temperature

EXAMPLE_IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
MAX_BEAM = 100
"""Largest beam of a request."""
MAX_TOKENS = 200
"""Largest length of a generated sentence in tokens."""
MAX_TEXT = 10_000
"""Largest length of a text in characters."""
MAX_SENTENCES = 100
"""Largest number of sentences of one request."""

SAMPLING = ("temperature", "top_k", "top_p", "seed")
"""Fields that have an effect only on samples."""

ServedBeam = Annotated[int, Bounds(1, MAX_BEAM)]
ServedLength = Annotated[int, Bounds(1, MAX_TOKENS)]
ServedMinimum = Annotated[int, Bounds(0, MAX_TOKENS)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]


class Body(BaseModel):
    """Base class of requests: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


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
    top_k: Count | None = None
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
        if not self.sample and (names := self._set(SAMPLING)):
            raise ValueError(f"{', '.join(names)}: has an effect only with sample: true")
        return self

    def decoding(self) -> dict[str, Any]:
        """Return the changes of `DecodingSettings`."""
        changes = self._set(("beam_size", "n_best", "length_penalty", "min_length", "max_length"))
        return changes | {"sample": self._set(SAMPLING)} if self.sample else changes

    def _set(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return the fields of some names that are set."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


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
    concepts: bool = True
    """Whether the concepts of the model choose among the captions of the beam; `false` for the captions of the search
    alone. Without effect on models without concepts."""
    min_confidence: Probability | None = None
    """Confidence below which a caption is replaced by a plain sentence, or withheld; default: as chosen with the
    concepts. Models without concepts refuse it."""
    attention: bool = False
    """Return the attention over the image for each token, if the model has attention."""


class TokenBody(BaseModel):
    """A generated token."""

    model_config = ConfigDict(from_attributes=True)

    text: str
    log_prob: float
    token_id: int
    attention: list[float] | None = None


class SentenceBody(BaseModel):
    """A generated sentence."""

    model_config = ConfigDict(from_attributes=True)

    text: str
    display_text: str
    """The text; empty where the caption is withheld."""
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

    model: str
    lang: str
    captions: list[SentenceBody]
    tags: list[TagBody]
    abstained: bool = False
    """Whether the best caption is withheld: nothing in the image is probable enough."""
    grid_size: tuple[int, int] | None = None
    box: tuple[float, float, float, float] | None = None
    """Left, top, right and bottom of the part of the image under the grid of attention, as fractions of its sides."""


class ExplainedWord(BaseModel):
    """A word of an explained sentence."""

    text: str
    log_prob: float
    """Natural logarithm of the probability of its tokens."""


class SentenceExplanation(BaseModel):
    """Attention of a model for each word of a sentence; weights have one row for each word of `target`."""

    source: tuple[str, ...]
    """Words of the source sentence; empty for a caption."""
    target: list[ExplainedWord]
    alignment: list[list[float]] | None
    """Weights over the source words."""
    attention: list[list[float]] | None
    """Weights over the image locations."""
    gate: list[float] | None
    """Gate of the image context, 0 to 1."""
    grid_size: tuple[int, int] | None
    """Rows and columns of the image locations."""
    box: tuple[float, float, float, float] | None
    """Left, top, right and bottom of the part of the image under the grid, as fractions of its sides."""


class TranslationRequest(DecodingBody):
    """Request of POST /v1/translate."""

    model_config = ConfigDict(json_schema_extra={"example": {"text": "A dog runs.", "source": "en", "target": "de"}})

    text: Text | Annotated[list[Text], Field(max_length=MAX_SENTENCES)]
    """A sentence, or a list of them."""
    source: str | None = None
    """Language of the text; default: the language of the model."""
    target: str | None = None
    """Language of the translation; default: the language of the model."""
    image: str | None = None
    """Image of the sentences in base64, or as a `data:` URL."""
    explain: bool = False
    """Return the alignment, the attention over the image and the gate of each word of the best translation; for one
    sentence."""


class TranslationResponse(BaseModel):
    """Response of POST /v1/translate; for a list of sentences `translations` has a list for each."""

    model: str
    source: str
    lang: str
    translations: list[SentenceBody] | list[list[SentenceBody]]
    out_of_domain: bool | list[bool]
    """Whether the sentence is unlike the training sentences, so that its translation is a guess: many of its words are
    unknown, or the translation is improbable. False for samples and with `must_include`."""
    explanation: SentenceExplanation | None = None


class CaptionerBody(Body):
    """Fields of requests that read an image with a captioner."""

    model: str | None = None
    """Name of a served captioner; default: the first."""
    image: str
    """Image in base64, or as a `data:` URL."""
    lang: str | None = None
    """Language of the sentences; default: the first of the model."""


class ScoreBody(CaptionerBody):
    """Request of POST /v1/score."""

    model_config = ConfigDict(json_schema_extra={"example": {"image": EXAMPLE_IMAGE, "sentences": ["a dog runs"]}})

    sentences: Annotated[list[Text], Field(min_length=1, max_length=MAX_SENTENCES)]
    """Sentences whose probability given the image is computed."""


class ScoredSentence(BaseModel):
    """Probability of a sentence given the image."""

    text: str
    log_prob: float
    tokens: int
    perplexity: float
    unknown: int


class ScoreResponse(BaseModel):
    """Response of POST /v1/score."""

    scores: list[ScoredSentence]


class SearchBody(Body):
    """Request of POST /v1/search: a query or an image."""

    model_config = ConfigDict(json_schema_extra={"example": {"query": "a dog on the beach", "limit": 10}})

    index: str | None = None
    """Name of an index; default: the first."""
    query: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)] | None = None
    """Sentence that the images are searched by."""
    image: str | None = None
    """Image in base64, or as a `data:` URL, that similar images are searched by."""
    limit: Annotated[int, Field(ge=1, le=1_000)] = 10
    """Number of images to return."""

    @model_validator(mode="after")
    def _has_one_query(self) -> Self:
        if (self.query is None) == (self.image is None):
            raise ValueError("expected either a query or an image")
        return self


class SearchHit(BaseModel):
    """An image of the results."""

    name: str
    """Path relative to the indexed folder, or the id of an item of a collection."""
    score: float
    """log P(query | image), another score of the query, or the similarity to the image of the request."""
    caption: str
    """Caption by the model that made the index, or the first sentence of an item of a collection."""
    confidence: float | None = None
    tags: list[str] = []
    abstained: bool = False
    """Whether the caption is withheld: nothing in the image is probable enough."""
    thumbnail: str
    """Path of a small copy, relative to the address of the service."""


class SearchFacts(BaseModel):
    """Extent of the search in a collection."""

    index: str | None
    """Kind of the index; null for a search of all images."""
    images: int
    """Number of images that were searched."""
    scored: int
    """Number of images whose score was computed."""
    share: float
    """Share of the images whose score was computed."""
    exact: bool
    """Whether the results are proven to be the best images, by the index or because all images were scored."""
    gap: float | None
    """Maximum difference in log-probability by which another image may exceed the last result; null if unknown."""


class SearchResponse(BaseModel):
    """Response of POST /v1/search."""

    index: str
    hits: list[SearchHit]
    search: SearchFacts | None = None
    """Extent of the search in a collection; null for a folder."""


class ExplainBody(CaptionerBody):
    """Request of POST /v1/explain."""

    model_config = ConfigDict(json_schema_extra={"example": {"image": EXAMPLE_IMAGE, "caption": "a dog runs"}})

    caption: Text | None = None
    """Sentence to explain; default: the caption that the model generates."""


class ExplainResponse(BaseModel):
    """Response of POST /v1/explain."""

    model: str
    lang: str
    caption: str
    explanation: SentenceExplanation


class ModelBody(BaseModel):
    """A served model; the first four fields follow OpenAI's list of models."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "limner"
    task: str
    languages: list[str]
    source: str | None
    uses_image: bool
    explains: bool
    """Whether attention, alignments and scores can be requested."""
    beam_size: int
    """Default beam size of the model."""
    length_penalty: float
    """Default length penalty of the model."""


class IndexBody(BaseModel):
    """An indexed folder, or a collection."""

    name: str
    images: int
    """Number of images of a folder, or of items of a collection."""


class ModelList(BaseModel):
    """Response of GET /v1/models."""

    object: str = "list"
    data: list[ModelBody]
    indexes: list[IndexBody]
    """Indexed folders, which POST /v1/search searches."""


class ErrorDetail(BaseModel):
    """Expected value, value of the request, and remedy."""

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
