"""Load on the service: requests a second and latencies, batching against one request at a time, overload, memory, stop.

A closed loop: each client sends its next request when the answer to the last one is complete. Clients and service share
the processor. Every request of the tests with images is of an image that was not sent before, unless the name says
'repeated' (the service keeps the features of the latest images).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import aiohttp
import numpy as np
from PIL import Image

from measuring import real_data, report

SECONDS = float(os.environ.get("LIMNER_BENCH_SECONDS", "12"))
"""Length of a measurement; other ones are shorter in proportion."""
REQUESTS = int(os.environ.get("LIMNER_BENCH_REQUESTS", "10000"))
"""Requests of the measurement of memory."""
TIMEOUT = 600
"""Seconds after which a request counts as not answered: 512 clients wait long on a slow machine."""
REFUSED = 503
"""Status of requests that arrive while the service stops."""
CLIENTS = (1, 8, 64, 512)
BODY = {"beam_size": int(os.environ.get("LIMNER_BENCH_BEAM", "3"))}


class Load(Counter[int]):
    """Responses by status, and the latencies of responses with status 200."""

    def __init__(self) -> None:
        super().__init__()
        self.latencies: list[float] = []
        self.seconds = 0.0

    @property
    def rate(self) -> float:
        """Successful answers a second."""
        return self[200] / self.seconds

    def percentiles(self) -> dict[str, float]:
        """Latencies in milliseconds."""
        if not self.latencies:
            return {}
        found = np.percentile(self.latencies, (50, 95, 99))
        return {f"p{share}_ms": round(1000 * value) for share, value in zip((50, 95, 99), found.tolist(), strict=True)}


rows: list[tuple[str, ...]] = []
"""Rows of the table: a measurement, its requests a second, and percentiles of its latencies."""
conclusions: list[tuple[str, ...]] = []
"""Results that have a target: a name, the value, the target and the unit."""


def show(name: str, title: str, found: Load, **details: object) -> None:
    """Report a measurement, and add it to the table."""
    report(name, found.rate, "requests/s", "-", **found.percentiles(), statuses=dict(found), **details)
    latencies = [str(value) for value in found.percentiles().values()] or ["-"] * 3
    memory = f"{details['rss_mib']} MiB" if "rss_mib" in details else ""
    rows.append((title, f"{found.rate:.1f}", *latencies, memory))


def conclude(name: str, value: float, unit: str, target: str, **details: object) -> None:
    """Report a result, and add it to the end of the table."""
    report(name, value, unit, target, **details)
    conclusions.append((name.removeprefix("serve_"), f"{value:.3g}", target, unit))


def print_table() -> None:
    """Print all measurements to standard error; standard output has lines of JSON."""
    for table in (
        [("", "requests/s", "p50 ms", "p95 ms", "p99 ms", "memory"), *rows],
        [("", "", "target", ""), *conclusions],
    ):
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        print(file=sys.stderr)
        for row in table:
            cells = [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
            print("  ".join(cells), file=sys.stderr)


@contextlib.contextmanager
def running(log: IO[bytes] | None = None, **settings: object) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a service of the built-in captioner, with its log of requests in a file; yields its address and process."""
    chosen = {"port": 0, "timeout": TIMEOUT, "access_log": log is not None, **settings}
    program = (
        "from limner.process import *; prepare_threads(); keep_freed_memory()\n"
        "from limner.apps.photos.index import *\n"
        "from limner.apps.server.run import *; from limner.apps.server.settings import *\n"
        f"settings = ServerSettings.parse({chosen!r})\n"
        "bound = bind(settings); models = load(settings, FolderIndex.open); print(address_of(bound), flush=True)\n"
        "serve(settings, models, bound, FolderIndex.open)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        found = re.fullmatch(r"(http://\S+)\n", process.stdout.readline().decode())
        assert found, "the service did not start"
        yield found[1], process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
        process.stdout.close()


def images() -> Iterator[bytes]:
    """Yield JPEG files without end; each is different from those before it."""
    data = real_data()
    if data is not None:
        contents = [path.read_bytes() for path in sorted((data / "flickr8k" / "images").glob("*.jpg"))[:500]]
    else:
        random = np.random.default_rng(0)
        contents = []
        for _ in range(50):
            stream = io.BytesIO()
            noise = Image.fromarray(random.integers(0, 256, (32, 43, 3), dtype=np.uint8))
            noise.resize((341, 256)).save(stream, "JPEG", quality=85)
            contents.append(stream.getvalue())
    for number in itertools.count():  # what follows the end of a JPEG changes its content, and not its pixels
        yield contents[number % len(contents)] + number.to_bytes(8, "big")


def small_images() -> Iterator[bytes]:
    """Yield PNG files of one pixel each, without end; each is different from those before it."""
    for number in itertools.count():
        stream = io.BytesIO()
        Image.new("RGB", (1, 1), (number >> 16 & 255, number >> 8 & 255, number & 255)).save(stream, "PNG")
        yield stream.getvalue()


async def load(
    url: str,
    clients: int,
    *,
    seconds: float = SECONDS,
    requests: int | None = None,
    source: Callable[[], bytes],
    on_answer: Callable[[], None] = lambda: None,
) -> Load:
    """Send requests in a closed loop for some seconds, or a number of requests."""
    found, sent, end = Load(), 0, time.perf_counter() + seconds
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(TIMEOUT)) as session:

        async def client() -> None:
            nonlocal sent
            while sent < requests if requests is not None else time.perf_counter() < end:
                sent += 1
                form = aiohttp.FormData(quote_fields=False)
                for name, value in BODY.items():
                    form.add_field(name, str(value))
                form.add_field("image", source(), filename="a.jpg", content_type="image/jpeg")
                start = time.perf_counter()
                try:
                    async with session.post("/v1/describe", data=form) as response:
                        await response.read()
                        found[response.status] += 1
                        if response.status == 200:
                            found.latencies.append(time.perf_counter() - start)
                        elif response.status == 429:
                            await asyncio.sleep(0.05)
                except aiohttp.ClientConnectionError:  # the service has stopped
                    found[0] += 1
                    return
                on_answer()

        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        found.seconds = time.perf_counter() - start
    return found


def measure(url: str, clients: int, **options: object) -> Load:
    """Run `load` with images that differ."""
    source = images()
    return asyncio.run(load(url, clients, source=lambda: next(source), **options))  # type: ignore[arg-type]


def stage_times(url: str) -> dict[str, float]:
    """Return the time of the thread that computes, by stage."""

    async def get() -> str:
        async with aiohttp.ClientSession(url) as session, session.get("/metrics") as response:
            return await response.text()

    found = re.findall(r'limner_stage_seconds_total\{stage="(\w+)"\} (\S+)', asyncio.run(get()))
    return {name: round(float(value), 2) for name, value in found}


def processor_time(process: subprocess.Popen[bytes]) -> float:
    """Return the processor time of a process in milliseconds, which other programs change less than its latencies."""
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: subprocess.Popen[bytes]) -> float:
    """Return the resident memory of a process in MiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def rates() -> None:
    """Measure requests a second by clients, and the ratio to one request at a time."""
    by_clients: dict[int, Load] = {}
    with running(max_queue=1024) as (url, process):
        measure(url, 4, seconds=SECONDS / 4)
        for clients in CLIENTS:
            before, used = stage_times(url), processor_time(process)
            by_clients[clients] = found = measure(url, clients)
            spent = {name: round(value - before.get(name, 0), 2) for name, value in stage_times(url).items()}
            used = (processor_time(process) - used) / found.total()
            details = {"stage_seconds": spent, "processor_ms_a_request": round(used, 1)}
            show(f"serve_{clients}_clients", f"{clients} clients", found, **details)
        same = next(images())
        repeated = asyncio.run(load(url, 64, source=lambda: same))
        show("serve_64_clients_repeated_image", "64 clients, one image again and again", repeated)
    with running(max_queue=1024, max_batch=1) as (url, _):
        measure(url, 4, seconds=SECONDS / 4)
        alone = measure(url, 64)
        show("serve_one_at_a_time", "64 clients, one request at a time", alone, stage_seconds=stage_times(url))
        same_alone = asyncio.run(load(url, 64, source=lambda: same))
        show("serve_one_at_a_time_repeated_image", "the same with one image again and again", same_alone)
    unit = "times one request at a time, 64 clients"
    conclude("serve_batching_ratio", by_clients[64].rate / alone.rate, unit, ">= 4")
    conclude("serve_batching_ratio_repeated_image", repeated.rate / same_alone.rate, f"{unit}, features kept", "-")


def overload() -> None:
    """Measure that a full queue is refused, and that the service answers as before afterwards."""
    with running(max_queue=16) as (url, _):
        measure(url, 4, seconds=SECONDS / 4)
        before = measure(url, 4, seconds=SECONDS / 2)
        during = measure(url, 128, seconds=SECONDS * 2 / 3)
        after = measure(url, 4, seconds=SECONDS / 2)
    show("serve_before_overload", "4 clients, queue of 16", before)
    show("serve_during_overload", "128 clients, queue of 16", during)
    show("serve_after_overload", "4 clients afterwards", after)
    conclude("serve_refused", during[429] / during.total(), "share of requests refused with 429 in overload", "> 0")
    others = sum(
        count for load in (before, during, after) for status, count in load.items() if status not in (200, 429)
    )
    conclude("serve_overload_errors", others, "answers with other statuses than 200 and 429", "0")
    conclude("serve_recovery", after.rate / before.rate, "times the rate before the overload", ">= 0.8")


def steady_memory() -> None:
    """Measure the memory over many requests, nine in ten of one image, with a cache of features that is soon full."""
    new, same, points = small_images(), next(small_images()), dict[int, float]()
    sources = itertools.count()
    with running(feature_cache=1 << 20) as (url, process):
        for share in (0.1, 0.25, 0.5, 0.75, 1):
            done = max(points, default=0)
            target = int(share * REQUESTS)
            found = asyncio.run(
                load(url, 32, requests=target - done, source=lambda: same if next(sources) % 10 else next(new))
            )
            points[target] = memory(process)
            show(f"serve_memory_{target}", f"request {done + 1:,} to {target:,}", found, rss_mib=round(points[target]))
    first, last = points[min(points)], points[max(points)]
    unit = f"MiB of growth from request {min(points):,} to {max(points):,}"
    conclude(
        "serve_memory", last - first, unit, "<= 50", rss_mib={count: round(size) for count, size in points.items()}
    )


def graceful_stop() -> None:
    """Measure that SIGTERM under load loses no accepted request."""
    with tempfile.TemporaryFile() as log, running(log) as (url, process):
        answers = itertools.count(1)

        def stop() -> None:
            if next(answers) == 30:
                process.send_signal(signal.SIGTERM)

        source = images()
        found = asyncio.run(load(url, 32, seconds=120, source=lambda: next(source), on_answer=stop))
        status = process.wait(120)
        log.seek(0)
        logged = Counter(json.loads(line)["status"] for line in log if line.startswith(b"{"))
    lost = sum(count for answer, count in logged.items() if answer != REFUSED) - found[200]
    details = {"logged": dict(logged), "answered": found[200], "connections_refused": found[0], "exit": status}
    conclude("serve_stop", lost, "accepted requests lost at SIGTERM, 32 clients", "0", **details)
    conclude("serve_stop_status", status, "exit status after SIGTERM", "0")


def serve() -> None:
    """Run all measurements of the service."""
    for measurement in MEASUREMENTS.values():
        measurement()
    print_table()


MEASUREMENTS = {"rates": rates, "overload": overload, "stop": graceful_stop, "memory": steady_memory}

if __name__ == "__main__":
    for name in sys.argv[1:] or MEASUREMENTS:
        MEASUREMENTS[name]()
    print_table()
