"""Metrics of the service in the format of Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable by which several processes add up their metrics."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counters of one application."""

    def __init__(self, *, several_processes: bool = False) -> None:
        """Create the counters; those of all processes of the service are added up where there are several."""
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
