"""The own API of the service, and what protects it."""

import asyncio
import base64
import contextlib
import json
import socket
from functools import partial
from io import BytesIO

import pytest
from PIL import Image
from running_service import png, scope_of, with_service
from test_collection_index import reverse_features

from limner.apps.server import protection
from limner.apps.server.chats import SamplingFields, decoding_changes
from limner.apps.server.errors import InvalidRequestError, NotSupportedError
from limner.apps.server.images import ImageFetcher, decode_image_text
from limner.apps.server.labels import labels_of, schema_of
from limner.apps.server.libretranslate_api import SENTENCE_ENDS, detect_language
from limner.apps.server.protection import Keys
from limner.apps.server.run import bind
from limner.apps.server.settings import KEYS_VARIABLE, ServerSettings, read_keys
from limner.data.collection import write_items
from limner.data.examples import Item
from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError
from limner.inference.retriever import Retriever
from limner.inference.scorer import Scorer

IMAGE = png()
BASE64 = base64.b64encode(IMAGE).decode()


@pytest.fixture
def ask(models):
    """Send requests to an application: ask(use, **settings), where `use` takes a client."""
    return partial(with_service, models)


@pytest.fixture
def post(ask):
    """Send one request: post(path, body, **settings)."""

    def post(path, body=None, settings=None, **options):
        return ask(lambda client: client.post(path, json=body, **options), **(settings or {}))

    return post


def error_of(response):
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"] and "Traceback" not in error["message"]
    return error


def test_a_caption_has_its_tokens_and_their_log_probabilities(post):
    answer = post("/v1/describe", {"image": BASE64, "beam_size": 3, "n_best": 2}).json()
    assert answer["model"] == "tiny" and answer["lang"] == "en" and len(answer["captions"]) == 2
    best = answer["captions"][0]
    assert "".join(token["text"] for token in best["tokens"]) == best["text"]
    assert best["log_prob"] <= sum(token["log_prob"] for token in best["tokens"]) + 1e-5


def test_an_upload_and_a_data_url_are_the_same_image(ask):
    async def both(client):
        url = {"image": f"data:image/png;base64,{BASE64}", "beam_size": 2}
        upload = {"image": ("a.png", IMAGE, "image/png")}
        return await asyncio.gather(
            client.post("/v1/describe", json=url), client.post("/v1/describe", files=upload, data={"beam_size": "2"})
        )

    one, other = ask(both)
    assert one.status_code == 200 and one.json() == other.json()


def test_a_stream_has_tokens_and_then_the_response(ask):
    async def read(client):
        whole = await client.post("/v1/describe", json={"image": BASE64})
        return whole.json(), (await client.post("/v1/describe", json={"image": BASE64, "stream": True})).text

    whole, text = ask(read)
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.split("\r\n\r\n") if block]
    *tokens, done = [(block["event"], json.loads(block["data"])) for block in blocks if "event" in block]
    assert {name for name, _ in tokens} == {"token"} and done == ("done", whole)
    assert "".join(token["text"] for _, token in tokens) == whole["captions"][0]["text"]


def test_scores_are_those_of_the_scorer(post, models):
    sentences = ["a red wall", "a blue wall"]
    answer = post("/v1/score", {"image": BASE64, "sentences": sentences}).json()
    served = models.get("tiny")
    expected = Scorer(served.trained(), served.backbone).score([IMAGE] * 2, sentences)
    assert [one["log_prob"] for one in answer["scores"]] == pytest.approx([one.log_prob for one in expected])


