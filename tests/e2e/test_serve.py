"""`limner serve` as a process: its address, its answers, several workers, and its end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from limner.inference.captioner import Captioner
from limner.inference.translator import Translator

SECONDS = 60


@contextmanager
def serving(*arguments) -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
    """Run `limner serve` on a free port; yields a client and the process."""
    command = [sys.executable, "-m", "limner", "serve", "--port", "0", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        if address is None:
            process.kill()
            pytest.fail(process.stderr.read())
        try:
            with httpx.Client(base_url=address[0], timeout=SECONDS) as client:
                yield client, process
        finally:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=SECONDS)


def test_captions_and_translations_are_those_of_the_command_line(runs):
    image = runs.image.read_bytes()
    with serving("--model", runs.captioner, "--model", runs.translator) as (client, process):
        described = client.post("/v1/describe", files={"image": image}, data={"beam_size": "3"}).json()
        body = {"text": ["There is a red ball in the room.", "", "qwert asdf"], "beam_size": 2}
        translated = client.post("/v1/translate", json=body).json()
        one = client.post("/v1/translate", json={"text": body["text"][0], "explain": True}).json()
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=SECONDS)
    captions = Captioner.load(runs.captioner).describe([runs.image], beam_size=3)[0]
    assert [one["text"] for one in described["captions"]] == [caption.text for caption in captions]
    expected = Translator.load(runs.translator).translate(body["text"], beam_size=2)
    assert [[text["text"] for text in each] for each in translated["translations"]] == [
        [text.text for text in each] for each in expected
    ]
    assert translated["out_of_domain"][2] is True and one["out_of_domain"] is translated["out_of_domain"][0]
    words = len(one["explanation"]["target"])
    assert [len(row) for row in one["explanation"]["alignment"]] == [len(one["explanation"]["source"])] * words
    assert process.returncode == 130 and "interrupted" not in log  # Ctrl-C is the usual end
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert [line["path"] for line in lines] == ["/v1/describe", "/v1/translate", "/v1/translate"]


def test_the_end_finishes_accepted_requests_and_streams(runs):
    image = runs.base64

    def ask(client, number):
        body = {"image": image, "beam_size": 1 + number, "min_length": 20, "stream": number % 2 == 1}
        return client.post("/v1/describe", json=body)

    with serving("--model", runs.captioner) as (client, process), ThreadPoolExecutor(8) as pool:
        with client.stream("POST", "/v1/describe", json={"image": image, "stream": True}) as first:
            requests = [pool.submit(ask, client, number) for number in range(8)]
            while client.get("/metrics").text.count('route="/v1/describe",status="200"') == 0:
                pass
            process.send_signal(signal.SIGTERM)
            text = first.read().decode()
        assert "event: done" in text
        for one in requests:
            try:
                answer = one.result(SECONDS)
            except httpx.TransportError:  # was not accepted any more
                continue
            assert answer.status_code in (200, 503)
            assert "event: error" not in answer.text
        assert process.wait(SECONDS) == 0


STUCK = """
import threading
from limner.apps.photos.index import FolderIndex
from limner.apps.server import service
from limner.apps.server.models import load_served_models
from limner.apps.server.run import address_of, bind, serve
from limner.apps.server.settings import ServerSettings
settings = ServerSettings(models=({run!r},), port=0, stop_timeout=0.3)
service.make_job = lambda *_: print("stuck", flush=True) or threading.Event().wait()
bound = bind(settings)
print(address_of(bound), flush=True)
serve(settings, load_served_models(settings), bound, FolderIndex.open)
"""
"""A service whose images are read without end."""


def test_the_end_does_not_wait_for_what_is_stuck(runs):
    command = [sys.executable, "-c", STUCK.format(run=str(runs.captioner))]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        ThreadPoolExecutor(1) as pool,
    ):
        url = f"{process.stdout.readline().strip()}/v1/describe"
        asking = pool.submit(httpx.post, url, json={"image": runs.base64}, timeout=SECONDS)
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=SECONDS)
        assert asking.result(SECONDS).status_code == 503
    assert process.returncode == 0 and "Traceback" not in log


def test_several_workers_answer_alike(runs):
    with serving("--model", runs.captioner, "--workers", 2) as (client, process):
        answers = [client.post("/v1/describe", json={"image": runs.base64}).json() for _ in range(4)]
        assert all(answer == answers[0] for answer in answers)
        assert 'route="/v1/describe",status="200"' in client.get("/metrics").text
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


def test_a_port_that_is_taken_is_one_line(runs):
    with serving("--model", runs.captioner) as (client, _):
        port = client.base_url.port
        command = [sys.executable, "-m", "limner", "serve", "--model", str(runs.captioner), "--port", str(port)]
        taken = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert taken.returncode == 1 and "cannot listen" in taken.stderr and "Traceback" not in taken.stderr
