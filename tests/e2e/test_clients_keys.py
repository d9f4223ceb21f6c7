"""Keys, with the clients of each interface."""

from urllib.error import HTTPError

import httpx
import ollama
import openai
import pytest
from libretranslatepy import LibreTranslateAPI

from limner.apps.server.settings import ServerSettings

KEY = "a-secret-key"
SENTENCE = "There is a black cup in the snow."
QUESTION = "What colour is the cup?"


@pytest.fixture(scope="module")
def guarded(runs, tmp_path_factory, run_service):
    """Address of a service with a key."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"{KEY}\n")
    models = (str(runs.captioner), str(runs.translator))
    yield from run_service(ServerSettings(models=models, port=0, key_file=str(keys)))


def test_ollama(guarded, runs):
    body = {"model": "scenes-en", "prompt": QUESTION, "images": [runs.image]}
    with ollama.Client(guarded, headers={"Authorization": f"Bearer {KEY}"}) as client:
        assert client.generate(**body).response
    for headers in ({}, {"Authorization": "Bearer another"}):
        with ollama.Client(guarded, headers=headers) as client, pytest.raises(ollama.ResponseError) as refused:
            client.generate(**body)
        assert refused.value.status_code == 401 and refused.value.error.startswith("no API key, or a wrong one")


def test_openai(guarded, runs):
    url = {"url": f"data:image/jpeg;base64,{runs.base64}"}
    content = [{"type": "image_url", "image_url": url}, {"type": "text", "text": QUESTION}]
    body = {"model": "scenes-en", "messages": [{"role": "user", "content": content}]}
    with openai.OpenAI(base_url=f"{guarded}/v1", api_key=KEY, max_retries=0) as client:
        assert client.chat.completions.create(**body).choices[0].message.content
    with (
        openai.OpenAI(base_url=f"{guarded}/v1", api_key="another", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        client.chat.completions.create(**body)
    assert refused.value.code == "invalid_api_key"


def test_libretranslate(guarded):
    assert LibreTranslateAPI(guarded, KEY).translate(SENTENCE, "en", "de")
    assert httpx.post(f"{guarded}/detect", json={"q": SENTENCE, "api_key": KEY}).json()[0]["language"] == "en"
    fields = {"q": (None, SENTENCE), "source": (None, "en"), "target": (None, "de"), "api_key": (None, KEY)}
    assert httpx.post(f"{guarded}/translate", files=fields).json()["translatedText"]
    assert httpx.post(f"{guarded}/translate", files={**fields, "api_key": (None, "another")}).status_code == 401
    assert httpx.get(f"{guarded}/frontend/settings").json()["keyRequired"] is True
    for key in (None, "another"):
        with pytest.raises(HTTPError) as refused:
            LibreTranslateAPI(guarded, key).translate(SENTENCE, "en", "de")
        with refused.value as answer:
            assert answer.code == 401