def test_an_explanation_has_the_words_of_the_caption(post):
    answer = post("/v1/explain", {"image": BASE64, "caption": "a red wall"}).json()
    assert [word["text"] for word in answer["explanation"]["target"]] == ["a", "red", "wall"]
    assert answer["explanation"]["attention"] is None  # m-RNN has none


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/describe", {}, 422, "image"),
        ("/v1/describe", {"image": 3}, 422, "image"),
        ("/v1/describe", {"image": "§§"}, 400, "image"),
        ("/v1/describe", {"image": base64.b64encode(b"text").decode()}, 400, "image"),
        ("/v1/describe", {"image": base64.b64encode(IMAGE[:60]).decode()}, 400, "image"),
        ("/v1/describe", {"image": "/etc/passwd:"}, 400, "image"),
        ("/v1/describe", {"image": "file:///etc/passwd"}, 400, "image"),
        ("/v1/describe", {"image": "http://169.254.169.254/"}, 400, "image"),
        ("/v1/describe", {"image": "data:text/html,<p>"}, 400, "image"),
        ("/v1/describe", {"image": BASE64, "beam_sise": 3}, 422, "beam_sise"),
        ("/v1/describe", {"image": BASE64, "beam_size": 0}, 422, "beam_size"),
        ("/v1/describe", {"image": BASE64, "beam_size": 10**9}, 422, "beam_size"),
        ("/v1/describe", {"image": BASE64, "beam_size": True}, 422, "beam_size"),
        ("/v1/describe", {"image": BASE64, "beam_size": 2, "n_best": 3}, 400, "decoding"),
        ("/v1/describe", {"image": BASE64, "temperature": 2}, 422, None),
        ("/v1/describe", {"image": BASE64, "model": "other"}, 404, "model"),
        ("/v1/describe", {"image": BASE64, "lang": "fr"}, 400, "lang"),
        ("/v1/describe", {"image": BASE64, "must_include": ["zebra"]}, 400, "must_include"),
        ("/v1/describe", {"image": BASE64, "prefix": "a " * 400}, 400, "prefix"),
        ("/v1/score", {"image": BASE64, "sentences": []}, 422, "sentences"),
        ("/v1/score", {"image": BASE64, "sentences": [""]}, 400, None),
        ("/v1/translate", {"text": "a"}, 400, None),
        ("/v1/search", {"query": "a"}, 400, None),
        ("/v1/search", {}, 422, None),
        ("/v1/nothing", {}, 404, None),
    ],
)
def test_a_wrong_request_is_one_error_object(post, path, body, status, param):
    response = post(path, body)
    assert response.status_code == status, response.text
    error = error_of(response)
    assert param is None or error["param"] == param or param in error["message"]


USER = {
    "role": "user",
    "content": [
        {"type": "text", "text": "How many walls?"},
        {"type": "image_url", "image_url": {"url": BASE64, "detail": "low"}},
    ],
}


def test_a_message_of_the_assistant_is_continued_without_repeating_it(ask):
    url = {"type": "image_url", "image_url": {"url": BASE64}}
    prefix, given = {"role": "assistant", "content": "a red"}, {"role": "user", "content": [url]}
    ollama = {"model": "tiny", "messages": [{"role": "user", "images": [BASE64]}, prefix]}
    openai = {"model": "tiny", "messages": [given, prefix], "logprobs": True}

    async def send(client):
        whole = await client.post("/v1/describe", json={"image": BASE64, "prefix": "a red"})
        bodies = [("/api/chat", ollama), ("/v1/chat/completions", openai)]
        answers = [
            await client.post(path, json=body | {"stream": stream}) for stream in (False, True) for path, body in bodies
        ]
        return whole.json()["captions"][0], answers

    caption, (chat, completion, lines, events) = ask(send)
    rest = caption["text"].removeprefix("a red")
    assert caption["text"].startswith("a red") and "Limner-Ignored" not in chat.headers
    assert chat.json()["message"]["content"] == rest
    assert (chat.json()["prompt_eval_count"], chat.json()["eval_count"]) == (2, len(caption["tokens"]) - 2)
    assert "".join(json.loads(line)["message"]["content"] for line in lines.text.splitlines()) == rest
    (choice,) = completion.json()["choices"]
    assert choice["message"]["content"] == rest == "".join(one["token"] for one in choice["logprobs"]["content"])
    assert completion.json()["usage"]["completion_tokens"] == len(caption["tokens"]) - 2
    parts = [json.loads(line[6:]) for line in events.text.splitlines() if line.startswith("data: {")]
    assert "".join(part["choices"][0]["delta"].get("content") or "" for part in parts) == rest


