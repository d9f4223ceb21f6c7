"""The threads that compute, and the metrics of the service in the format of Prometheus.

One thread encodes images in batches, one decodes, and advances all searches together. While a batch is decoded, the
next one is encoded. Decoding consists of many small steps in one thread; encoding uses all cores. `limner.generation`
computes; this module schedules the computations.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from limner.apps.server.jobs import FeatureCache, Job, RequestFeatures
from limner.apps.server.settings import ServerSettings
from limner.generation.engine import Engine
from limner.process import available_threads

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable by which several processes add up their metrics."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counters and times of an application."""

    def __init__(self, *, several_processes: bool = False) -> None:
        """Create the counters; the counters of all processes of the service are added up where there are several."""
        registry = CollectorRegistry()
        self._registry = CollectorRegistry() if several_processes else registry
        if several_processes:
            MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]
        self.requests = Counter(
            "limner_requests_total", "Answered requests.", ("method", "route", "status"), registry=registry
        )
        self.seconds = Histogram(
            "limner_request_seconds", "Time to the end of an answer.", ("route",), buckets=SECONDS, registry=registry
        )
        self.active = Gauge(
            "limner_active_requests",
            "Accepted requests that are not answered yet.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.batch_size = Histogram(
            "limner_batch_size", "Requests that are encoded together.", buckets=SIZES, registry=registry
        )
        self.stages = Counter(
            "limner_stage_seconds_total", "Time of the threads that compute, by stage.", ("stage",), registry=registry
        )

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the time of a block to a stage: encode, start, step, deliver or finish."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.stages.labels(stage).inc(time.perf_counter() - start)

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self._registry)


STEPS_BETWEEN = 4
"""Number of steps of the live searches between starts of new requests, as a start takes as long as several steps."""
COHORTS = 4
"""Maximum number of full batches that are decoded together; further requests wait."""
MAX_ROWS = 2048
"""Maximum number of hypotheses that are continued together; further requests wait."""
JOIN_SECONDS = 2.0
"""Time that the end of the service waits for the thread that decodes."""


class Worker:
    """Threads with a queue of jobs: jobs that wait together are encoded and decoded together."""

    def __init__(self, settings: ServerSettings, cache: FeatureCache, metrics: Metrics) -> None:
        """Create the worker; `start` starts its threads."""
        self.settings, self.metrics = settings, metrics
        self._most_together = settings.max_batch * (1 if settings.max_batch == 1 else COHORTS)
        """Number of requests that are decoded together."""
        self.seconds_per_request = 0.1
        """Moving average of the time of computation for a request."""
        self._engine = Engine(RequestFeatures(cache), isolated=(Exception,))
        self._queue: queue.SimpleQueue[Job | Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(threads_of_torch(),), name="compute", daemon=True)
        self._encoder = ThreadPoolExecutor(1, "encode", initializer=use_threads, initargs=(available_threads(),))
        self._unread: deque[Job] = deque()
        """Jobs whose images wait to be encoded."""
        self._encoding = False
        self._waiting: deque[Job] = deque()
        """Jobs that wait to be decoded."""
        self._started: list[Job] = []
        """Jobs that are decoded."""
        self._until_start = 0
        self._stopped = False

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()

    def stop(self) -> None:
        """End the threads after the jobs that are queued; a computation that does not end is not waited for."""
        self._queue.put(None)
        self._thread.join(JOIN_SECONDS)
        self._encoder.shutdown(wait=not self._thread.is_alive())

    def submit(self, job: Job | Callable[[], None]) -> None:
        """Queue a job, whose events the decoding thread delivers, or a function, which this thread calls."""
        self._queue.put(job)

    def encode(self, jobs: Sequence[Job]) -> None:
        """Set the features of the image of each job, or fail the job if they cannot be computed."""
        self._engine.encode(jobs)

    def _run(self, threads: int) -> None:
        use_threads(threads)
        since = time.perf_counter()
        while not (self._stopped and self._is_idle):
            was_idle = self._is_idle
            self._receive()
            if was_idle:
                since = time.perf_counter()
            self._encode_next()
            self._until_start -= 1
            if not self._engine.live or self._until_start <= 0:
                self._start_waiting()
            with self.metrics.time("step"):
                self._engine.step()
            if done := sum(job.is_done and bool(job.sentences) for job in self._started):
                now = time.perf_counter()
                self.seconds_per_request += 0.1 * ((now - since) / done - self.seconds_per_request)
                since = now
            self._started = [job for job in self._started if not job.is_done]

    @property
    def _is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not (self._unread or self._encoding or self._decodes)

    @property
    def _decodes(self) -> bool:
        """Whether requests are decoded or can be."""
        return bool(self._waiting or self._engine.live)

    def _receive(self) -> None:
        """Take queued jobs and functions; wait for them if there is nothing to decode."""
        block = not self._decodes and (self._encoding or not self._unread)
        while True:
            try:
                entry = self._queue.get(block=block)
            except queue.Empty:
                return
            if entry is None:
                self._stopped = True
            elif isinstance(entry, Job):
                (self._waiting if entry.pixels is None else self._unread).append(entry)
            else:
                entry()
            block = False

    def _encode_next(self) -> None:
        """Start to encode the images that wait longest, unless images are being encoded."""
        most = self.settings.max_batch
        if self._encoding or len(self._waiting) >= most or (most == 1 and self._decodes):
            return
        jobs: list[Job] = []
        while self._unread and len(jobs) < most:
            job = self._unread.popleft()
            jobs += [] if job.is_done else [job]
        if jobs:
            self._encoding = True
            self.metrics.batch_size.observe(len(jobs))
            self._encoder.submit(self._encode_ahead, jobs)

    def _encode_ahead(self, jobs: Sequence[Job]) -> None:
        """Encode the images of jobs, and queue their start; called in the thread that encodes."""
        with self.metrics.time("encode"):
            self._engine.encode(jobs)

        def receive() -> None:
            self._encoding = False
            self._waiting.extend(job for job in jobs if not job.is_done)

        self.submit(receive)

    def _start_waiting(self) -> None:
        """Start requests that wait."""
        if self._waiting:
            self._until_start = STEPS_BETWEEN
        with self.metrics.time("start"):
            jobs = self._admitted()
            self._engine.encode([job for job in jobs if job.evidence is None])  # of features from the cache
            self._engine.start(jobs)
            self._started += jobs

    def _admitted(self) -> list[Job]:
        """Return the waiting requests that are started next."""
        live = sum(cohort.live for cohort in self._engine.live)
        rows = sum(cohort.rows for cohort in self._engine.live)
        most = min(self._most_together - live, self.settings.max_batch)
        jobs: list[Job] = []
        while self._waiting and len(jobs) < most:
            job = self._waiting[0]
            if not job.is_done:
                rows += job.decoding.beam_size * job.states
                if rows > MAX_ROWS and (jobs or live):
                    break
                jobs.append(job)
            self._waiting.popleft()
        return jobs


def use_threads(count: int) -> None:
    """Set the number of threads that torch computes with in the calling thread, if torch is imported."""
    if torch := sys.modules.get("torch"):
        torch.get_num_threads()  # else the first operation takes the number that any thread has set last
        torch.set_num_threads(count)


def threads_of_torch() -> int:
    """Return the number of threads that torch computes with; 1 if torch is not imported."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else 1
