"""The service chooses, replaces and withholds captions by the concepts of the captioner."""

import asyncio
import base64
import json

import pytest
from running_service import caption, describe, png, run_with_engine, with_service

from limner.apps.server.jobs import FinalEvent, GeneratedToken
from limner.apps.server.models import Models, ServedModel
from limner.generation.request import RuleOptions
from limner.inference.captioner import Captioner
from limner.runs.trained_model import load_trained_model

RED, BLUE, WHITE = png((250, 20, 20)), png((20, 20, 250)), png((250, 250, 250))
DECODING = [{"beam_size": 1}, {"beam_size": 3, "n_best": 2}, {"sample": {"seed": 4, "temperature": 1.5}}]


@pytest.fixture(scope="module")
def trained(trained_on_colours):
    return load_trained_model(trained_on_colours)


def with_rules(trained, backbone, rules):
    captioner = Captioner([trained], backbone)
    captioner.rules = rules
    return captioner


@pytest.fixture(scope="module")
def captioner(trained, backbone_of, colour_concepts):
    return with_rules(trained, backbone_of(), colour_concepts())


@pytest.fixture(scope="module")
def models(captioner, trained, colour_concepts):
    """Captioners that see colours (tiny), wood in any image, nothing in any image, or have no concepts (plain)."""
    backbone, unseen = captioner.backbone, dict.fromkeys(("red", "green", "blue", "white"), 30)
    wood = with_rules(trained, backbone, colour_concepts(wood=0, **unseen))
    nothing = with_rules(trained, backbone, colour_concepts(**unseen))
    served = {"tiny": captioner, "wood": wood, "nothing": nothing, "plain": Captioner([trained], backbone)}
    return Models([ServedModel(name, "describe", {"en": generator}) for name, generator in served.items()])


@pytest.fixture
def post(models):
    """Send one request: post(path, body)."""
    return lambda path, body, **settings: with_service(models, lambda client: client.post(path, json=body), **settings)


def test_captions_that_are_decoded_together_are_those_of_the_captioner(models, captioner):
    requests = [(image, decoding) for image in (RED, BLUE, WHITE) for decoding in DECODING]

    async def together(engine):
        return await asyncio.gather(*(caption(engine, image, decoding=decoding) for image, decoding in requests))

    for (image, decoding), final in zip(requests, run_with_engine(models, together), strict=True):
        expected = captioner.describe([image], **decoding)[0]
        assert [one.text for one in final.sentences] == [one.text for one in expected]
        assert [one.is_sure for one in final.sentences] == [one.is_sure for one in expected]
        for one, other, tokens in zip(final.sentences, expected, final.tokens, strict=True):
            assert one.confidence == pytest.approx(other.confidence, abs=1e-4)
            assert [token.token_id for token in tokens] == list(other.tokens)


@pytest.mark.parametrize("image", [RED, BLUE, WHITE])
def test_the_tokens_of_a_stream_are_those_of_the_final_caption(models, image):
    async def read(engine):
        return [event async for event in await describe(engine, image, decoding={"beam_size": 3})]

    *tokens, final = run_with_engine(models, read)
    assert isinstance(final, FinalEvent) and all(isinstance(token, GeneratedToken) for token in tokens)
    assert "".join(token.text for token in tokens) == final.best.text
    assert [token.token_id for token in tokens] == list(final.best.tokens)


def test_concepts_can_be_left_out_and_a_prefix_is_kept(models):
    async def captions(engine):
        options = {"model": "nothing", "decoding": {"beam_size": 3}}
        left = caption(engine, RED, rule_options=RuleOptions(True, False), **options)
        begun = caption(engine, RED, prefix="a red", **options)
        plain = caption(engine, RED, model="wood")
        return await asyncio.gather(left, begun, plain)

    left, begun, plain = run_with_engine(models, captions)
    assert "red" in left.best.text and begun.best.text.startswith("a red")
    assert plain.best.text == "a photo of wood" and plain.job.tags[0][0] == "wood"


def test_the_own_interface_says_whether_the_caption_is_withheld(post):
    body = {"image": base64.b64encode(BLUE).decode()}
    names = ("tiny", "wood", "nothing")
    shown, plain, withheld = (post("/v1/describe", {**body, "model": name}).json() for name in names)
    assert not shown["abstained"] and "blue" in shown["captions"][0]["text"] and shown["tags"][0]["name"] == "blue"
    assert not plain["abstained"] and plain["captions"][0]["text"] == "a photo of wood"
    assert withheld["abstained"] and withheld["captions"][0]["display_text"] == "" and withheld["tags"] == []
    refused = post("/v1/describe", {**body, "model": "plain", "min_confidence": 0.1})
    assert refused.status_code in (400, 422) and "no concepts" in refused.json()["error"]["message"]


@pytest.mark.parametrize(("model", "expected"), [("tiny", None), ("wood", "a photo of wood"), ("nothing", "")])
def test_other_interfaces_have_a_caption_or_none(post, captioner, model, expected):
    text, image = "Describe this image.", base64.b64encode(BLUE).decode()
    expected = captioner.describe([BLUE])[0][0].text if expected is None else expected
    body = {"model": model, "prompt": text, "images": [image]}
    whole = post("/api/generate", {**body, "stream": False}).json()
    assert (whole["response"], whole["done_reason"]) == (expected, "stop" if expected else "abstained")
    safe = post("/api/generate", {**body, "stream": False}, withheld="a photo").json()
    assert (safe["response"], safe["done_reason"]) == (expected or "a photo", "stop")
    lines = [json.loads(line) for line in post("/api/generate", body).text.splitlines()]
    assert "".join(line["response"] for line in lines) == expected and lines[-1]["done"]
    content = [{"type": "text", "text": text}]
    content.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}})
    body = {"model": model, "messages": [{"role": "user", "content": content}], "logprobs": True}
    (choice,) = post("/v1/chat/completions", body).json()["choices"]
    assert choice["message"]["content"] == expected
    assert choice["finish_reason"] == ("stop" if expected else "content_filter")
    assert bool(choice["logprobs"]["content"]) == (model != "nothing")
    events = post("/v1/chat/completions", {**body, "stream": True}).text.splitlines()
    parts = [json.loads(line[6:]) for line in events if line.startswith("data: {")]
    assert "".join(part["choices"][0]["delta"].get("content") or "" for part in parts) == expected


def test_a_request_whose_concepts_fail_fails_alone(trained, backbone_of, colour_concepts, monkeypatch, caplog):
    captioner = with_rules(trained, backbone_of(), colour_concepts())
    compute = captioner.rules.concepts.probabilities

    def fails_for_white(features):
        if min(features["pooled"]) > 0.5:
            raise ValueError("white")
        return compute(features)

    monkeypatch.setattr(captioner.rules.concepts, "probabilities", fails_for_white)

    async def together(engine):
        requests = (caption(engine, image) for image in (BLUE, WHITE, RED))
        return await asyncio.gather(*requests, return_exceptions=True)

    served = Models([ServedModel("tiny", "describe", {"en": captioner})])
    blue, white, red = run_with_engine(served, together)
    assert isinstance(blue, FinalEvent) and isinstance(red, FinalEvent)
    assert str(white) == "white" and "a request failed" in caplog.text