@pytest.mark.parametrize(
    ("field", "strict"), [({"format": "json"}, False), ({"think": True}, True), ({"images": [BASE64] * 2}, True)]
)
def test_what_cannot_be_done_is_refused_and_what_has_no_effect_where_the_service_is_strict(post, field, strict):
    body = {"model": "tiny", "images": [BASE64], "stream": False, **field}
    answer = post("/api/generate", body, {"strict": strict})
    assert answer.status_code == 400 and answer.json()["error"].startswith(f"{next(iter(field))}: ")
    assert not strict or post("/api/generate", body).headers["Limner-Ignored"].startswith(next(iter(field)))


def test_other_types_of_bodies_and_methods_are_refused(post, ask):
    assert post("/v1/describe", content=b"x", headers={"Content-Type": "text/plain"}).status_code == 415
    assert ask(lambda client: client.get("/v1/describe")).status_code == 405


def test_a_large_body_is_refused_by_its_length_and_by_what_arrives(ask):
    async def both(client):
        async def chunks():
            yield b"x" * 600
            yield b"x" * 600

        declared = await client.post("/v1/describe", content=b"x" * 1200)
        return declared, await client.post("/v1/describe", content=chunks())

    for response in ask(both, max_body=1000):
        assert response.status_code == 413
        error_of(response)


def test_a_slow_body_times_out(ask):
    async def slow(client):
        waiting = asyncio.Event()

        async def chunks():
            yield b"{"
            await waiting.wait()

        return await client.post("/v1/describe", content=chunks())

    assert ask(slow, body_timeout=0.05).status_code == 408


@pytest.mark.parametrize("size", [(200, 200), (20_000, 2)])
def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(post, size, monkeypatch):
    image = base64.b64encode(png(size=size)).decode()
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    response = post("/v1/describe", {"image": image}, settings={"max_pixels": 30_000})
    assert response.status_code == 413
    assert "pixels" in error_of(response)["message"]


def test_keys_are_required_where_there_are_some(ask, tmp_path, monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, "fromvariable")
    (tmp_path / "keys").write_text("# for the museum\nfirst-key\nsecond-key\n")

    async def several(client):
        statuses = []
        for key in (None, "wrong", "first-key", "second-key", "fromvariable"):
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            statuses.append((await client.get("/v1/models", headers=headers)).status_code)
        return statuses, (await client.get("/health")).status_code, (await client.get("/")).status_code

    assert ask(several, key_file=str(tmp_path / "keys")) == ([401, 401, 200, 200, 200], 200, 200)


def test_forms_of_libretranslate_are_read_for_their_key_where_one_is_required(ask, tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("first-key\n")
    with_file = {"q": (None, "a dog"), "api_key": (None, "first-key"), "file": ("a.txt", b"text")}

    async def send(client):
        answers = [await client.post("/detect", files=dict(list(with_file.items())[:count])) for count in (1, 2, 3)]
        return [answer.status_code for answer in answers], answers[-1].json()["error"]

    statuses, error = ask(send, key_file=str(tmp_path / "keys"))
    assert statuses == [401, 200, 400]
    assert error.startswith("the form cannot be read (") and error.endswith("send fields of text, without files")
    monkeypatch.setattr(protection, "_key_in", lambda *_: pytest.fail("read for a key"))
    assert ask(send)[0] == [200, 200, 400]


def test_keys_are_sent_and_missed_in_the_way_of_each_interface(ask, tmp_path):
    (tmp_path / "keys").write_text("first-key\n")
    bodies = {
        "/api/generate": {"model": "tiny", "images": [BASE64]},
        "/v1/chat/completions": {"model": "tiny", "messages": [USER]},
        "/detect": {"q": "a red wall"},
    }
    keys = [{}, {"Authorization": "Bearer another"}, {"Authorization": "Bearer first-key"}]

    async def send(client):
        answers = [[await client.post(path, json=body, headers=key) for path, body in bodies.items()] for key in keys]
        in_body = [await client.post("/detect", json={"q": "a", "api_key": key}) for key in ("first-key", "another")]
        settings = await client.get("/frontend/settings")
        return answers, [answer.status_code for answer in in_body], settings.json()["keyRequired"]

    (missing, wrong, right), in_body, required = ask(send, key_file=str(tmp_path / "keys"))
    assert in_body == [200, 401] and required
    assert [answer.status_code for answer in right] == [200, 200, 200]
    for ollama, openai, libretranslate in (missing, wrong):
        assert {ollama.status_code, openai.status_code, libretranslate.status_code} == {401}
        assert ollama.json() == libretranslate.json() and ollama.json()["error"].startswith("no API key, or a wrong")
        assert openai.json()["error"]["code"] == "invalid_api_key"


def test_every_key_is_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda one, other: compared.append(one) or one == other)
    assert Keys(["a", "b", "c"]).accepts("a")
    assert compared == [b"a", b"b", b"c"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "two words\n"])
