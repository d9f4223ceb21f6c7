"""Requests of real programs are answered as the servers that these were written for would."""

import base64
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from running_service import with_service

from limner.apps.server.models import load_served_models
from limner.apps.server.settings import ServerSettings

PHOTO = (Path(__file__).parents[2] / "docs" / "assets" / "photographs" / "cat.jpg").read_bytes()
BASE64 = base64.b64encode(PHOTO).decode()
TABLE = yaml.safe_load(Path(__file__).with_name("client_requests.yaml").read_text(encoding="utf-8"))
NAMES = ("gemma3", "qwen2.5vl:3b", "gpt-5-nano", "llava:7b")


@pytest.fixture(scope="module")
def ask():
    """Send requests to the built-in models, which have other names as well: ask(use)."""
    return partial(with_service, load_served_models(ServerSettings(aliases=tuple(f"{name}=limner" for name in NAMES))))


def send(client, path, body=None, form=None):
    if body is form is None:
        return client.get(path)
    if form is None:
        text = json.dumps(body).replace("IMAGE", BASE64)
        return client.post(path, content=text, headers={"Content-Type": "application/json"})
    return client.post(path, files={key: PHOTO if text == "FILE" else (None, text) for key, text in form.items()})


def text_of(part):
    """Return the generated text of a response or of a part of one; else all of it."""
    match part:
        case {"choices": [{"message": {"content": text}}]} | {"choices": [{"delta": {"content": text}}]}:
            return text
        case {"message": {"content": text}} | {"output": [{"content": [{"text": text}]}]} | {"response": text}:
            return text
    return "" if "choices" in part else str(part)


def said(answer):
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [line for line in lines if line.startswith("{")]
    return "".join(text_of(json.loads(line)) for line in lines) if lines[0][0] in "{[" else answer.text


@pytest.mark.parametrize("case", TABLE, ids=lambda case: f"{case['program']}: {case['request']}")
def test_requests_of_real_programs(ask, case):
    answer = ask(lambda client: send(client, case["path"], case.get("body"), case.get("form")))
    assert answer.status_code == case.get("status", 400 if "error" in case else 200), answer.text
    text = said(answer)
    assert text and "not sure" not in text and case.get("says", "") in text and case.get("error", "") in text
    if "keys" in case:
        (labels,) = json.loads(text).values()
        assert labels and all([*label] == case["keys"] for label in labels)
    if "embeds" in case:
        embedded = answer.json()
        vectors = embedded.get("embeddings") or [each["embedding"] for each in embedded.get("data", [embedded])]
        assert np.linalg.norm(vectors, axis=1) == pytest.approx([1] * case["embeds"])
    if "ignored" in case:
        assert set(answer.headers["Limner-Ignored"].split(", ")) == set(case["ignored"])


def test_models_of_equal_digest_have_one_language(ask):
    listed = ask(lambda client: client.get("/api/tags")).json()["models"]
    digests = {model["name"]: model["digest"] for model in listed}
    assert len(digests) == len(listed) and "llava:7b" in digests
    assert digests["limner:latest"] == digests["limner:en"] != digests["limner:de"] != digests["limner:zh"]


def test_fields_without_effect_are_logged_once(ask, caplog):
    async def twice(client):
        return [await send(client, "/api/embed", {"model": "limner", "input": "a", "truncate": True}) for _ in range(2)]

    assert {answer.status_code for answer in ask(twice)} == {200}
    (record,) = [record for record in caplog.records if "without effect" in record.getMessage()]
    assert "truncate" in record.getMessage()


def test_a_sentence_is_near_its_image(ask):
    inputs = ["a cat", "a rocket", "data:image/jpeg;base64,IMAGE"]
    body = {"model": "limner", "input": inputs, "encoding_format": "base64"}
    data = ask(lambda client: send(client, "/v1/embeddings", body)).json()["data"]
    long = {"model": "limner", "input": "a cat " * 20_000}
    assert ask(lambda client: send(client, "/v1/embeddings", long)).status_code == 400
    cat, rocket, photo = (np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in data)
    assert cat @ photo > rocket @ photo + 0.2
