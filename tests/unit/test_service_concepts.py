"""The service chooses, replaces and withholds captions by the concepts of the captioner."""

import asyncio
import base64
import json

import pytest
from running_service import caption, describe, png, run_with_engine, with_service

from limner.apps.server.jobs import FinalEvent, GeneratedToken
from limner.apps.server.models import Models, ServedModel
from limner.files.structured import StructureError, parse_json
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
    compute = captioner.rules.concepts.of_vectors

    def fails_for_white(vectors):
        if vectors.min() > 0.5:
            raise ValueError("white")
        return compute(vectors)

    monkeypatch.setattr(captioner.rules.concepts, "of_vectors", fails_for_white)

    async def together(engine):
        requests = (caption(engine, image) for image in (BLUE, WHITE, RED))
        return await asyncio.gather(*requests, return_exceptions=True)

    served = Models([ServedModel("tiny", "describe", {"en": captioner})])
    blue, white, red = run_with_engine(served, together)
    assert isinstance(blue, FinalEvent) and isinstance(red, FinalEvent)
    assert str(white) == "white" and "a request failed" in caplog.text


HIGH, LOW = "\\udbff", "\\uDC00"
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def multipart(name, value, charset="utf-8", file=""):
    disposition = b'Content-Disposition: form-data; name="' + name + b'"' + file.encode()
    content = b"--x\r\n" + disposition + b"\r\n\r\n" + value + b"\r\n--x--\r\n"
    return content, {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}


@pytest.fixture
def send(models):
    """Send bodies to a service: send([(path, content, headers), ...], **settings) returns the answers."""

    def send(requests, **settings):
        async def post(client):
            return [await client.post(path, content=body, headers=headers) for path, body, headers in requests]

        return with_service(models, post, **settings)

    return send


def message_of(answer):
    error = answer.json()["error"]
    return error if isinstance(error, str) else error["message"]


HALVES = [
    ("/v1/describe", f'{{"image": "", "prefix": "a {HIGH}"}}', "prefix"),
    ("/v1/describe", f'{{"image": "", "must_include": ["a", "{LOW}"]}}', "must_include.1"),
    ("/v1/describe", f'{{"{LOW}": 1}}', "\\udc00"),
    ("/v1/score", f'{{"image": "", "sentences": ["{LOW}{HIGH}"]}}', "sentences.0"),
    ("/v1/search", f'{{"query": "{HIGH}x"}}', "query"),
    ("/v1/chat/completions", f'{{"messages": [{{"content": [{{"text": "{HIGH}"}}]}}]}}', "messages.0.content.0.text"),
    ("/v1/chat/completions", f'{{"tools": [{{"a": {{"{HIGH}b": null}}}}]}}', "tools.0.a.\\udbffb"),
    ("/api/chat", f'{{"messages": [{{}}, {{"images": ["{LOW}"]}}]}}', "messages.1.images.0"),
    ("/api/generate", f'{{"options": {{"stop": ["{HIGH} {LOW}"]}}}}', "options.stop.0"),
    ("/api/show", f'{{"name": "{LOW}"}}', "name"),
    ("/translate", f'{{"q": "{HIGH}"}}', "q"),
    ("/detect", f'{{"q": "a", "api_key": "{LOW}"}}', "api_key"),
    ("/api/generate", b'{"prompt": "caf\xc3\xa9 \xed\xa0\xbd"}', "prompt"),
    ("/v1/explain", '{"caption": "\ud83d"}'.encode("utf-16", "surrogatepass"), "caption"),
]


def test_half_a_surrogate_pair_is_refused_with_its_field(send, caplog):
    for (path, _, field), answer in zip(HALVES, send([(path, body, JSON) for path, body, _ in HALVES]), strict=True):
        assert answer.status_code == 400, answer.text
        assert message_of(answer).startswith(f"{field}: has one half of a surrogate pair")
        if path.startswith("/v1/"):
            assert answer.json()["error"]["param"] == field
    assert not caplog.records


def test_objects_with_very_many_fields_are_refused_before_their_names_are_checked(send):
    many = {f"field{number}": 1 for number in range(100_000)}
    places = {"/api/generate": "options", "/api/chat": "body", "/v1/describe": "body", "/translate": "body"}
    bodies = [json.dumps({"options": many} if place == "options" else many) for place in places.values()]
    for place, answer in zip(places.values(), send([*zip(places, bodies, [JSON] * 4, strict=True)]), strict=True):
        assert answer.status_code == 400 and "Limner-Ignored" not in answer.headers
        assert message_of(answer).startswith(f"{place}: expected at most 1,000 fields, got 100,000; leave out")


