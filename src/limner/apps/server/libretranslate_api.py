"""The LibreTranslate interface: /translate, /languages, /detect and /frontend/settings, as JSON or as a form."""

from __future__ import annotations

import asyncio
import html
import logging
import re
from collections.abc import Coroutine, Sequence
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from limner.apps.server.errors import InvalidRequestError
from limner.apps.server.images import read_image_reference
from limner.apps.server.jobs import GenerationRequest
from limner.apps.server.limner_api import EngineOf
from limner.apps.server.ollama_api import ERRORS
from limner.apps.server.request_bodies import FORM, FormRoute, LenientBody, reads
from limner.apps.server.service import Result, ServiceEngine
from limner.errors import counted, extra_module
from limner.generation.sentences import SENTENCE_END, is_outside_domain
from limner.text.queries import LANGUAGE_NAMES

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

logger = logging.getLogger(__name__)
AUTO = "auto"
"""Source language that requests detection."""
_SPACE = r"(?:(?<!\s)\s+)?"
_ENDS = rf"{_SPACE}[\r\n]\s*|{SENTENCE_END.pattern}"
_UNREAD = "|".join(rf"<{name}(?=[\s/>]).*?(?:</{name}|\Z)[^>]*>?" for name in ("script", "style"))
_TAG = rf"<!--.*?(?:-->|\Z)|{_UNREAD}|<[a-z/!?](?:=\s*\"[^\"]*\"|=\s*'[^']*'|[^>])*+>?"
SENTENCE_ENDS = {"text": re.compile(f"({_ENDS})"), "html": re.compile(rf"({_SPACE}(?si:{_TAG})\s*|{_ENDS})")}
"""Patterns between the sentences of a text, by format, of linear time; tags, comments and scripts separate
sentences."""
MAX_TEXTS = 1_000
"""Largest number of texts of one request."""
MAX_CHARACTERS = 100_000
"""Largest number of characters of a text."""
MAX_ALTERNATIVES = 19

MAX_DETECTED = 2_000
"""Number of characters from which the language of a text is detected."""

Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class TranslateBody(LenientBody):
    """Request of POST /translate."""

    q: Text | Annotated[list[Text], Field(max_length=MAX_TEXTS)]
    """Text, or list of texts."""
    source: Annotated[str, Field(max_length=40)]
    """Language of the text, or `auto`."""
    target: Annotated[str, Field(max_length=40)]
    """Language of the translation."""
    format: Literal["text", "html"] = "text"
    """`html` keeps tags, and translates the text between two tags alone."""
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


class DetectBody(LenientBody):
    """Request of POST /detect."""

    q: Text
    """Text to detect the language of."""
    api_key: str | None = None
    """API key, as an alternative to the header Authorization."""


router = APIRouter(tags=["LibreTranslate"], responses=ERRORS, route_class=FormRoute)


@router.post("/translate", openapi_extra=reads(FORM, TranslateBody))
async def translate(body: TranslateBody, engine: EngineOf) -> dict[str, Any]:
    """Translate a text, or several, sentence by sentence; the response has lists where the request has a list.

    The additional field `outOfDomain` says that the text is outside the domain of the model.
    """
    texts = [body.q] if isinstance(body.q, str) else body.q
    if not any(texts):
        raise InvalidRequestError("q: expected a text, got nothing", "q")
    images = await _images(body, len(texts), engine)
    detected = await _sources(texts, body, engine)
    inputs = zip(texts, detected, images, strict=True)
    waiting = [_translate(engine, text, source.language, body, image) for text, source, image in inputs]
    responses: list[dict[str, Any]] = []
    translated = await _await_all(waiting, engine.settings.max_batch)
    for source, ((best, *alternatives), is_outside) in zip(detected, translated, strict=True):
        response: dict[str, Any] = {"translatedText": best, "outOfDomain": is_outside}
        if body.source == AUTO:
            response["detectedLanguage"] = source
        if body.alternatives:
            response["alternatives"] = [*dict.fromkeys(text for text in alternatives if text != best)]
        responses.append(response)
    if isinstance(body.q, str):
        return responses[0]
    return {name: [response[name] for response in responses] for name in responses[0]}


@router.get("/languages")
async def languages(engine: EngineOf) -> list[dict[str, Any]]:
    """List the languages of the translation models."""
    pairs = _pairs(engine)
    codes = dict.fromkeys([source for source, _ in pairs] + [target for _, target in pairs])
    return [_named(code) | {"targets": [target for source, target in pairs if source == code]} for code in codes]


@router.post("/detect", openapi_extra=reads(FORM, DetectBody))
async def detect(body: DetectBody, engine: EngineOf) -> list[DetectedLanguage]:
    """Detect the language of a text among the languages of the served models."""
    if not body.q:
        raise InvalidRequestError("q: expected a text, got nothing", "q")
    return await _detect(body.q, engine)


@router.get("/frontend/settings")
async def frontend_settings(engine: EngineOf, request: Request) -> dict[str, Any]:
    """Return settings for pages."""
    (source, target), has_keys = (_pairs(engine) or [("en", "en")])[0], request.app.state.keys.required
    limits = {"charLimit": MAX_CHARACTERS, "frontendTimeout": 500, "apiKeys": has_keys, "keyRequired": has_keys}
    absent = {"suggestions": False, "filesTranslation": False, "supportedFilesFormat": []}
    return {**limits, **absent, "language": {"source": _named(source), "target": _named(target)}}


