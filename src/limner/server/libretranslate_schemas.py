"""Requests and responses of the LibreTranslate interface, with its field names."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from limner.server.request_bodies import LenientBody

MAX_TEXTS = 1_000
"""Largest number of texts of one request."""
MAX_CHARACTERS = 100_000
"""Largest number of characters of a text."""
MAX_ALTERNATIVES = 19

Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class TranslateBody(LenientBody):
    """Request of POST /translate."""

    q: Text | Annotated[list[Text], Field(max_length=MAX_TEXTS)]
    """Text, or list of texts."""
    source: Annotated[str, Field(max_length=40)]
    """Language of the text, or `auto`."""
    target: Annotated[str, Field(max_length=40)]
    """Language of the translation."""
    format: Annotated[str, Field(max_length=40)] = "text"
    """`text`; HTML is refused."""
    alternatives: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] = 0
    """Number of other translations to return, where there are any."""
    api_key: str | None = None
    """API key, as an alternative to the header Authorization."""
    image: str | list[str | None] | None = None
    """Image of the text in base64 or as a `data:` URL, or one for each text; not a field of LibreTranslate."""


class DetectedLanguage(BaseModel):
    """A language with a confidence from 0 to 100."""

    language: str
    confidence: float


class TranslateResponse(BaseModel):
    """Response of POST /translate; lists where the request has a list."""

    translatedText: str | list[str]
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None
    alternatives: list[str] | list[list[str]] | None = None


class DetectBody(LenientBody):
    """Request of POST /detect."""

    q: Text
    """Text to detect the language of."""
    api_key: str | None = None
    """API key, as an alternative to the header Authorization."""


class NamedLanguage(BaseModel):
    """A language."""

    code: str
    name: str


class Language(NamedLanguage):
    """A language with the languages that it can be translated to."""

    targets: list[str]


class FrontendSettings(BaseModel):
    """Settings that pages for LibreTranslate read."""

    charLimit: int = MAX_CHARACTERS
    frontendTimeout: int = 500
    apiKeys: bool
    keyRequired: bool
    suggestions: bool = False
    filesTranslation: bool = False
    supportedFilesFormat: list[str] = []
    language: dict[str, NamedLanguage]
    """The `source` and `target` of the first translation model."""