def test_whole_surrogate_pairs_are_characters(send):
    answers = send(
        [
            ("/detect", f'{{"q": "{HIGH}{LOW}"}}', JSON),
            ("/detect", json.dumps({"q": "𝔘 \\ud800 as text"}), JSON),
            ("/detect", json.dumps({"q": "𝔘"}, ensure_ascii=False).encode(), JSON),
        ]
    )
    assert [answer.status_code for answer in answers] == [200, 200, 200]


def test_forms_cannot_bring_half_a_pair_and_name_it(send, tmp_path):
    bodies = [
        ("/v1/describe", *multipart(b"prefix", b"\\udbff", "unicode_escape")),
        ("/v1/describe", *multipart(b"\\udbff", b"a", "unicode_escape")),
        ("/v1/search", *multipart(b"query", b"+2/8-", "utf-7")),
        ("/v1/describe", *multipart(b"+2AA-", b"a", "utf-7", file='; filename="a.png"')),
        ("/detect", *multipart(b"q", b"\\udbff", "raw_unicode_escape")),
    ]
    (tmp_path / "keys").write_text("key\n")
    answers = send(bodies) + send(bodies[4:], key_file=str(tmp_path / "keys"))
    assert {answer.status_code for answer in answers} == {400}
    fields = [message_of(answer).partition(": has one half of a surrogate pair")[0] for answer in answers]
    assert fields == ["prefix", "\\udbff", "query", "\\ud800", "q", "q"]


def test_forms_in_any_charset_are_answered(send):
    forms = []
    for charset in ("idna", "punycode", "utf-16", "zip", "no-such", "undefined"):
        forms += [
            ("/v1/describe", *multipart(b"image", b"xn--\xff", charset, file='; filename="a\xed\xa0\xbd.png"')),
            ("/v1/describe", *multipart(b"im\xff-", b"xn--\xff-\xfe", charset)),
            ("/detect", *multipart(b"q", b"\xffxn--a-\xfe", charset)),
        ]
    answers = send(forms)
    assert all(answer.status_code in (200, 400, 422) for answer in answers), [answer.text for answer in answers]


def test_percent_escapes_of_half_a_pair_are_replaced_in_forms_and_paths(send):
    answers = send([("/detect", b"q=%ED%A0%BD", FORM), ("/detect", b"%ED%A0%BD=1&q=a", FORM)])
    assert [answer.status_code for answer in answers] == [200, 200]


def test_other_json_that_is_not_valid_is_refused_alike(send):
    bodies = ["[" * 65 + "]" * 65, '{"a": ' * 70 + "1" + "}" * 70, '{"q": ' + "9" * 5_000 + "}", '{"q": "a", "q": "b"}']
    bodies += ["{", b"\xff\xfe\xfd"]
    paths = ("/v1/describe", "/v1/chat/completions", "/api/generate", "/detect")
    for answer in send([(path, body, JSON) for path in paths for body in bodies]):
        assert answer.status_code == 400 and "\n" not in message_of(answer)
        assert any(text in message_of(answer) for text in ("JSON", "within each other", "occurs twice"))
    for answer in send([("/v1/describe", body, JSON) for body in ("", "[]", "null", '{"image": NaN}')]):
        assert answer.status_code in (400, 422) and "\n" not in message_of(answer)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", "1" + "0" * 40, "-9223372036854775809", '"\\u0000"'])
def test_numbers_that_no_field_has_are_refused(send, value):
    image = '"image": "", "images": ["eA"], "sample": true'
    bodies = [
        ("/v1/describe", f'{{{image}, "temperature": {value}}}'),
        ("/v1/describe", f'{{{image}, "seed": {value}}}'),
        ("/v1/chat/completions", f'{{"model": "tiny", "messages": [], "max_tokens": {value}}}'),
        ("/api/generate", f'{{"model": "tiny", "options": {{"seed": {value}, "top_p": {value}}}}}'),
        ("/translate", f'{{"q": "a", "source": "en", "target": "de", "alternatives": {value}}}'),
    ]
    for answer in send([(path, body, JSON) for path, body in bodies]):
        assert 400 <= answer.status_code < 500


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f'{{"a": [1, {{"b": "{HIGH}"}}]}}', "a.1.b"),
        (f'["{LOW}"]', "0"),
        (f'"{LOW}"', ""),
        (b'{"caf\xc3\xa9": "\xed\xbf\xbf"}', "café"),
    ],
)
def test_readers_of_files_name_the_place_as_well(text, place):
    with pytest.raises(StructureError, match="has one half of a surrogate pair") as raised:
        parse_json(text)
    assert raised.value.place == place
