"""Work that is stuck, of the service or of a client, delays nothing else."""

import asyncio
import base64
import threading
import time
from collections.abc import Coroutine

import pytest
from running_service import caption, png, run_with_engine, scope_of, with_service

from limner.apps.server.errors import QueueFullError
from limner.apps.server.protection import Keys, ProtectedApp
from limner.apps.server.service import Kind
from limner.apps.server.settings import ServerSettings


@pytest.fixture
def stuck():
    """A function that returns at the end of the test."""
    go = threading.Event()
    yield go.wait
    go.set()


KINDS = Kind.__args__


def test_work_that_is_stuck_delays_no_other_kind(models, stuck, tiny):
    image = (tiny.path / "test0.png").read_bytes()

    async def use(engine):
        blocked = [
            asyncio.ensure_future(engine.compute(kind, stuck)) for kind in KINDS if kind not in ("score", "image")
        ]
        assert (await caption(engine, image)).best.text
        assert await engine.compute("score", lambda: "scored") == "scored"
        for one in blocked:
            one.cancel()
        await asyncio.gather(*blocked, return_exceptions=True)
        assert engine.active == 0

    run_with_engine(models, use)


def test_work_that_is_stuck_ends_in_time_and_leaves_places_to_other_kinds(models, stuck):
    async def use(engine):
        blocked = [asyncio.ensure_future(engine.compute("search", stuck)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await engine.compute("search", stuck)
        assert await engine.compute("file", lambda: "read") == "read"
        results = await asyncio.gather(*blocked, return_exceptions=True)
        assert all(result.status == 504 for result in results) and engine.active == 0

    run_with_engine(models, use, max_queue=6, timeout=0.3)


def test_the_end_of_the_engine_does_not_wait_for_what_is_stuck(models, stuck):
    async def use(engine):
        blocked = asyncio.ensure_future(engine.compute("search", stuck))
        await asyncio.sleep(0)
        await asyncio.wait_for(engine.stop(), 30)
        assert not blocked.done()
        blocked.cancel()
        engine.stop = lambda: asyncio.sleep(0)

    run_with_engine(models, use, stop_timeout=0.05)


async def call(app, settings, engine, send):
    """Send a request to an application behind the protection of the service."""
    messages = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b""})
    await ProtectedApp(app, settings, Keys([]), lambda: engine)(scope_of("/v1/describe"), messages.get, send)


def test_a_client_that_does_not_read_is_left(models, caplog):
    settings, ended = ServerSettings(timeout=0.05, access_log=False), []

    async def stream(scope, receive, send):
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        finally:
            ended.append(True)

    async def send(message):
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    run_with_engine(models, lambda engine: call(stream, settings, engine, send))
    assert ended and "failed" not in caplog.text


@pytest.mark.parametrize("begun", [False, True])
def test_a_request_that_the_end_of_the_service_cancels_is_answered_if_its_answer_has_not_begun(models, begun):
    settings, sent, waiting = ServerSettings(access_log=False), [], asyncio.Event()

    async def slow(scope, receive, send):
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        waiting.set()
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    async def use(engine):
        running = asyncio.ensure_future(call(slow, settings, engine, send))
        await waiting.wait()
        running.cancel()  # as uvicorn does
        await running

    run_with_engine(models, use)
    assert [one["status"] for one in sent if "status" in one] == [200 if begun else 503]
    assert len(sent) == (1 if begun else 2)


class TimedSteps(Coroutine):
    """A coroutine that adds the processor time of each of its steps, from one wait to the next, to a list."""

    def __init__(self, inner, seconds):
        self.inner, self.seconds = inner, seconds

    def send(self, value):
        start = time.thread_time()
        try:
            return self.inner.send(value)
        finally:
            self.seconds.append(time.thread_time() - start)

    def throw(self, *error):
        return self.inner.throw(*error)

    def close(self):
        self.inner.close()

    def __await__(self):
        return self


def test_no_request_holds_up_the_event_loop(models):
    """A busy machine adds time to steps, but not in each repetition."""
    size, seconds, longest = 7 << 20, [], []
    large = base64.b64encode(png() + bytes(size)).decode()
    bodies = [{"json": {"image": large}}, {"files": {"image": png() + bytes(size)}}]
    bodies += [{"files": {"image": png((shade, 0, 0))}} for shade in range(32)]

    async def use(client):
        requests = [client.build_request("POST", "/v1/describe", **body) for body in bodies]
        await asyncio.gather(*(request.aread() for request in requests))  # the client's part
        await client.send(requests[-1])  # with the first request, FastAPI completes its routes
        loop = asyncio.get_running_loop()
        loop.set_task_factory(
            lambda loop, inner, **options: asyncio.Task(TimedSteps(inner, seconds), loop=loop, **options)
        )
        for _ in range(4):
            seconds.clear()
            answers = await asyncio.gather(*map(client.send, requests))
            assert [answer.status_code for answer in answers] == [200] * len(bodies)
            assert len(seconds) > len(bodies)
            longest.append(max(seconds))

    with_service(models, use)
    assert min(longest) <= 0.02