def test_a_file_without_usable_keys_is_an_error(tmp_path, text):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(SettingsError, match="key"):
        read_keys(ServerSettings(key_file=str(tmp_path / "keys")))


def test_a_service_for_other_machines_without_keys_is_warned_of(caplog):
    for host, count in (("127.0.0.1", 0), ("0.0.0.0", 1)):
        bind(ServerSettings(host=host, port=0)).close()
        assert len(caplog.records) == count


def test_a_served_name_is_no_alias(models):
    with pytest.raises(SettingsError, match="already"):
        models.add_alias("tiny=tiny")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("192.168.1.7:80", 200),
        ("museum.example", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
    ],
)
def test_only_known_names_of_the_host_are_answered(ask, host, status):
    response = ask(lambda client: client.get("/health", headers={"Host": host}), allowed_hosts=["museum.example"])
    assert response.status_code == status


def test_pages_of_other_sites_may_ask_only_where_they_are_named(ask):
    def origin(client):
        return client.get("/health", headers={"Origin": "https://museum.example"})

    assert "access-control-allow-origin" not in ask(origin).headers
    allowed = ask(origin, cors_origins=["https://museum.example"])
    assert allowed.headers["access-control-allow-origin"] == "https://museum.example"


def test_every_response_has_security_headers(ask):
    async def several(client):
        return [await client.get(path) for path in ("/", "/health", "/nothing")]

    for response in ask(several):
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "server" not in response.headers


def test_the_log_has_no_contents(ask, caplog):
    async def several(client):
        await client.post("/v1/describe?secret=1", json={"image": BASE64})

    with caplog.at_level("INFO", logger="limner.access"):
        ask(several, access_log=True)
    (line,) = [json.loads(record.getMessage()) for record in caplog.records if record.name == "limner.access"]
    assert line["path"] == "/v1/describe" and line["status"] == 200 and line["seconds"] > 0
    assert "secret" not in json.dumps(line) and BASE64[:20] not in json.dumps(line)


def test_metrics_count_requests_by_route_and_status(ask):
    async def several(client):
        await client.post("/v1/describe", json={"image": BASE64})
        await client.get("/never/heard/of")
        return (await client.get("/metrics")).text

    text = ask(several)
    assert 'limner_requests_total{method="POST",route="/v1/describe",status="200"} 1.0' in text
    assert "never" not in text


def test_a_client_that_leaves_frees_its_place(ask):
    async def leave(client):
        engine = client.app.state.engine
        go, loop = asyncio.Event(), asyncio.get_running_loop()
        engine._worker.submit(lambda: asyncio.run_coroutine_threadsafe(go.wait(), loop).result())
        body = json.dumps({"image": BASE64}).encode()
        scope = scope_of("/v1/describe", content_type=b"application/json")
        messages = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": body})
        sent = []

        async def send(message):
            sent.append(message)

        running = asyncio.ensure_future(client.app(scope, messages.get, send))
        while not engine.active:
            await asyncio.sleep(0)
        messages.put_nowait({"type": "http.disconnect"})
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert engine.active == 0 and sent == []
        go.set()

    ask(leave)


