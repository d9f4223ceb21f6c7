"""Malformed requests to a live service: each is answered or its connection closed, and the service stays alive."""

from __future__ import annotations

import base64
import json
import random
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import damage
import httpx
import pytest
from PIL import Image

REQUESTS = 2_000
SECONDS = 20
"""Time limit of one answer: above that of a slow body, which the service cuts off."""
PATHS = (
    "/v1/describe", "/v1/translate", "/v1/score", "/v1/search", "/v1/explain", "/api/generate", "/api/chat",
    "/v1/chat/completions", "/translate", "/detect",
)  # fmt: skip


def png(size=(16, 16)):
    stream = BytesIO()
    Image.new("RGB", size, (200, 30, 30)).save(stream, "PNG")
    return stream.getvalue()


def hostile_image(rng):
    good = png()
    kinds = (
        lambda: good[: rng.randrange(len(good))],
        lambda: bytes(byte ^ (rng.random() < 0.05) * rng.randrange(256) for byte in good),
        lambda: rng.randbytes(rng.randrange(200)),
        lambda: damage.png(rng.choice((1, 60_000)), rng.choice((60_000, 2**31 - 1)), bytes(100_000)),
        lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        lambda: b"GIF89a" + rng.randbytes(40),
        lambda: b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>",
        lambda: b"",
        lambda: good,
    )
    return rng.choice(kinds)()


def hostile_value(rng, depth=0):
    kinds = (
        lambda: None,
        lambda: rng.choice((True, 0, -1, 1e308, 10**30, float("nan"), 0.5)),
        lambda: rng.choice(("", "\0", "../../etc/passwd", "file:///etc/passwd", "http://127.0.0.1:1/", "𝔘" * 300)),
        lambda: base64.b64encode(hostile_image(rng)).decode(),
        lambda: "data:image/png;base64," + base64.b64encode(hostile_image(rng)).decode(),
        lambda: [hostile_value(rng, depth + 1) for _ in range(rng.randrange(4))] if depth < 3 else [],
        lambda: {"role": "user", "content": hostile_value(rng, depth + 1)} if depth < 3 else {},
        lambda: "a red wall",
    )
    return rng.choice(kinds)()


def hostile_body(rng):
    names = (
        "image", "images", "text", "q", "source", "target", "model", "lang", "prompt", "messages", "input", "caption",
        "sentences", "query", "beam_size", "n_best", "sample", "stream", "must_include", "prefix", "options", "format",
        "temperature", "seed", "max_tokens", "n", "attention", "explain", "limit",
    )  # fmt: skip
    fields = {name: hostile_value(rng) for name in rng.sample(names, rng.randrange(8))}
    if rng.random() < 0.5:
        fields["image"] = base64.b64encode(hostile_image(rng)).decode()
    text = json.dumps(fields).encode()
    damaged = (
        lambda: text,
        lambda: text,
        lambda: text[: rng.randrange(len(text))],
        lambda: b"[" * rng.randrange(1, 20_000),
        lambda: rng.randbytes(rng.randrange(300)),
        lambda: b'{"image": ' + b"9" * 5_000 + b"}",
    )
    return rng.choice(damaged)()


def head(path, length, kind="application/json", more=b""):
    lines = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n"
    return lines.encode() + more + b"Connection: close\r\n\r\n"


