"""The engine of the service: a queue of requests, the worker that computes them, and streams of their events.

stream = await engine.generate(GenerationRequest(…))    # errors of the request are raised here
async for event in stream: ...                          # GeneratedToken …, then one FinalEvent
final = await stream.final()                            # or: only the end
stream.close()                                          # cancels what is not computed yet
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Literal, TypeVar, get_args

from limner.apps.server.errors import QueueFullError, ServerError
from limner.apps.server.images import ImageFetcher
from limner.apps.server.indexes import ServedIndexes
from limner.apps.server.jobs import Event, FeatureCache, FinalEvent, GeneratedToken, GenerationRequest, Job, make_job
from limner.apps.server.models import Models
from limner.apps.server.settings import ServerSettings
from limner.apps.server.worker import Metrics, Worker, threads_of_torch, use_threads
from limner.generation.sentences import EMPTY_TRANSLATION

Result = TypeVar("Result")
Kind = Literal["image", "text", "language", "score", "explain", "search", "file"]
"""Kinds of work outside of the event loop, each with separate threads: reading images and texts of requests that
generate, detecting languages, and requests that are computed alone."""


class EventStream(AsyncIterator[Event]):
    """Events of one accepted request: tokens as they are decided, and a `FinalEvent` at the end.

    Closing the stream, or dropping it, cancels the request. Reading it raises the error of the request, or status 504
    after the time limit.
    """

    def __init__(
        self, engine: ServiceEngine, job: Job, events: asyncio.Queue[Event | BaseException], deadline: float
    ) -> None:
        self.job = job
        """Job of the request."""
        self._engine, self._events, self._deadline = engine, events, deadline
        self._open = True

    async def __anext__(self) -> Event:
        """Return the next event."""
        if not self._open:
            raise StopAsyncIteration
        event: Event | BaseException | None = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._deadline):
                    event = await self._events.get()
        finally:
            if not isinstance(event, GeneratedToken):
                self.close()
        if event is None:
            raise self._engine.too_late()
        if isinstance(event, BaseException):
            raise event
        return event

    async def final(self) -> FinalEvent:
        """Read the stream to its end, without the tokens before it; return the final event."""
        self.job.streams = False
        async for event in self:
            if isinstance(event, FinalEvent):
                return event
        raise AssertionError("a stream without a final event")

    def close(self) -> None:
        """Cancel the request unless it is finished."""
        if self._open:
            self._open = False
            self.job.is_done = True
            self._engine.release()

    def __del__(self) -> None:
        self.close()


class ServiceEngine:
    """Served models and indexes, the queue of requests, and the worker that computes them."""

    def __init__(self, models: Models, settings: ServerSettings, indexes: ServedIndexes) -> None:
        """Create an engine; `start` starts its threads."""
        self.models, self.settings, self.indexes = models, settings, indexes
        self.active = 0
        self.stopping = False
        self._idle = asyncio.Event()
        self.fetcher = ImageFetcher(settings)
        cores, threads = os.cpu_count() or 1, threads_of_torch()
        self._pools = {
            kind: ThreadPoolExecutor(
                cores if kind == "image" else 1, kind, initializer=use_threads, initargs=(threads,)
            )
            for kind in get_args(Kind)
        }
        self._computing: Counter[Kind] = Counter()
        self.cache = FeatureCache(settings.feature_cache)
        self.metrics = Metrics(several_processes=settings.workers > 1)
        self._worker = Worker(settings, self.cache, self.metrics)

    def start(self) -> None:
        """Start the threads of the worker."""
        self._worker.start()

    async def stop(self) -> None:
        """Refuse new requests, finish accepted requests within `stop_timeout`, and end the threads."""
        self.stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.stop_timeout):
                while self.active:
                    self._idle.clear()
                    await self._idle.wait()
        await self.fetcher.close()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        self._worker.stop()

    async def generate(self, request: GenerationRequest) -> EventStream:
        """Check a request, read its image and hand it to the worker.

        Raises:
            ServerError: the queue is full, the service stops, or the time limit has passed.
            SettingsError, MediaError: see `make_job`.
        """
        self._accept()
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event | BaseException]()
        deadline = loop.time() + self.settings.timeout

        def deliver(event: Event | BaseException) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(events.put_nowait, event)

        try:
            kind: Kind = "text" if request.image is None else "image"
            job = await self._in_time(kind, lambda: make_job(request, self.cache, self.settings))
        except BaseException:
            self.release()
            raise
        job.deliver = deliver
        if job.source_tokens == []:
            job.finished([EMPTY_TRANSLATION])
        else:
            self._worker.submit(job)
        return EventStream(self, job, events, deadline)

    async def read(self, request: GenerationRequest) -> Job:
        """Read and encode the image of a request that is not generated; see `generate` for errors."""

        def read() -> Job:
            job = make_job(request, self.cache, self.settings)
            self._worker.encode([job])
            if job.error is not None:
                raise job.error
            return job

        return await self.compute("explain", read)

    async def compute(self, kind: Kind, function: Callable[[], Result]) -> Result:
        """Call a function in a thread of its kind, counted as a request; ServerError as in `generate`."""
        if self._computing[kind] >= max(1, self.settings.max_queue // 2):  # leaves places for other kinds
            raise self.queue_full()
        self._accept()
        self._computing[kind] += 1
        try:
            return await self._in_time(kind, function)
        finally:
            self._computing[kind] -= 1
            self.release()

    async def _in_time(self, kind: Kind, function: Callable[[], Result]) -> Result:
        """Call a function in a thread of its kind within the time limit; a call that has not begun can be cancelled."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await asyncio.get_running_loop().run_in_executor(self._pools[kind], function)
        except TimeoutError:
            raise self.too_late() from None

    def _accept(self) -> None:
        """Count a request; ServerError if too many requests wait, or the service is stopping."""
        if self.stopping:
            raise ServerError("the service is stopping; repeat the request when it has started again", status=503)
        if self.active >= self.settings.max_queue:
            raise self.queue_full()
        self.active += 1
        self.metrics.active.set(self.active)

    def release(self) -> None:
        """Count the end of an accepted request."""
        self.active -= 1
        self.metrics.active.set(self.active)
        if not self.active:
            self._idle.set()

    def queue_full(self) -> QueueFullError:
        """Return the error of a request that is not accepted."""
        return QueueFullError(
            f"{self.active:,} requests are waiting, which is the limit; repeat the request later",
            self._worker.seconds_per_request * self.active,
        )

    def too_late(self) -> ServerError:
        """Return the error of a request that takes too long."""
        return ServerError(
            f"not answered within {self.settings.timeout:g} seconds; request less, or repeat it later", status=504
        )