def test_overload_is_refused_with_the_time_to_wait(ask):
    async def overload(client):
        engine = client.app.state.engine
        go, loop = asyncio.Event(), asyncio.get_running_loop()
        engine._worker.submit(lambda: asyncio.run_coroutine_threadsafe(go.wait(), loop).result())
        first = [asyncio.ensure_future(client.post("/v1/describe", json={"image": BASE64})) for _ in range(2)]
        while engine.active < 2:
            await asyncio.sleep(0)
        refused = await client.post("/v1/describe", json={"image": BASE64})
        go.set()
        return refused, [one.status_code for one in await asyncio.gather(*first)]

    refused, statuses = ask(overload, max_queue=2)
    assert refused.status_code == 429 and int(refused.headers["Retry-After"]) >= 1
    assert statuses == [200, 200]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BASE64, IMAGE),
        (f"data:image/png;base64,{BASE64}", IMAGE),
        (f"data:image/png;name=a.png;base64,{BASE64}", IMAGE),
        ("\n".join(BASE64[start : start + 76] for start in range(0, len(BASE64), 76)), IMAGE),
        (BASE64.rstrip("="), IMAGE),
        ("data:image/png,%00a", b"\x00a"),
    ],
)
def test_images_in_text(text, expected):
    assert decode_image_text(text) == expected


@pytest.mark.parametrize(
    ("url", "hosts", "found"),
    [
        ("http://other.example/a.png", ("museum.example",), None),
        ("http://museum.example@evil.example/", ("museum.example",), None),
        ("http://museum.example/a.png", ("museum.example",), "127.0.0.1"),
        ("http://museum.example/a.png", ("museum.example",), "169.254.169.254"),
        ("http://museum.example/a.png", ("museum.example",), "::ffff:10.0.0.1"),
        ("http://[::1]/a.png", ("museum.example",), None),
        ("http:///a.png", ("",), None),
    ],
)
def test_urls_of_other_hosts_and_private_addresses_are_not_fetched(url, hosts, found, monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", (found, 80))])
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("connected"))

    async def fetch():
        fetcher = ImageFetcher(ServerSettings(image_hosts=hosts))
        try:
            return await fetcher.fetch(url, "image")
        finally:
            await fetcher.close()

    with pytest.raises(InvalidRequestError, match="image: "):
        asyncio.run(fetch())


def search_of(ask, collection, **body):
    """Return the service's answers about a collection: the search, its first thumbnail, and the list of indexes."""

    async def use(client):
        answer = await client.post("/v1/search", json={"query": "a red wall", "limit": 5, **body})
        assert answer.status_code == 200, answer.text
        thumbnail = await client.get(f"/{answer.json()['hits'][0]['thumbnail']}")
        return answer.json(), thumbnail, (await client.get("/v1/models")).json()["indexes"]

    return ask(use, indexes=[str(collection.path)])


def test_a_collection_is_searched_by_the_index_of_a_served_model(ask, trained, own_tiny):
    retriever = Retriever.load(trained, encode_images=False)
    answer, thumbnail, indexes = search_of(ask, own_tiny)
    expected = retriever.search_images("a red wall", own_tiny, count=5)
    assert answer["search"] == {
        "index": None, "images": 48, "scored": 48, "share": 1.0, "exact": True, "gap": 0.0
    }  # fmt: skip
    assert [hit["name"] for hit in answer["hits"]] == [one.id for one in expected.results]
    assert indexes == [{"name": own_tiny.path.name, "images": 48}]
    assert thumbnail.headers["content-type"] == "image/jpeg"
    assert Image.open(BytesIO(thumbnail.content)).size == (16, 16)
    built = retriever.build_index(own_tiny)
    answer, *_ = search_of(ask, own_tiny, index=own_tiny.path.name)
    assert (answer["search"]["index"], answer["search"]["images"]) == (built.kind, 48)
    assert set(answer["search"]) == {"index", "images", "scored", "share", "exact", "gap"}
    assert [hit["name"] for hit in answer["hits"]] == [one.id for one in expected.results]
    assert [hit["caption"] for hit in answer["hits"]] == [one.text for one in expected.results]


