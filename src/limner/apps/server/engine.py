"""The engine: what the routes call. Requests wait here, are computed by a worker, and their events are streamed.

    stream = await engine.describe(image, decoding={"beam_size": 5})    # errors of the request are raised here
    async for event in stream: ...                                      # TokenEvent …, then one FinalEvent
    final = await stream.final()                                        # or: only the end
    await stream.aclose()                                               # cancels what is not computed yet

`image` is the encoded bytes of an image (see `images.py`). `decoding` has fields of `DecodingSettings` to
change, such as beam_size, n_best, length_penalty, min_length, max_length, and sample={"temperature": …, "seed": …}.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from limner.apps.server.errors import (
    InvalidRequestError,
    NotSupportedError,
    QueueFullError,
    RequestTimeoutError,
    StoppingError,
)
from limner.apps.server.events import Event, FinalEvent
from limner.apps.server.explanations import SentenceExplanation, explain_sentence
from limner.apps.server.features import FeatureCache
from limner.apps.server.images import ImageFetcher, require_size
from limner.apps.server.indexes import ServedIndexes
from limner.apps.server.jobs import GenerationRequest, Job, make_job
from limner.apps.server.metrics import Metrics
from limner.apps.server.models import Models, ServedModel
from limner.apps.server.pools import Kind, Pools
from limner.apps.server.schemas import SearchResponse
from limner.apps.server.settings import ServerSettings
from limner.apps.server.worker import Worker
from limner.generation.request import RuleOptions
from limner.inference.sentences import EMPTY_TRANSLATION

if TYPE_CHECKING:
    from limner.inference.scorer import SentenceScore

Result = TypeVar("Result")
Decoding = Mapping[str, Any]


class EventStream(AsyncIterator[Event]):
    """Events of one accepted request: tokens as they are decided, and a `FinalEvent` at the end.

    Closing the stream, or dropping it, cancels the request. Reading it raises `RequestTimeoutError` after the time
    limit.
    """

    def __init__(
        self, engine: ServiceEngine, job: Job, events: asyncio.Queue[Event | BaseException], deadline: float
    ) -> None:
        self._engine, self._job, self._events, self._deadline = engine, job, events, deadline
        self._open = True

    @property
    def job(self) -> Job:
        """The request as it is computed, which `ServiceEngine.explain` explains after its end."""
        return self._job

    async def __anext__(self) -> Event:
        """Return the next event."""
        if not self._open:
            raise StopAsyncIteration
        try:
            remaining = self._deadline - time.monotonic()
            event = await asyncio.wait_for(self._events.get(), max(0.0, remaining))
        except TimeoutError:
            self._close()
            raise self._engine.too_late() from None
        except BaseException:
            self._close()
            raise
        if isinstance(event, FinalEvent):
            self._close()
        elif isinstance(event, BaseException):
            self._close()
            raise event
        return event

    async def final(self) -> FinalEvent:
        """Read the stream to its end, without the tokens before it; return the final event."""
        self._job.streams = False
        async for event in self:
            if isinstance(event, FinalEvent):
                return event
        raise AssertionError("a stream without a final event")

    async def aclose(self) -> None:
        """Cancel the request unless it is finished."""
        self._close()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._job.is_done = True
            self._engine.release()


class ServiceEngine:
    """Served models, the queue of requests, and the worker that computes them."""

    def __init__(self, models: Models, settings: ServerSettings, indexes: ServedIndexes) -> None:
        """Create an engine that `start` starts."""
        self.models, self.settings, self.indexes = models, settings, indexes
        self.active = 0
        self.stopping = False
        self._idle = asyncio.Event()
        self.fetcher = ImageFetcher(settings)
        self._pools = Pools()
        self._computing: Counter[Kind] = Counter()
        self.cache = FeatureCache(settings.feature_cache)
        self.metrics = Metrics(several_processes=settings.workers > 1)
        self._worker = Worker(settings, self.cache, self.metrics)

    def start(self) -> None:
        """Start the threads of the worker."""
        self._worker.start()

    async def stop(self) -> None:
        """Refuse new requests, finish the accepted ones within `stop_timeout`, and end the threads."""
        self.stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.stop_timeout):
                while self.active:
                    self._idle.clear()
                    await self._idle.wait()
        await self.fetcher.close()
        self._pools.stop()
        self._worker.stop()

    async def describe(
        self,
        image: bytes,
        *,
        model: str | None = None,
        lang: str | None = None,
        decoding: Decoding | None = None,
        prefix: str = "",
        must_include: Sequence[str] = (),
        attention: bool = False,
        rules: RuleOptions | None = None,
    ) -> EventStream:
        """Caption an image.

        Args:
            image: encoded bytes of the image.
            model: name of a served model; default: the first captioner, of the language if one has it.
            lang: language of the caption; default: the first of the model.
            decoding: fields of `DecodingSettings` to change.
            prefix: words that the caption starts with.
            must_include: words or phrases that the caption includes.
            attention: whether tokens have their attention weights, for models that attend to locations.
            rules: tags in the caption and abstention; None for the defaults.

        Raises:
            ServerError: the queue is full, the service stops, or there is no such model or language.
            SettingsError: a decoding setting is unknown or not allowed, or the model has no calibration of its
                confidence.
            MediaError: the image cannot be decoded.
        """
        served = self.models.get(model, "describe", lang)
        return await self.generate(
            GenerationRequest(
                served,
                served.generator(lang),
                image,
                None,
                decoding or {},
                prefix,
                must_include,
                attention,
                rules=rules or RuleOptions(),
            )
        )

    async def describe_all(self, image: bytes, **options: Any) -> FinalEvent:  # noqa: ANN401
        """Caption an image and wait for the end; arguments and errors are those of `describe`."""
        return await (await self.describe(image, **options)).final()

    async def translate(
        self,
        text: str,
        *,
        image: bytes | None = None,
        model: str | None = None,
        source: str | None = None,
        target: str | None = None,
        decoding: Decoding | None = None,
        must_include: Sequence[str] = (),
        attention: bool = False,
    ) -> EventStream:
        """Translate a sentence; an empty one has an empty translation.

        Args:
            text: plain text in the source language.
            image: encoded bytes of its image; None to translate the text alone.
            model: name of a served model; default: the first translator of the languages.
            source: language of the text; default: that of the model.
            target: language of the translation; default: that of the model.
            decoding: fields of `DecodingSettings` to change.
            must_include: words or phrases that the translation includes.
            attention: whether tokens have their attention weights over the image.

        Raises:
            ServerError: as for `describe`.
            SettingsError: the text is too long, or a decoding setting is unknown or not allowed.
            MediaError: the image cannot be decoded.
        """
        served = self.translator(model, source, target)
        return await self.generate(
            GenerationRequest(
                served, served.generator(target), image, text, decoding or {}, "", must_include, attention
            )
        )

    async def translate_all(self, text: str, **options: Any) -> FinalEvent:  # noqa: ANN401
        """Translate a sentence and wait for the end; arguments and errors are those of `translate`."""
        return await (await self.translate(text, **options)).final()

    def translator(self, model: str | None, source: str | None, target: str | None) -> ServedModel:
        """Find the translator of a pair of languages; arguments and errors are those of `translate`."""
        if model is not None:
            served = self.models.get(model, "translate")
            if source not in (None, served.source):
                raise InvalidRequestError(
                    f"source '{source}': model '{served.name}' translates from {served.source}", "source"
                )
            return served
        able = [one for one in self.models if one.task == "translate"]
        for served in able:
            if source in (None, served.source) and (target is None or target in served.languages):
                return served
        if not able:
            return self.models.get(None, "translate")
        pairs = ", ".join(f"{one.source} to {lang}" for one in able for lang in one.languages)
        raise NotSupportedError(f"no model translates from {source or 'any'} to {target or 'any'}; served are {pairs}")

    async def score(
        self, image: bytes, sentences: Sequence[str], *, model: str | None = None, lang: str | None = None
    ) -> list[SentenceScore]:
        """Compute the log-probability of each sentence given an image; errors are those of `describe`."""
        from limner.inference.scorer import Scorer

        served = self.models.get(model, "describe", lang)
        scorer = Scorer(served.trained(lang), served.backbone)
        return await self.compute("score", lambda: scorer.score([image] * len(sentences), sentences))

    async def embed(self, inputs: Sequence[str | bytes], *, model: str | None = None) -> list[list[float]]:
        """Compute one vector for each text (mean of its word vectors) or image (its pooled features).

        Raises:
            NotSupportedError: the model has no word vectors, or no pooled features.
        """
        served = self.models.get(model)
        return await self.compute("embed", lambda: [served.embed(text) for text in inputs])

    async def explain(self, job: Job, tokens: Sequence[int]) -> SentenceExplanation:
        """Explain a sentence of a finished request: attention, alignment and gate of each word.

        Args:
            job: `EventStream.job`, or the result of `read`.
            tokens: token ids of the sentence.
        """
        return await self.compute("explain", lambda: explain_sentence(job, tokens))

    async def read(self, image: bytes, *, model: str | None = None, lang: str | None = None) -> Job:
        """Read and encode an image that is not described; errors are those of `describe`."""
        served = self.models.get(model, "describe", lang)
        request = GenerationRequest(served, served.generator(lang), image)

        def read() -> Job:
            job = make_job(request, self.cache, self.settings)
            self._worker.encode([job])
            if job.error is not None:
                raise job.error
            return job

        return await self.compute("explain", read)

    async def search(self, name: str | None, query: str | bytes, count: int) -> SearchResponse:
        """Search an indexed folder or a collection; see `ServedIndexes.search`.

        Raises:
            NotFoundError: there is no such index.
            LimnerError: that of the search.
        """
        name, _ = self.indexes.get(name)

        def search() -> SearchResponse:
            if isinstance(query, bytes):
                require_size(query, self.settings)
            return self.indexes.search(name, query, count)

        return await self.compute("search", search)

    async def compute(self, kind: Kind, function: Callable[[], Result]) -> Result:
        """Call a function in a thread of its kind, as a request of its own.

        Raises:
            ServerError: the queue is full, the service stops, or the time limit has passed.
        """
        if self._computing[kind] >= max(1, self.settings.max_queue // 2):  # leaves places for other kinds
            raise self.queue_full()
        self._accept()
        self._computing[kind] += 1
        try:
            return await asyncio.wait_for(self._pools.run(kind, function), self.settings.timeout)
        except TimeoutError:
            raise self.too_late() from None
        finally:
            self._computing[kind] -= 1
            self.release()

    def _accept(self) -> None:
        """Count a request.

        Raises:
            QueueFullError: too many wait.
            StoppingError: the service is stopping.
        """
        if self.stopping:
            raise StoppingError("the service is stopping; repeat the request when it has started again")
        if self.active >= self.settings.max_queue:
            raise self.queue_full()
        self.active += 1
        self.metrics.active.set(self.active)

    def queue_full(self) -> QueueFullError:
        """Return the error of a request that is not accepted."""
        return QueueFullError(
            f"{self.active:,} requests are waiting, which is the limit; repeat the request later",
            self._worker.seconds_per_request * self.active,
        )

    def release(self) -> None:
        """Count the end of an accepted request."""
        self.active -= 1
        self.metrics.active.set(self.active)
        if not self.active:
            self._idle.set()

    async def generate(self, request: GenerationRequest) -> EventStream:
        """Check a request, read its image and hand it to the worker."""
        self._accept()
        deadline = time.monotonic() + self.settings.timeout
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event | BaseException]()
        try:
            kind: Kind = "text" if request.image is None else "image"
            reading = self._pools.run(kind, make_job, request, self.cache, self.settings)
            job = await asyncio.wait_for(reading, self.settings.timeout)
            job.deliver = lambda event: _call_soon(loop, events, event)
            if job.source_tokens == []:
                job.deliver(empty_translation(request))
            else:
                self._worker.submit(job)
        except TimeoutError:
            self.release()
            raise self.too_late() from None
        except BaseException:
            self.release()
            raise
        return EventStream(self, job, events, deadline)

    def too_late(self) -> RequestTimeoutError:
        """Return the error of a request that takes too long."""
        return RequestTimeoutError(
            f"not answered within {self.settings.timeout:g} seconds; request less, or repeat it later"
        )


def empty_translation(request: GenerationRequest) -> FinalEvent:
    """Return the translation of a text without words, which is not decoded."""
    lang = request.generator.models[0].recipe.data.lang
    return FinalEvent(request.served.name, lang, (EMPTY_TRANSLATION,), ((),))


def _call_soon(loop: asyncio.AbstractEventLoop, events: asyncio.Queue[Any], event: Event | BaseException) -> None:
    """Put an event into the queue of a stream, from another thread."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(events.put_nowait, event)
