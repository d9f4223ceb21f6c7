"""Tags, confidence and abstention of the service are those of the captioner."""

import asyncio
import base64
import copy
import json
from functools import partial

import numpy as np
import pytest
import torch
from running_service import caption, describe, png, run_with_engine, with_service

from limner.apps.server.jobs import FinalEvent, GeneratedToken
from limner.apps.server.models import Models, ServedModel
from limner.features.encoders.efficientnet import pooled_vector
from limner.generation.request import RuleOptions
from limner.inference.captioner import Captioner
from limner.inference.new_images import new_item
from limner.inference.scorer import Scorer
from limner.inference.tags import ClassifiedImage, Tag
from limner.runs.calibration import (
    Calibration,
    ConfidenceCalibration,
    FeatureStatistics,
    StoredCalibration,
    TagCalibration,
)
from limner.runs.trained_model import load_trained_model

RED, BLUE, WHITE = png((250, 20, 20)), png((20, 20, 250)), png((250, 250, 250))
DECODING = [{"beam_size": 1}, {"beam_size": 3, "n_best": 2}, {"sample": {"seed": 4, "temperature": 1.5}}]


class SeesBlue:
    """A classifier that sees blue in images that are not white."""

    def denied(self, images, words, min_people_probability):
        return [frozenset()] * len(images)

    def likely(self, tags):
        return tuple(tags)

    def classify(self, features):
        whites = [pooled_vector(one).min() > 0.5 * pooled_vector(one).max() for one in features]
        blue = (Tag("blue", 0.9, "colour", ("blue",)),)
        return [ClassifiedImage(np.zeros(0), None, () if white else blue) for white in whites]


@pytest.fixture(scope="module")
def trained(trained_on_colours):
    return load_trained_model(trained_on_colours)


def calibrated(trained, backbone, min_confidence=0.5):
    captioner = Captioner([trained], backbone)
    (features,) = captioner.features_of([RED]).take([new_item(RED)])
    vectors = np.random.default_rng(0).normal(size=(20, len(pooled_vector(features)))).astype(np.float32)
    confidence = ConfidenceCalibration(
        event="it fits",
        photograph={"constant": 3.0},
        caption={"log_prob": 2.0, "constant": 1.5},
        word={"log_ratio": 1.0, "constant": 0.5},
        min_confidence=min_confidence,
    )
    tags = TagCalibration(threshold=0.5, max_loss=50, certain=1)
    settings = Calibration(weights_sha256="0", tags=tags, confidence=confidence)
    vars(captioner.rules).update(
        calibration=StoredCalibration(settings, FeatureStatistics.of(vectors, directions=2)), tagger=SeesBlue()
    )
    return captioner


@pytest.fixture(scope="module")
def captioner(trained, backbone_of):
    return calibrated(trained, backbone_of())


@pytest.fixture(scope="module")
def models(captioner, trained):
    backbone = captioner.backbone
    unsure, plain = calibrated(trained, backbone, min_confidence=1), Captioner([trained], backbone)
    served = {"tiny": captioner, "unsure": unsure, "plain": plain}
    return Models([ServedModel(name, "describe", {"en": one}) for name, one in served.items()])


@pytest.fixture
def run(models):
    """Run a coroutine function of an engine with some settings."""
    return partial(run_with_engine, models)


@pytest.fixture
def post(models):
    """Send one request: post(path, body)."""
    return lambda path, body: with_service(models, lambda client: client.post(path, json=body))


def test_captions_that_are_decoded_together_are_those_of_the_captioner(run, captioner):
    requests = [(image, decoding) for image in (RED, BLUE, WHITE) for decoding in DECODING]

    async def together(engine):
        return await asyncio.gather(*(caption(engine, image, decoding=decoding) for image, decoding in requests))

    for (image, decoding), final in zip(requests, run(together), strict=True):
        expected = captioner.describe([image], **decoding)[0]
        assert [one.text for one in final.sentences] == [one.text for one in expected]
        assert [one.is_sure for one in final.sentences] == [one.is_sure for one in expected]
        for one, other, tokens in zip(final.sentences, expected, final.tokens, strict=True):
            assert one.confidence == pytest.approx(other.confidence, abs=1e-4)
            words = [word.probability for word in other.words]
            assert [token.confidence for token in tokens] == pytest.approx(words, abs=1e-4)


def test_a_caption_that_misses_its_tag_is_decoded_again(run, captioner):
    async def describe(engine):
        named = caption(engine, RED, decoding={"beam_size": 3})
        left = caption(engine, RED, decoding={"beam_size": 3}, rules=RuleOptions(True, False))
        begun = caption(engine, RED, decoding={"beam_size": 3}, prefix="a red")
        return await asyncio.gather(named, left, begun)

    named, left, begun = run(describe)
    assert "blue" in named.best.text and "blue" not in left.best.text and "blue" not in begun.best.text
    assert left.best.text == captioner.describe([RED], beam_size=3, name_tags=False)[0][0].text
    assert named.job.tags == left.job.tags == [("blue", 0.9)]