def test_a_served_collection_is_searched_by_sentences_and_names_no_other_files(ask, own_tiny):
    async def use(client):
        by_image = await client.post("/v1/search", json={"image": BASE64})
        assert by_image.status_code == 400
        assert "is a collection, which is searched by a query" in by_image.text
        for name in ("train0.png", "../items.lance", "none"):
            assert (await client.get("/v1/thumbnail", params={"name": name})).status_code == 404
        assert (await client.get("/v1/thumbnail", params={"name": "train0"})).status_code == 200

    ask(use, indexes=[str(own_tiny.path)])


def test_an_index_of_older_features_is_an_error_that_the_log_explains(ask, trained, own_tiny, caplog):
    Retriever.load(trained, encode_images=False).build_index(own_tiny)
    reverse_features(own_tiny, "pixels16")

    async def use(client):
        answer = await client.post("/v1/search", json={"query": "a red wall"})
        assert answer.status_code == 500
        assert str(own_tiny.path) not in answer.text
        assert "older features" in caplog.text

    ask(use, indexes=[str(own_tiny.path)])


def test_new_items_are_found_while_the_service_runs(ask, own_tiny):
    async def use(client):
        assert (await client.get("/v1/models")).json()["indexes"][0]["images"] == 48
        write_items(own_tiny.path, [Item("new", "train")])
        assert (await client.get("/v1/models")).json()["indexes"][0]["images"] == 49
        assert (await client.post("/v1/search", json={"query": "a red wall"})).json()["search"]["images"] == 48

    ask(use, indexes=[str(own_tiny.path)])


class Tokenizer:
    def encode(self, text):
        return text.split()


class Generator:
    decoding = DecodingSettings(beam_size=5, max_length=20, min_length=4)
    tokenizer = Tokenizer()


def drawn(**sample):
    return {"sample": {"seed": 7, **sample}, "beam_size": 1, "n_best": 1}


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        *(({name: value}, {}) for name, value in [("temperature", -10), ("temperature", 1e-9), ("top_p", 1)]),
        *(({name: value}, {}) for name, value in [("top_k", -1), ("seed", 3), ("max_tokens", -1)]),
        ({"temperature": 0.7, "seed": 7}, drawn(temperature=0.7)),
        ({"temperature": 1e9, "seed": 7}, drawn(temperature=1000.0)),
        ({"temperature": 1, "top_p": 1, "seed": 7}, drawn(temperature=1)),
        ({"top_k": 5, "seed": 7 + 2**32}, drawn(top_k=5)),
        ({"top_p": 0.9, "seed": 7}, drawn(top_p=0.9)),
        ({"top_p": 0, "seed": 7}, drawn(top_k=1)),
        ({"max_tokens": 3}, {"min_length": 3, "max_length": 3}),
        ({"max_tokens": 10**12, "num_predict": -1}, {"min_length": 4, "max_length": 20}),
    ],
)
def test_options_of_other_programs_as_settings_of_decoding(fields, changes):
    assert decoding_changes(Generator(), SamplingFields(**fields)) == changes
    assert DecodingSettings.parse({**Generator.decoding.model_dump(), **changes})


def test_the_prefix_does_not_count_and_several_sentences_are_of_one_beam():
    limited = decoding_changes(Generator(), SamplingFields(max_tokens=3), prefix="a dog")
    assert limited == {"min_length": 4, "max_length": 5}
    assert decoding_changes(Generator(), SamplingFields(), count=3) == {"n_best": 3}
    sampled = decoding_changes(Generator(), SamplingFields(temperature=1), count=3)
    assert (sampled["beam_size"], sampled["n_best"]) == (3, 3)