def _named(code: str) -> dict[str, str]:
    return {"code": code, "name": LANGUAGE_NAMES.get(code, code)}


def _pairs(engine: ServiceEngine) -> list[tuple[str, str]]:
    """Return the pairs of source and target language that can be translated."""
    return [*dict.fromkeys((model.source, lang) for model in engine.models if model.source for lang in model.languages)]


async def _images(body: TranslateBody, count: int, engine: ServiceEngine) -> list[bytes | None]:
    if body.image is None:
        return [None] * count
    references = body.image if isinstance(body.image, list) else [body.image] * count
    if len(references) != count:
        raise InvalidRequestError(
            f"image: expected an image for each text, got {len(references)} images and {count} texts", "image"
        )
    try:
        async with asyncio.timeout(engine.settings.timeout):
            return [
                None if reference is None else await read_image_reference(reference, engine.fetcher)
                for reference in references
            ]
    except TimeoutError:
        raise engine.too_late() from None


async def _sources(texts: Sequence[str], body: TranslateBody, engine: ServiceEngine) -> list[DetectedLanguage]:
    """Return the language of each text, detected where it is `auto`; NotSupportedError if no model reads it.

    A text may be detected to be in the target language.
    """
    able = [source for source, target in _pairs(engine) if target == body.target]
    if body.source != AUTO:
        engine.models.translator(None, body.source, body.target)
        return [DetectedLanguage(language=body.source, confidence=100)] * len(texts)
    if not able:
        engine.models.translator(None, None, body.target)
    able.append(body.target)
    return [next(source for source in await _detect(text, engine) if source.language in able) for text in texts]


async def _detect(text: str, engine: ServiceEngine) -> list[DetectedLanguage]:
    """Detect a language outside of the event loop."""
    known = [lang for pair in _pairs(engine) for lang in pair]
    known = known or [lang for served in engine.models for lang in served.languages]
    return await engine.compute("language", lambda: detect_language(text, known))


async def _translate(
    engine: ServiceEngine, text: str, source: str, body: TranslateBody, image: bytes | None
) -> tuple[list[str], bool]:
    """Translate each sentence of a text; return the text with the best translations, with the second, and so on.

    The second value is whether a sentence is outside of what the model knows, which the log says. A text in the target
    language is returned as it is.
    """
    if source == body.target:
        return [text], False
    is_html, outside = body.format == "html", 0
    parts = SENTENCE_ENDS[body.format].split(text)
    decoding = {"n_best": body.alternatives + 1} if body.alternatives else {}
    served = engine.models.translator(None, source, body.target)
    translations = []
    for sentence, separator in zip(parts[::2], [*parts[1::2], ""], strict=True):
        texts, source_text = [sentence], html.unescape(sentence) if is_html else sentence
        if any(map(str.isalpha, source_text)):
            request = GenerationRequest(served, served.generator(body.target), image, source_text, decoding)
            final = await (await engine.generate(request)).final()
            texts = [html.escape(item.text, False) if is_html else item.text for item in final.sentences]
            outside += is_outside_domain(final.job.source_tokens or (), final.best)
        translations.append([translated + separator for translated in texts])
    if outside:
        logger.warning("%s of a text: unlike what %s knows, a guess", counted(outside, "sentence"), served.name)
    count = max(map(len, translations))
    return ["".join(texts[min(rank, len(texts) - 1)] for texts in translations) for rank in range(count)], outside > 0


async def _await_all(waiting: Sequence[Coroutine[Any, Any, Result]], at_once: int) -> list[Result]:
    """Await all awaitables, a limited number at once; the first error ends the others."""
    free = asyncio.Semaphore(at_once)

    async def limited(task: Coroutine[Any, Any, Result]) -> Result:
        async with free:
            return await task

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(limited(task)) for task in waiting]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def detect_language(text: str, languages: Sequence[str]) -> list[DetectedLanguage]:
    """Return the possible languages of a text, the most probable first.

    py3langid classifies byte n-grams by naive Bayes. The confidences add up to 100; without letters they are equal.
    Languages unknown to it have 0. MissingExtraError if py3langid is not installed.
    """
    known = {lang: 0.0 for lang in languages if lang in _language_identifier(()).labels}
    if known:
        known = dict(_language_identifier(tuple(known)).rank(text[:MAX_DETECTED]))
    scores = known | {lang: 0.0 for lang in languages if lang not in known}
    return [DetectedLanguage(language=lang, confidence=round(100 * float(p), 1)) for lang, p in scores.items()]


@cache
def _language_identifier(languages: tuple[str, ...]) -> LanguageIdentifier:
    """Return an identifier of `languages`, or of all languages for (); the first call reads its model."""
    if languages:
        identifier = copy(_language_identifier(()))
        identifier.set_languages(languages)
        return identifier
    langid = extra_module("py3langid.langid", "detecting languages", "serve")
    all_languages: LanguageIdentifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    return all_languages
