"""Fetching images by URL: whatever a host does, a fetch ends with its deadline, and others are served meanwhile."""

import asyncio
import base64
import socket
import threading
import time

import pytest
from running_service import captioners, png, with_service

from limner.apps.server import images
from limner.apps.server.errors import QueueFullError, TooLargeError
from limner.apps.server.images import ImageFetcher
from limner.apps.server.settings import ServerSettings
from limner.errors import MediaError

DEADLINE = 0.3
SECONDS = 20
PICTURE = png((20, 20, 250))
OK = b"HTTP/1.1 200 OK\r\n"


def whole(body):
    return OK + b"Content-Length: %d\r\n\r\n" % len(body) + body


ANSWERS = {
    "good": (whole(PICTURE), None),
    "large": (whole(bytes(100_000)), None),
    "moved": (b"HTTP/1.1 302 Found\r\nLocation: /good\r\nContent-Length: 0\r\n\r\n", None),
    "cut": (OK + b"Content-Length: 9\r\n\r\nx", None),
    "chunked": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "name": (OK + b"X-", b"y"),
    "headers": (OK, b"X: y\r\n"),
    "reason": (b"HTTP/1.1 200 O", b"K"),
    "status": (b"HTTP/1.1 2000 OK\r\n\r\n", None),
    "zip": (OK + b"Content-Encoding: gzip\r\nContent-Length: 999\r\n\r\n", b"\x1f"),
    "silent": (b"", b""),
}
"""First bytes of the answer of each path, and the bytes that follow until the client leaves; None ends the answer."""


class Host:
    """A host whose paths answer in different ways; it knows which connections are open."""

    def __init__(self):
        self.open, self.requests = 0, []
        self.closed = asyncio.Event()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    def url(self, path, scheme="http", host="127.0.0.1"):
        return f"{scheme}://{host}:{self.port}/{path}"

    async def all_closed(self):
        while self.open:
            await self.closed.wait()
            self.closed.clear()

    async def _answer(self, reader, writer):
        self.open += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")  # a handshake of TLS has no such line: it waits for the end
            path = head.split()[1].decode().strip("/")
            self.requests.append(path)
            start, drip = ANSWERS[path]
            writer.write(start)
            ending = asyncio.ensure_future(reader.read())
            while drip is not None and not ending.done():
                writer.write(drip)
                await asyncio.wait({ending}, timeout=DEADLINE / 10)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()
            self.open -= 1
            self.closed.set()


def fetching(use, **settings):
    """Run use(fetcher, host) with a fetcher that may fetch from this machine."""

    async def run():
        hosts = settings.pop("image_hosts", ("127.0.0.1",))
        fetcher = ImageFetcher(ServerSettings(image_hosts=hosts, **{"fetch_timeout": DEADLINE, **settings}))
        try:
            async with Host() as host:
                result = await asyncio.wait_for(use(fetcher, host), SECONDS)
                await asyncio.wait_for(host.all_closed(), SECONDS)
                return result
        finally:
            await fetcher.close()

    return asyncio.run(run())


def patient(fetcher):
    fetcher.settings = fetcher.settings.model_copy(update={"fetch_timeout": SECONDS})
    return fetcher


@pytest.mark.parametrize("path", ["chunked", "name", "headers", "reason", "zip", "silent"])
def test_a_host_that_does_not_finish_is_left_at_the_deadline(path):
    async def use(fetcher, host):
        started = time.monotonic()
        with pytest.raises(MediaError, match=r"no image within 0\.3 seconds"):
            await fetcher.fetch(host.url(path), "image")
        assert time.monotonic() - started >= DEADLINE * 0.9
        await host.all_closed()  # and the connection is closed, while the fetcher lives
        assert host.requests == [path]
        return await patient(fetcher).fetch(host.url("good"), "image")

    assert fetching(use) == PICTURE


def test_a_host_that_does_not_answer_the_handshake_of_tls():
    async def use(fetcher, host):
        with pytest.raises(MediaError, match="no image within"):
            await fetcher.fetch(host.url("", "https"), "image")
        await host.all_closed()

    fetching(use)


