"""The thread that computes: it encodes images in batches and advances all searches together."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from limner.errors import LimnerError
from limner.features.encoders.base import Backbone, EncoderInput
from limner.server.batching import Cohort, JointSteps
from limner.server.events import FinalEvent, TokenEvent
from limner.server.explanations import grid_of
from limner.server.features import FeatureCache, encode_images
from limner.server.finishing import Decoded, Finished, find_tags, finish, groups_of
from limner.server.jobs import Job
from limner.server.metrics import Metrics
from limner.server.sentences import probable_tokens, token_attention, token_texts
from limner.server.settings import ServerSettings

STEPS_BETWEEN = 4
"""Steps of the live searches between two pauses, in which finished captions are completed and new requests admitted:
each takes as long as several steps, for one request or for many."""
MAX_ROWS = 2048
"""Hypotheses that are continued together; further requests wait."""

Result = TypeVar("Result")
logger = logging.getLogger(__name__)


class Worker:
    """A thread with a queue of jobs: those that wait together are encoded and decoded together."""

    def __init__(self, settings: ServerSettings, cache: FeatureCache, metrics: Metrics) -> None:
        """Create the worker; `start` starts its thread."""
        self.settings, self.cache, self.metrics = settings, cache, metrics
        self.seconds_per_request = 0.1
        """Moving average of the time of computation for a request."""
        self._queue: queue.SimpleQueue[Job | Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._waiting: deque[Job] = deque()
        self._live: list[Cohort] = []
        self._steps = JointSteps()
        self._decoded: list[Decoded] = []
        self._until_pause = 0
        self._stopped = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the jobs that are queued."""
        self._queue.put(None)
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Queue a job; its events are delivered from the thread."""
        self._queue.put(job)

    def call(self, function: Callable[[], Result]) -> Future[Result]:
        """Queue a function; its result comes with the future."""
        future: Future[Result] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

        self._queue.put(run)
        return future

    def _run(self) -> None:
        while not (self._stopped and self._is_idle):
            self._receive()
            start, finished = time.perf_counter(), self.metrics.finished_sentences
            self._until_pause -= 1
            if not self._live or self._until_pause <= 0:
                self._pause()
            self._step()
            if done := self.metrics.finished_sentences - finished:
                self.seconds_per_request += 0.1 * ((time.perf_counter() - start) / done - self.seconds_per_request)

    @property
    def _is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not (self._waiting or self._live or self._decoded)

    def _receive(self) -> None:
        """Take what is queued; wait for it if there is nothing to compute."""
        block = self._is_idle
        while True:
            try:
                one = self._queue.get(block=block)
            except queue.Empty:
                return
            if one is None:
                self._stopped = True
            elif isinstance(one, Job):
                self._waiting.append(one)
            else:
                one()
            block = False

    def _pause(self) -> None:
        """Complete the requests whose searches are done, and start those that wait."""
        if self._decoded or self._waiting:
            self._until_pause = STEPS_BETWEEN
        with self.metrics.time("finish"):
            decoded, self._decoded = self._decoded, []
            self._finish(decoded)
        self._admit()

    def _admit(self) -> None:
        """Encode the images of the requests that wait longest, and start their searches."""
        live = sum(cohort.examples for cohort in self._live)
        rows = sum(cohort.rows for cohort in self._live)
        most = self.settings.max_batch * (1 if self.settings.max_batch == 1 else 4) - live
        jobs: list[Job] = []
        while self._waiting and len(jobs) < min(most, self.settings.max_batch):
            rows += self._waiting[0].decoding.beam_size * self._waiting[0].constraint.size
            if rows > MAX_ROWS and (jobs or live):
                break
            job = self._waiting.popleft()
            if not job.cancelled:
                jobs.append(job)
        if not jobs:
            return
        with self.metrics.time("encode"):
            ready = self.encode(jobs)
        with self.metrics.time("start"):
            self._start(self._tagged(ready))
        self.metrics.batch_size.observe(len(jobs))

    def encode(self, jobs: Sequence[Job]) -> list[Job]:
        """Give each job the features of its image; return those without an error. Called in the thread."""
        missing: dict[Backbone, dict[str, EncoderInput]] = {}
        for job in jobs:
            backbone = job.request.generator.backbone
            if job.image_key is None or backbone is None:
                continue
            job.features = self.cache.get(backbone, job.image_key)
            if job.features is None:
                if job.pixels is None:  # removed from the cache in the meantime
                    assert job.request.image is not None
                    job.pixels = backbone.read(job.request.image)
                missing.setdefault(backbone, {})[job.image_key] = job.pixels
        failed: dict[Backbone, Exception] = {}
        for backbone, images in missing.items():
            try:
                for key, features in encode_images(backbone, images).items():
                    self.cache.put(backbone, key, features)
                    for job in jobs:
                        if job.image_key == key and job.request.generator.backbone is backbone:
                            job.features = features
            except Exception as error:
                failed[backbone] = error
        for job in jobs:
            job.pixels = None
            backbone = job.request.generator.backbone
            if job.image_key is not None and job.features is None and backbone is not None:
                self._fail(job, failed[backbone])
        return [job for job in jobs if not job.cancelled]

    def _start(self, jobs: Sequence[Job]) -> None:
        """Start the searches of jobs, those of one model and the same settings together."""
        groups: dict[object, list[Job]] = {}
        for job in jobs:
            constrained = job.constraint.size > 1
            key = id(job.request.generator), job.decoding.model_dump_json(), job.features is None, constrained
            groups.setdefault(key, []).append(job)
        for group in groups.values():
            try:
                cohorts = [Cohort(group)]
            except Exception:  # one by one, to find the jobs that fail
                cohorts = []
                for job in group:
                    try:
                        cohorts.append(Cohort([job]))
                    except Exception as error:
                        self._fail(job, error)
            self._live += cohorts
            for cohort in cohorts:
                self._deliver(cohort)

    def _tagged(self, jobs: Sequence[Job]) -> list[Job]:
        """Give each job the tags of its image; return those without an error."""
        try:
            find_tags(jobs)
        except Exception as error:
            for job in jobs:
                self._fail(job, error)
        return [job for job in jobs if not job.cancelled]

    def _step(self) -> None:
        """Continue all live searches by one token, and deliver what has been decided."""
        for cohort in self._live:
            cohort.drop_cancelled()
        with self.metrics.time("step"):
            failed = self._steps.advance(self._live)
        for cohort, error in failed:
            self._live.remove(cohort)
            for number, job in enumerate(cohort.jobs):
                if number not in cohort.finished:
                    self._fail(job, error)
        with self.metrics.time("deliver"):
            for cohort in self._live:
                self._deliver(cohort)
        self._live = [cohort for cohort in self._live if cohort.search.beam is not None]

    def _deliver(self, cohort: Cohort) -> None:
        """Deliver decided tokens to streams, and the sentences of requests that are finished."""
        for job, hypotheses in cohort.newly_finished():
            decoded = Decoded(cohort, job, hypotheses)
            if job.has_passes_after_search:
                self._decoded.append(decoded)
            else:
                self._finish([decoded])
        if cohort.search.beam is None:
            return
        for number in cohort.search.beam.live:
            job = cohort.jobs[number]
            if job.streams and not job.cancelled and not job.holds_tokens:
                decided = cohort.decided(number)
                if len(decided.tokens) > cohort.emitted[number]:
                    self._emit(cohort, number, decided.tokens, decided.totals)

    def _emit(self, cohort: Cohort, number: int, tokens: Sequence[int], totals: Sequence[float]) -> None:
        """Deliver the tokens of a sentence that are not delivered yet."""
        job, first = cohort.jobs[number], cohort.emitted[number]
        attention = token_attention(job, [tokens]) if job.request.attention else None
        probable = probable_tokens(job, [tokens])[0]
        texts = token_texts(job.request.generator.tokenizer, tokens)
        for position in range(first, len(tokens)):
            before = totals[position - 1] if position else 0.0
            weights = None if attention is None else attention[0][position]
            job.deliver(
                TokenEvent(
                    position, texts[position], tokens[position], totals[position] - before, weights, probable[position]
                )
            )
        cohort.emitted[number] = len(tokens)

    def _finish(self, decoded: Sequence[Decoded]) -> None:
        """Compute and deliver the sentences of requests whose searches are done."""
        for group in groups_of([one for one in decoded if not one.job.cancelled], self.settings.max_batch):
            try:
                results = finish(group)
            except Exception as error:
                if len(group) == 1:
                    self._fail(group[0].job, error)
                else:  # one by one, to find the requests that fail
                    for one in group:
                        self._finish([one])
                continue
            for one, finished in zip(group, results, strict=True):
                try:
                    self._deliver_final(one, finished)
                except Exception as error:
                    self._fail(one.job, error)

    def _deliver_final(self, one: Decoded, finished: Finished) -> None:
        """Deliver the last tokens, and all sentences."""
        job, (best, *_), sentences = one.job, *finished
        if job.streams and (sentences[0].is_sure or not job.request.withholds):
            self._emit(one.cohort, one.cohort.jobs.index(job), best.tokens, best.totals)
        grid, box = grid_of(job) if job.request.attention else (None, None)
        read = len(job.prefix) if job.source is None else len(job.source)
        lang = job.request.generator.models[0].recipe.data.lang
        self.metrics.finished_sentences += 1
        tags = tuple((tag.word, tag.probability) for tag in job.tags)
        job.deliver(FinalEvent(job.request.served.name, lang, sentences, grid, box, tags, read))

    def _fail(self, job: Job, error: Exception) -> None:
        """Deliver an error in place of the result."""
        if not isinstance(error, LimnerError):
            logger.error("a request failed", exc_info=error)
        job.cancelled = True
        job.deliver(error)