def test_without_a_seed_every_request_draws_anew():
    changes = [decoding_changes(Generator(), SamplingFields(temperature=1, seed=seed)) for seed in (None, -1, None)]
    assert len({change["sample"]["seed"] for change in changes}) > 1


SCHEMA = {"type": "object", "required": ["labels"], "additionalProperties": False}
NUMBER, LABEL = {"type": "number", "minimum": 0, "maximum": 100}, {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("item", "array", "is_possible"),
    [
        ({"type": "string"}, {"maxItems": 1}, True),
        ({**LABEL, "properties": {"name": {}, "confidence": NUMBER}, "required": ["name"]}, {"minItems": 0}, True),
        ({**LABEL, "properties": {"name": {"type": "string"}, "nsfw": {"type": "boolean"}}}, {}, True),
        ({**LABEL, "properties": {"name": {"type": "string", "pattern": "^x"}}}, {}, False),
        ({**LABEL, "properties": {"name": {}, "confidence": {"type": "integer"}}}, {}, False),
        ({**LABEL, "properties": {"name": {}, "confidence": {"maximum": 0.5}}}, {}, False),
        ({**LABEL, "properties": {"confidence": NUMBER}}, {}, False),
        ({"type": "string"}, {"minItems": 1}, False),
        ({"type": "string"}, {"maxItems": 2.0}, True),
        *(({"type": "string"}, {"maxItems": count}, False) for count in (-1, 1.5, "2", True)),
        ({"$ref": "#/$defs/Other"}, {}, False),
        (3, {}, False),
    ],
)  # fmt: skip
def test_labels_are_valid_or_their_schema_is_refused(item, array, is_possible):
    schema = SCHEMA | {"properties": {"labels": {"type": "array", "items": item, **array}}}
    if is_possible:
        jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with Ray, which is not installed")
        labels = labels_of([("dog", 0.9), ("ball", 0.3)], schema_of(schema, "format"), "format")
        jsonschema.validate(labels, schema)
        assert "dog" in str(labels)
    else:
        with pytest.raises(NotSupportedError, match=r"^format: "):
            schema_of(schema, "format")


SENTENCES = {
    "en": "There is a brown dog on the beach.",
    "de": "Ein brauner Hund läuft am Strand entlang.",
    "fr": "Un chien brun court sur la plage.",
    "zh": "一只棕色的狗在海滩上奔跑。",
}


@pytest.fixture(scope="module", autouse=True)
def _loaded():
    """The model of the detection is read once."""
    detect_language("", ["en"])


@pytest.mark.parametrize("lang", SENTENCES)
def test_the_language_of_a_sentence(lang):
    detected = detect_language(SENTENCES[lang], list(SENTENCES))
    assert detected[0].language == lang and {one.language for one in detected} == {*SENTENCES}
    assert sum(one.confidence for one in detected) == pytest.approx(100, abs=0.3)
    assert [one.confidence for one in detected] == sorted((one.confidence for one in detected), reverse=True)


def test_only_the_given_languages_are_returned_and_without_letters_none_is_more_probable():
    assert sorted(one.language for one in detect_language(SENTENCES["fr"], ["de", "en", "de"])) == ["de", "en"]
    assert [one.language for one in detect_language(SENTENCES["fr"], ["xx", "de"])] == ["de", "xx"]
    assert {one.confidence for one in detect_language("a", ["xx", "yy"])} == {0}
    assert {one.confidence for one in detect_language("123", ["en", "de"])} == {50}


@pytest.mark.parametrize(
    ("form", "parts"),
    [
        ("text", ["A.", " ", "B", " \n\t", "c <d> e.g. f"]),
        ("text", ["a" + " " * 20_000 + "b"]),
        ("html", ["", "<p title='a > b'> ", "A", " <!-- x > y --> ", "b", "<br>", ""]),
        ("html", ["a", " <script>if (a < b) c</script>", "d 3 < 4", "\n", "e"]),
        ("html", ["", "<a" * 20_000, ""]),
    ],
)
def test_separators_of_sentences(form, parts):
    assert SENTENCE_ENDS[form].split("".join(parts)) == parts