def test_many_slow_answers_do_not_delay_another_host_and_each_waits_its_time_only(monkeypatch):
    monkeypatch.setattr(images, "CONNECTIONS_PER_HOST", 2)
    names = ("slow.example", "good.example")
    lookup = socket.getaddrinfo

    def resolve(host, *arguments, **options):
        return lookup("127.0.0.1" if host in names else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    async def use(fetcher, host):
        slow = [asyncio.ensure_future(fetcher.fetch(host.url("silent", host="slow.example"), "image")) for _ in "12345"]
        while len(host.requests) < 2:
            await asyncio.sleep(0)
        image = await patient(fetcher).fetch(host.url("good", host="good.example"), "image")
        assert host.requests.count("silent") == 2
        results = await asyncio.gather(*slow, return_exceptions=True)
        assert all(isinstance(one, MediaError) for one in results)
        assert await fetcher.fetch(host.url("good", host="slow.example"), "image") == image
        return image

    assert fetching(use, image_hosts=("127.0.0.1", *names)) == PICTURE


def test_a_name_that_is_looked_up_slowly_delays_no_other_host(monkeypatch):
    go, lookup = threading.Event(), socket.getaddrinfo

    def resolve(host, *arguments, **options):
        if host == "slow.example":
            go.wait(SECONDS)
        return lookup("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    async def use(fetcher, host):
        slow = [fetcher.fetch(host.url("good", host="slow.example"), "image") for _ in range(40)]
        results = await asyncio.gather(*slow, return_exceptions=True)
        assert all(isinstance(one, MediaError) for one in results)
        try:
            assert await patient(fetcher).fetch(host.url("good", host="other.example"), "image") == PICTURE
            assert await asyncio.to_thread(lambda: "free") == "free"
        finally:
            go.set()
        return await fetcher.fetch(host.url("good", host="slow.example"), "image")

    assert fetching(use, image_hosts=("slow.example", "other.example", "127.0.0.1")) == PICTURE


def test_a_fetch_that_is_cancelled_closes_its_connection():
    async def use(fetcher, host):
        fetch = asyncio.ensure_future(fetcher.fetch(host.url("chunked"), "image"))
        while not host.requests:
            await asyncio.sleep(0)
        fetch.cancel()
        await host.all_closed()
        assert fetch.cancelled()

    fetching(use, fetch_timeout=SECONDS)


@pytest.mark.parametrize(
    ("path", "settings", "error", "message"),
    [
        ("large", {"max_body": 99_999}, TooLargeError, "larger than 99,999 bytes"),
        ("moved", {}, MediaError, "status 302, and redirects are not followed"),
        ("cut", {}, MediaError, "cannot fetch the image"),
        ("status", {}, MediaError, r"cannot fetch the image \(.*status"),
    ],
)
def test_answers_that_are_no_image(path, settings, error, message):
    async def use(fetcher, host):
        with pytest.raises(error, match=message) as raised:
            await fetcher.fetch(host.url(path), "image")
        assert "\n" not in str(raised.value)
        assert host.requests == [path]

    fetching(use, fetch_timeout=SECONDS, **settings)


def test_images_that_are_received_together_have_a_limit_of_memory(monkeypatch):
    monkeypatch.setattr(images, "BODIES_AT_ONCE", 0)

    async def use(fetcher, host):
        with pytest.raises(QueueFullError):
            await fetcher.fetch(host.url("good"), "image")

    fetching(use, fetch_timeout=SECONDS)


def test_the_address_that_was_checked_is_connected_to(monkeypatch):
    answers = iter(["127.0.0.1", "127.0.0.9"])
    lookup = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *a, **k: lookup(next(answers), *a, **k))

    async def use(fetcher, host):
        assert await fetcher.fetch(host.url("good", host="Museum.Example"), "image") == PICTURE

    fetching(use, image_hosts=("MUSEUM.example", "127.0.0.1"))
    assert next(answers) == "127.0.0.9"  # one look-up


def test_the_service_answers_while_urls_are_slow_and_closes_them_when_their_clients_leave(trained):
    async def use(client):
        async with Host() as host:

            def post(image):
                return client.post("/v1/describe", json={"image": image})

            slow = [asyncio.ensure_future(post(host.url("headers"))) for _ in range(30)]
            while len(host.requests) < len(slow):
                await asyncio.sleep(0.01)
            sent, fetched = await post(base64.b64encode(PICTURE).decode()), await post(host.url("good"))
            assert (await client.post("/detect", json={"q": "a red wall"})).status_code == 200
            assert sent.json()["captions"][0]["text"] == fetched.json()["captions"][0]["text"]
            for request in slow:
                request.cancel()
            await host.all_closed()
            await asyncio.gather(*slow, return_exceptions=True)

    with_service(captioners(trained), use, image_hosts=["127.0.0.1"], fetch_timeout=SECONDS)
