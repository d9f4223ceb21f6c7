"""The `ollama` package against a live service."""

import base64
import json

import httpx
import ollama
import pytest

import limner

CAPTION = "scenes-en"
TRANSLATION = "scenes-de"
SENTENCE = "There is a black cup in the snow."


@pytest.fixture(scope="module")
def client(service):
    with ollama.Client(service) as client:
        yield client


@pytest.fixture(scope="module")
def caption(runs):
    return limner.load(runs.captioner).describe([runs.image])[0][0]


def test_generate_streams_the_caption_token_by_token(client, runs, caption):
    parts = list(client.generate(CAPTION, "Describe this image.", images=[runs.image], stream=True))
    assert "".join(part.response for part in parts) == caption.text
    assert [part.done for part in parts] == [False] * len(caption.tokens) + [True]
    last = parts[-1]
    assert (last.model, last.done_reason, last.eval_count) == (CAPTION, "stop", len(caption.tokens))
    assert last.total_duration >= last.prompt_eval_duration + last.eval_duration > 0


def test_generate_without_a_stream(client, runs, caption):
    answer = client.generate(CAPTION, "What is in this picture?", images=[runs.image], stream=False)
    assert answer.response == caption.text
    assert answer.done and answer.done_reason == "stop"


def test_chat(client, runs, caption):
    messages = [{"role": "user", "content": "Describe this image.", "images": [runs.image]}]
    assert client.chat(CAPTION, messages).message.content == caption.text
    parts = list(client.chat(CAPTION, messages, stream=True))
    assert "".join(part.message.content for part in parts) == caption.text
    assert {part.message.role for part in parts} == {"assistant"}


def test_the_prefix_limits_and_log_probabilities(client, runs, caption):
    messages = [{"role": "user", "images": [runs.image]}, {"role": "assistant", "content": "the picture"}]
    answer = client.chat(CAPTION, messages, options={"num_predict": 3})
    assert not answer.message.content.startswith("the picture") and len(answer.message.content.split()) <= 3
    assert answer.done_reason == "length" and answer.prompt_eval_count == 2 and answer.eval_count == 3
    response = client.generate(CAPTION, images=[runs.image], logprobs=True, top_logprobs=2)
    assert "".join(one.token for one in response.logprobs) == caption.text
    assert all(one.logprob <= 0 and len(one.top_logprobs) == 2 for one in response.logprobs)


def test_sampling_repeats_with_a_seed(client, runs):
    def draw(**options):
        return client.generate(CAPTION, images=[runs.image], options={"temperature": 1.5, **options}).response

    assert draw(seed=3) == draw(seed=3)
    assert len({draw(seed=seed) for seed in range(8)}) > 1
    assert len({draw(seed=-1) for _ in range(8)}) > 1


def test_a_translation_model_translates_the_prompt(client, runs):
    expected = limner.load(runs.translator).translate([SENTENCE])[0][0].text
    assert client.generate(TRANSLATION, SENTENCE).response == expected
    system = {"role": "system", "content": "You translate English to German."}
    assert client.chat(TRANSLATION, [system, {"role": "user", "content": SENTENCE}]).message.content == expected


def test_models_are_listed_and_described(client, runs):
    listed = client.list().models
    assert [one.model for one in listed] == ["scenes-en:latest", "scenes-de:latest"]
    assert all(len(one.digest) == 64 and one.size > 0 for one in listed)
    assert [one.model for one in client.ps().models] == ["scenes-en:latest", "scenes-de:latest"]
    shown = client.show("scenes-en:latest")
    assert shown.capabilities == ["completion", "vision"]
    assert shown.modelinfo["general.architecture"] == "mrnn" == shown.details.family
    assert client.show(TRANSLATION).capabilities == ["completion"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ({"model": "llava"}, 404, "model 'llava': not served"),
        ({"model": "scenes-en:de"}, 404, "model 'scenes-en:de': not served"),
        ({"images": [base64.b64encode(b"no image").decode()]}, 400, "not an image"),
        ({"images": []}, 400, "model 'scenes-en' takes one image, got 0"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors(client, runs, arguments, status, message, stream):
    with pytest.raises(ollama.ResponseError) as refused:
        request = {"model": CAPTION, "prompt": "Describe it.", "images": [runs.image], **arguments}
        answer = client.generate(**request, stream=stream)
        list(answer)
    assert refused.value.status_code == status
    assert message in refused.value.error and "\n" not in refused.value.error


def test_other_endpoints_are_refused(client):
    with pytest.raises(ollama.ResponseError) as refused:
        client.pull("llava")
    assert refused.value.status_code in (404, 405)


def test_an_empty_request_loads_the_model(client):
    assert client.generate(CAPTION).done_reason == "load"
    assert client.chat(CAPTION).done_reason == "load"
    with pytest.raises(ollama.ResponseError):
        client.generate("llava")


def test_curl_without_a_content_type(service, runs, caption):
    body = json.dumps({"model": CAPTION, "images": [runs.base64]})
    answer = httpx.post(
        f"{service}/api/generate", content=body, headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert "".join(json.loads(line)["response"] for line in answer.text.splitlines()) == caption.text
    assert httpx.post(f"{service}/api/generate", content="{").json().keys() == {"error"}


def test_clients_find_the_service(service):
    for path in ("/", "/api/version", "/api/tags"):
        assert httpx.head(f"{service}{path}").status_code == 200
    assert httpx.get(f"{service}/api/version").json() == {"version": limner.__version__}