@pytest.mark.parametrize("image", [RED, BLUE, WHITE])
def test_the_tokens_of_a_stream_are_those_of_the_final_caption(run, image):
    async def read(engine):
        return [event async for event in await describe(engine, image, decoding={"beam_size": 3})]

    *tokens, final = run(read)
    assert isinstance(final, FinalEvent) and all(isinstance(token, GeneratedToken) for token in tokens)
    assert "".join(token.text for token in tokens) == final.best.text
    assert [token.token_id for token in tokens] == list(final.best.tokens)


def test_scores_are_those_of_the_trained_model_without_the_nouns_of_tags(trained, backbone_of):
    captioner = Captioner([trained], backbone_of())
    other = copy.deepcopy(trained.model)
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    captioner.models = (trained._replace(model=other, tokenizer=trained.tokenizer.extended(["unicorn"])),)
    served = Models([ServedModel("tiny", "describe", {"en": captioner})])
    sentences = ["a blue wall", "a unicorn"]

    body = {"image": base64.b64encode(BLUE).decode(), "sentences": sentences}
    answer = with_service(served, lambda client: client.post("/v1/score", json=body)).json()
    expected = Scorer(trained, backbone_of()).score([BLUE] * 2, sentences)
    assert [score["log_prob"] for score in answer["scores"]] == pytest.approx([score.log_prob for score in expected])


def test_the_own_interface_says_whether_the_model_abstains(post, captioner):
    body = {"image": base64.b64encode(BLUE).decode(), "model": "tiny"}
    confidence = captioner.describe([BLUE])[0][0].confidence
    for least, abstained in ((confidence - 0.01, False), (confidence + 0.01, True)):
        answer = post("/v1/describe", {**body, "min_confidence": least}).json()
        assert answer["abstained"] == abstained and answer["captions"][0]["text"]
        assert (answer["captions"][0]["display_text"] == answer["captions"][0]["text"]) != abstained
        assert answer["captions"][0]["confidence"] == pytest.approx(confidence, abs=1e-4)
    assert post("/v1/describe", {**body, "model": "unsure"}).json()["abstained"]
    refused = post("/v1/describe", {**body, "model": "plain", "min_confidence": 0.1})
    assert refused.status_code in (400, 422) and "no calibration" in refused.json()["error"]["message"]


@pytest.mark.parametrize(("model", "expected"), [("unsure", "not sure; perhaps: blue 90 %"), ("tiny", None)])
def test_other_interfaces_say_that_the_model_is_not_sure(post, captioner, model, expected):
    text, image = "Describe this image.", base64.b64encode(BLUE).decode()
    expected = expected or captioner.describe([BLUE])[0][0].text
    body = {"model": model, "prompt": text, "images": [image]}
    assert post("/api/generate", {**body, "stream": False}).json()["response"] == expected
    lines = [json.loads(line) for line in post("/api/generate", body).text.splitlines()]
    assert "".join(line["response"] for line in lines) == expected and lines[-1]["done"]
    content = [{"type": "text", "text": text}]
    content.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}})
    body = {"model": model, "messages": [{"role": "user", "content": content}], "logprobs": True}
    (choice,) = post("/v1/chat/completions", body).json()["choices"]
    assert choice["message"]["content"] == expected and choice["finish_reason"] == "stop"
    assert bool(choice["logprobs"]["content"]) == (model == "tiny")
    events = post("/v1/chat/completions", {**body, "stream": True}).text.splitlines()
    parts = [json.loads(line[6:]) for line in events if line.startswith("data: {")]
    assert "".join(part["choices"][0]["delta"].get("content") or "" for part in parts) == expected


def test_a_request_whose_tags_fail_fails_alone(trained, backbone_of, caplog):
    class SeesNoWhite(SeesBlue):
        def classify(self, features):
            found = super().classify(features)
            if any(not one.tags for one in found):
                raise ValueError("white")
            return found

    captioner = calibrated(trained, backbone_of())
    vars(captioner.rules).update(tagger=SeesNoWhite())

    async def together(engine):
        requests = (caption(engine, image) for image in (BLUE, WHITE, RED))
        return await asyncio.gather(*requests, return_exceptions=True)

    served = Models([ServedModel("tiny", "describe", {"en": captioner})])
    blue, white, red = run_with_engine(served, together)
    assert isinstance(blue, FinalEvent) and isinstance(red, FinalEvent)
    assert str(white) == "white" and "a request failed" in caplog.text
