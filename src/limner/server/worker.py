"""The threads that compute: one encodes images in batches, one decodes, and advances all searches together.

While a batch is decoded, the next one is encoded. Decoding consists of many small steps in one thread; encoding uses
all cores.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from limner.errors import LimnerError
from limner.features.encoders.base import Backbone, EncoderInput
from limner.process import available_threads
from limner.server.batching import Cohort, JointSteps
from limner.server.events import FinalEvent, TokenEvent
from limner.server.explanations import grid_of
from limner.server.features import FeatureCache, encode_images
from limner.server.finishing import Decoded, Finished, classify_images, finish, groups_of
from limner.server.jobs import Job, take_jobs
from limner.server.metrics import Metrics
from limner.server.sentences import probable_tokens, token_attention, token_texts
from limner.server.settings import ServerSettings

STEPS_BETWEEN = 4
"""Steps of the live searches between two pauses, in which finished captions are completed and new requests start:
each takes as long as several steps, for one request or for many."""
PAUSES = 3
"""Pauses after which finished captions are completed; before that when there is a batch of them, or nothing to decode.
"""
COHORTS = 4
"""Batches of the largest size that are decoded together; further requests wait."""
MAX_ROWS = 2048
"""Hypotheses that are continued together; further requests wait."""
JOIN_SECONDS = 2.0
"""Time that the end of the service waits for the thread that decodes."""

logger = logging.getLogger(__name__)


class Worker:
    """Threads with a queue of jobs: those that wait together are encoded and decoded together."""

    def __init__(self, settings: ServerSettings, cache: FeatureCache, metrics: Metrics) -> None:
        """Create the worker; `start` starts its threads."""
        self.settings, self.cache, self.metrics = settings, cache, metrics
        self.seconds_per_request = 0.1
        """Moving average of the time of computation for a request."""
        self._queue: queue.SimpleQueue[Job | Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(torch.get_num_threads(),), name="compute", daemon=True)
        self._encoder = ThreadPoolExecutor(
            1, "encode", initializer=torch.set_num_threads, initargs=(available_threads(),)
        )
        self._unread: deque[Job] = deque()
        """Jobs whose images wait to be encoded."""
        self._encoding = False
        self._waiting: deque[Job] = deque()
        """Jobs that wait to be decoded."""
        self._live: list[Cohort] = []
        self._steps = JointSteps()
        self._decoded: list[Decoded] = []
        """Jobs whose searches are done, and whose captions wait to be completed."""
        self._pauses = 0
        self._until_pause = 0
        self._stopped = False

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()

    def stop(self) -> None:
        """End the threads after the jobs that are queued; a computation that does not end is left behind."""
        self._queue.put(None)
        self._thread.join(JOIN_SECONDS)
        self._encoder.shutdown(wait=not self._thread.is_alive())

    def submit(self, job: Job | Callable[[], None]) -> None:
        """Queue a job, whose events are delivered from the thread, or a function, which is called there."""
        self._queue.put(job)

    def _run(self, threads: int) -> None:
        torch.get_num_threads()  # else the first operation takes the number that any thread has set last
        torch.set_num_threads(threads)
        since = time.perf_counter()
        while not (self._stopped and self._is_idle):
            was_idle, finished = self._is_idle, self.metrics.finished_sentences
            self._receive()
            if was_idle:
                since = time.perf_counter()
            self._encode_next()
            self._until_pause -= 1
            if not self._live or self._until_pause <= 0:
                self._pause()
            self._step()
            if done := self.metrics.finished_sentences - finished:
                now = time.perf_counter()
                self.seconds_per_request += 0.1 * ((now - since) / done - self.seconds_per_request)
                since = now

    @property
    def _is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not (self._unread or self._encoding or self._decodes)

    @property
    def _decodes(self) -> bool:
        """Whether requests are decoded or can be."""
        return bool(self._waiting or self._live or self._decoded)

    def _receive(self) -> None:
        """Take what is queued; wait for it if there is nothing to decode."""
        block = not self._decodes and (self._encoding or not self._unread)
        while True:
            try:
                one = self._queue.get(block=block)
            except queue.Empty:
                return
            if one is None:
                self._stopped = True
            elif isinstance(one, Job):
                (self._waiting if one.pixels is None else self._unread).append(one)
            else:
                one()
            block = False

    def _encode_next(self) -> None:
        """Let the images be encoded that wait longest, unless others are; one request at a time has no others."""
        one_at_a_time = self.settings.max_batch == 1
        if self._encoding or len(self._waiting) >= self.settings.max_batch or (one_at_a_time and self._decodes):
            return
        jobs = take_jobs(self._unread, self.settings.max_batch)
        if jobs:
            self._encoding = True
            self.metrics.batch_size.observe(len(jobs))
            self._encoder.submit(self._encode_ahead, jobs)

    def _encode_ahead(self, jobs: Sequence[Job]) -> None:
        """Encode the images of jobs, and queue their start; called in the thread that encodes."""
        with self.metrics.time("encode"):
            encoded = self.encode(jobs)

        def receive() -> None:
            self._encoding = False
            self._waiting.extend(encoded)

        self.submit(receive)

    def _pause(self) -> None:
        """Complete the requests whose searches are done, and start those that wait."""
        if self._decoded or self._waiting:
            self._until_pause = STEPS_BETWEEN
        self._pauses += 1
        if self._pauses >= PAUSES or len(self._decoded) >= self.settings.max_batch or not self._live:
            self._pauses = 0
            with self.metrics.time("finish"):
                decoded, self._decoded = self._decoded, []
                self._finish(decoded)
        with self.metrics.time("start"):
            self._start(self._classified(self.encode(self._admitted())))  # encodes what has left the cache meanwhile

    @property
    def _most_together(self) -> int:
        """Number of requests that are decoded together."""
        return self.settings.max_batch * (1 if self.settings.max_batch == 1 else COHORTS)

    def _admitted(self) -> list[Job]:
        """Return the waiting requests that are started next."""
        live = sum(cohort.examples for cohort in self._live)
        rows = sum(cohort.rows for cohort in self._live)
        most = self._most_together - live
        jobs: list[Job] = []
        while self._waiting and len(jobs) < min(most, self.settings.max_batch):
            job = self._waiting[0]
            if not job.cancelled:
                rows += job.decoding.beam_size * job.constraint.size
                if rows > MAX_ROWS and (jobs or live):
                    break
                jobs.append(job)
            self._waiting.popleft()
        return jobs

    def encode(self, jobs: Sequence[Job]) -> list[Job]:
        """Give each job the features of its image; return those without an error."""
        return self._together(self._encode, jobs)

    def _encode(self, jobs: Sequence[Job]) -> None:
        missing: dict[Backbone, dict[str, EncoderInput]] = {}
        for job in jobs:
            backbone = job.request.generator.backbone
            if job.image_key is None or backbone is None or job.features is not None:
                continue
            job.features = self.cache.get(backbone, job.image_key)
            if job.features is None:
                assert job.request.image is not None
                # None: its features were in the cache when the image was received, and are not any more.
                pixels = backbone.read(job.request.image) if job.pixels is None else job.pixels
                missing.setdefault(backbone, {})[job.image_key] = pixels
        for backbone, images in missing.items():
            for key, features in encode_images(backbone, images).items():
                self.cache.put(backbone, key, features)
                for job in jobs:
                    if job.image_key == key and job.request.generator.backbone is backbone:
                        job.features = features
        for job in jobs:
            job.pixels = None

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

    def _classified(self, jobs: Sequence[Job]) -> list[Job]:
        """Give each job the tags of its image; return those without an error."""
        return self._together(classify_images, jobs)

    def _together(self, work: Callable[[Sequence[Job]], None], jobs: Sequence[Job]) -> list[Job]:
        """Do some work for jobs at once, or one by one where it fails; return the jobs without an error."""
        try:
            work(jobs)
        except Exception as error:
            if len(jobs) == 1:
                self._fail(jobs[0], error)
            for job in jobs if len(jobs) > 1 else ():  # one by one, to find the jobs that fail
                self._together(work, [job])
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
        for group in groups_of([one for one in decoded if not one.job.cancelled], self._most_together):
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
