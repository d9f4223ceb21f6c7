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

SECONDS = 12.0
"""Length of a measurement."""
CLIENTS = (1, 8, 64, 512)
BODY = {"beam_size": 3}


class Load(Counter[int]):
    """Answers by status, and the latencies of those with status 200."""

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


@contextlib.contextmanager
def running(log: IO[bytes] | None = None, **settings: object) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a service of the built-in captioner, with its log of requests in a file; yields its address and process."""
    program = (
        "from limner.process import keep_freed_memory; keep_freed_memory()\n"
        "from limner.server.run import *; from limner.server.models import *; from limner.server.settings import *\n"
        f"settings = ServerSettings.parse({ {'port': 0, 'access_log': log is not None, **settings}!r})\n"
        "bound = bind(settings); models = load_served_models(settings); print(address_of(bound), flush=True)\n"
        "serve(settings, models, bound)\n"
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
    async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(600)) as session:

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


def memory(process: subprocess.Popen[bytes]) -> float:
    """Return the resident memory of a process in MiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def rates() -> None:
    """Measure requests a second by clients, and the ratio to one request at a time."""
    by_clients: dict[int, Load] = {}
    with running(max_queue=1024) as (url, _):
        measure(url, 4, seconds=3)
        for clients in CLIENTS:
            before = stage_times(url)
            by_clients[clients] = found = measure(url, clients)
            spent = {name: round(value - before.get(name, 0), 2) for name, value in stage_times(url).items()}
            details = {"clients": clients, **found.percentiles(), "stage_seconds": spent, "statuses": dict(found)}
            report(f"serve_{clients}_clients", found.rate, "requests/s", "-", **details)
        same = next(images())
        repeated = asyncio.run(load(url, 64, source=lambda: same))
        report("serve_64_clients_repeated_image", repeated.rate, "requests/s", "-", **repeated.percentiles())
    with running(max_queue=1024, max_batch=1) as (url, _):
        measure(url, 4, seconds=3)
        alone = measure(url, 64)
        same_alone = asyncio.run(load(url, 64, source=lambda: same))
        stages = stage_times(url)
    report(
        "serve_batching_ratio", by_clients[64].rate / alone.rate, "times one request at a time, 64 clients", ">= 4",
        one_at_a_time=round(alone.rate, 2), **alone.percentiles(), stage_seconds=stages,
    )  # fmt: skip
    report(
        "serve_batching_ratio_repeated_image", repeated.rate / same_alone.rate,
        "times one request at a time, 64 clients, features kept", "-", one_at_a_time=round(same_alone.rate, 2),
    )  # fmt: skip


def overload() -> None:
    """Measure that a full queue is refused, and that the service answers as before afterwards."""
    with running(max_queue=16) as (url, _):
        measure(url, 4, seconds=3)
        before = measure(url, 4, seconds=6)
        during = measure(url, 128, seconds=8)
        after = measure(url, 4, seconds=6)
    report(
        "serve_overload", during[429] / during.total(), "share of refused requests, 128 clients, queue of 16", "-",
        statuses=dict(during), p99_ms=during.percentiles().get("p99_ms"),
        other_statuses=sum(during.values()) - during[200] - during[429],
    )  # fmt: skip
    report("serve_recovery", after.rate / before.rate, "times the rate before the overload", ">= 0.8")


def steady_memory(requests: int = 10_000) -> None:
    """Measure the growth of the memory over many requests, after the first tenth."""
    with running() as (url, process):
        measure(url, 16, requests=requests // 10)
        before = memory(process)
        found = measure(url, 16, requests=requests)
        after = memory(process)
    report(
        "serve_memory", after - before, f"MiB of growth over {requests:,} requests", "<= 50",
        before_mib=round(before), after_mib=round(after), statuses=dict(found),
    )  # fmt: skip


def graceful_stop() -> None:
    """Measure that SIGTERM under load loses no accepted request."""
    with tempfile.TemporaryFile() as log, running(log) as (url, process):
        answers = itertools.count(1)

        def stop() -> None:
            if next(answers) == 30:
                process.send_signal(signal.SIGTERM)

        source = images()
        found = asyncio.run(load(url, 32, seconds=120, source=lambda: next(source), on_answer=stop))
        status = process.wait(60)
        log.seek(0)
        accepted = Counter(json.loads(line)["status"] for line in log if line.startswith(b"{"))
    lost = accepted.total() - found[200]
    details = {"accepted": dict(accepted), "answered": found[200], "not_accepted": found[0], "exit": status}
    report("serve_stop", lost, "accepted requests lost at SIGTERM, 32 clients", "0", **details)


def serve() -> None:
    """Run all measurements of the service."""
    rates()
    overload()
    graceful_stop()
    steady_memory()


if __name__ == "__main__":
    chosen = {"rates": rates, "overload": overload, "stop": graceful_stop, "memory": steady_memory}
    for name in sys.argv[1:] or chosen:
        chosen[name]()
    print(json.dumps({"done": sys.argv[1:] or list(chosen)}), file=sys.stderr)
