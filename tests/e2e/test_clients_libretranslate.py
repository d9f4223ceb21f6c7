"""The `libretranslatepy` package, and requests as LibreTranslate documents them, against a live service."""

import json
from urllib.error import HTTPError

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

import limner

SENTENCES = ["There is a black cup in the snow.", "The picture shows a red seal."]


@pytest.fixture(scope="module")
def client(service):
    return LibreTranslateAPI(service)


@pytest.fixture(scope="module")
def translations(runs):
    return [[one.text for one in n_best] for n_best in limner.load(runs.translator).translate(SENTENCES, n_best=3)]


@pytest.fixture(scope="module")
def post(service):
    def post(path="translate", **body):
        return httpx.post(f"{service}/{path}", json=body)

    return post


def test_translate(client, translations):
    assert client.translate(SENTENCES[0], "en", "de") == translations[0][0]


def test_the_source_is_detected(client, post, translations):
    assert client.translate(SENTENCES[0], "auto", "de") == translations[0][0]
    answer = post(q=SENTENCES[0], source="auto", target="de").json()
    assert answer["detectedLanguage"]["language"] == "en" and answer["detectedLanguage"]["confidence"] > 90


def test_languages(client):
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]


def test_detect(client):
    detected = client.detect("Ein schwarzer Becher steht im Schnee.")
    assert [one["language"] for one in detected] == ["de", "en"]
    assert detected[0]["confidence"] > 90
    assert client.detect("There is a seal on the beach.")[0]["language"] == "en"


def test_several_texts_and_alternatives(post, translations):
    answer = post(q=SENTENCES, source="en", target="de", alternatives=2).json()
    assert answer == {
        "translatedText": [one[0] for one in translations],
        "alternatives": [one[1:] for one in translations],
        "outOfDomain": [False, False],
    }
    answer = post(q=SENTENCES, source="auto", target="de").json()
    assert [one["language"] for one in answer["detectedLanguage"]] == ["en", "en"]
    assert post(q=SENTENCES[0], source="en", target="de", alternatives=2).json()["alternatives"] == translations[0][1:]


def test_a_text_is_translated_sentence_by_sentence(post, translations):
    answer = post(q=f"{SENTENCES[0]} {SENTENCES[1]}\n\n{SENTENCES[0]}\n", source="en", target="de").json()
    first, second = translations[0][0], translations[1][0]
    assert answer["translatedText"] == f"{first} {second}\n\n{first}\n"
    html = post(q=f"<p>{SENTENCES[0]}</p><br/>&#65; &amp;", source="en", target="de", format="html").json()
    assert html["translatedText"].startswith(f"<p>{first}</p><br/>") and html["outOfDomain"]


def test_an_image_is_accepted(post, runs, translations):
    """The model was trained without images; it ignores them."""
    answer = post(q=SENTENCES[0], source="en", target="de", image=runs.base64).json()
    assert answer["translatedText"] == translations[0][0]


def test_what_pages_ask_for(service):
    settings = httpx.get(f"{service}/frontend/settings").json()
    assert settings["language"] == {
        "source": {"code": "en", "name": "English"},
        "target": {"code": "de", "name": "German"},
    }
    assert settings["keyRequired"] is False and settings["suggestions"] is False


def test_errors_reach_the_client(client):
    with pytest.raises(HTTPError) as refused:
        client.translate(SENTENCES[0], "fr", "de")
    with refused.value as answer:
        assert answer.code == 400
        assert json.loads(answer.read())["error"].startswith("no model translates from fr to de")


def test_what_is_not_offered(post, service):
    for path in ("suggest", "translate_file"):
        answer = post(path, q="a", s="b", source="en", target="de")
        assert answer.status_code == 404 and answer.json().keys() == {"error"}
    answer = httpx.post(f"{service}/translate", content="q=a", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415 and answer.json().keys() == {"error"}
