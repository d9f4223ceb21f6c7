"""Bodies that no route could work with are refused in one place, with the field that is wrong."""

import json

import pytest
from running_service import with_service

from limner.files.structured import StructureError, parse_json

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
    half = b"\\udbff"
    bodies = [
        ("/v1/describe", *multipart(b"prefix", half, "unicode_escape")),
        ("/v1/describe", *multipart(half, b"a", "unicode_escape")),
        ("/v1/search", *multipart(b"query", b"+2/8-", "utf-7")),
        ("/detect", *multipart(b"q", half, "raw_unicode_escape")),
    ]
    (tmp_path / "keys").write_text("key\n")
    answers = send(bodies) + send(bodies[3:], key_file=str(tmp_path / "keys"))
    assert {answer.status_code for answer in answers} == {400}
    fields = [message_of(answer).partition(": has one half of a surrogate pair")[0] for answer in answers]
    assert fields == ["prefix", "\\udbff", "query", "q", "q"]


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