def raw_request(rng):
    """Bytes to send, and whether the sending side is then closed."""
    path, body = rng.choice(PATHS), hostile_body(rng)
    kinds = (
        lambda: (head(path, len(body)) + body, False),
        lambda: (head(path, len(body), rng.choice(("text/plain", "multipart/form-data", "x" * 500, ""))) + body, False),
        lambda: (
            head(path, len(body), "multipart/form-data; boundary=x")
            + b"--x\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a\"\r\n\r\n" + body,
            True,
        ),
        lambda: (head(path, len(body) + rng.randrange(1, 9)) + body, True),  # half closed before the end
        lambda: (head(path, 10**rng.randrange(8, 30)) + body, True),
        lambda: (head(path, "x"), False),
        lambda: (head(path, 3, more=b"Transfer-Encoding: chunked\r\n") + b"zz\r\n", True),
        lambda: (b"POST " + b"/" * rng.randrange(1, 90_000) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", True),
        lambda: (rng.randbytes(rng.randrange(1, 400)), True),
        lambda: (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", False),
        lambda: (b"GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", False),
    )  # fmt: skip
    return rng.choice(kinds)()


def send(address, seed):
    """Send one request; return the status, or 0 where the connection was closed without an answer."""
    rng = random.Random(seed)
    data, half_closed = raw_request(rng)
    with socket.create_connection(address, timeout=SECONDS) as connection:
        try:
            connection.sendall(data)
            if half_closed:
                connection.shutdown(socket.SHUT_WR)
            answer = b""
            while chunk := connection.recv(65_536):
                answer += chunk
        except (ConnectionResetError, BrokenPipeError):
            return 0
    if not answer:
        return 0
    assert b"Traceback" not in answer, (seed, answer)
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert found, (seed, answer[:200])
    return int(found[1])


@pytest.fixture(scope="module")
def live(template, tmp_path_factory):
    """Address and process of a service with short limits."""
    log = tmp_path_factory.mktemp("service") / "log"
    models = tuple(str(template / name) for name in ("captioner", "translator"))
    program = (
        "from limner.apps.photos.index import *; from limner.apps.server.run import *\n"
        "from limner.apps.server.models import *; from limner.apps.server.settings import *\n"
        f"settings = ServerSettings(models={models!r}, port=0, body_timeout=2, max_body=2**20)\n"
        "bound = bind(settings); print(address_of(bound), flush=True)\n"
        "serve(settings, load_served_models(settings), bound, FolderIndex.open)\n"
    )
    command = [sys.executable, "-c", program]
    with log.open("wb") as stderr, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as process:
        host, port = re.fullmatch(r"http://([\d.]+):(\d+)\n", process.stdout.readline().decode()).groups()
        httpx.get(f"http://{host}:{port}/health", timeout=60)
        yield (host, int(port)), process, log
        process.terminate()
        assert process.wait(30) in (0, -15)


def test_malformed_requests_are_answered_or_closed_and_the_service_stays_alive(live):
    address, process, log = live
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda seed: send(address, seed), range(REQUESTS)))
    counts = {status: statuses.count(status) for status in sorted(set(statuses))}
    assert process.poll() is None
    assert all(status in (0, 200, *range(400, 500)) for status in counts), counts
    assert counts.get(0, 0) < REQUESTS // 2, counts
    assert "Traceback" not in log.read_text(errors="replace")
    image = base64.b64encode(png()).decode()
    url = f"http://{address[0]}:{address[1]}"
    answer = httpx.post(f"{url}/v1/describe", json={"image": image}, timeout=60)
    assert answer.status_code == 200 and answer.json()["captions"]
    assert httpx.get(f"{url}/health").json()["waiting"] == 0


def test_slow_bodies_are_cut_off_and_do_not_block_others(live):
    address, _, _ = live
    connections = [socket.create_connection(address, timeout=SECONDS) for _ in range(40)]
    for connection in connections:
        connection.sendall(head("/v1/describe", 1_000) + b"{")
    image = base64.b64encode(png()).decode()
    answer = httpx.post(f"http://{address[0]}:{address[1]}/v1/describe", json={"image": image}, timeout=60)
    assert answer.status_code == 200
    for connection in connections:
        assert connection.recv(65_536).startswith(b"HTTP/1.1 408 ")
        connection.close()


def test_clients_that_leave_in_the_middle_of_a_stream(live):
    address, _, _ = live
    body = json.dumps({"image": base64.b64encode(png()).decode(), "stream": True, "min_length": 10}).encode()

    def leave():
        with socket.create_connection(address, timeout=SECONDS) as connection:
            connection.sendall(head("/v1/describe", len(body)) + body)
            connection.recv(1)

    threads = [threading.Thread(target=leave) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with httpx.Client(base_url=f"http://{address[0]}:{address[1]}", timeout=60) as client:
        client.post("/v1/describe", content=body, headers={"Content-Type": "application/json"})
        assert client.get("/health").json()["waiting"] == 0


def test_connections_without_a_request_are_closed(live):
    address, _, _ = live
    silent, partial = (socket.create_connection(address, timeout=3 * SECONDS) for _ in range(2))
    partial.sendall(b"POST /v1/describe HTTP/1.1\r\nHost: local")
    for connection in (silent, partial):
        with connection:
            assert connection.recv(65_536) == b""
