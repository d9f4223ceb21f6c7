"""The `openai` package against a live service."""

import openai
import pytest

import limner

CAPTION = "scenes-en"
TRANSLATION = "scenes-de"
SENTENCE = "There is a black cup in the snow."


@pytest.fixture(scope="module")
def client(service):
    with openai.OpenAI(base_url=f"{service}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def captions(runs):
    return limner.load(runs.captioner).describe([runs.image], n_best=3)[0]


@pytest.fixture(scope="module")
def ask(client, runs):
    """Ask for a caption of the image with other arguments."""
    url = {"url": f"data:image/jpeg;base64,{runs.base64}", "detail": "low"}

    def ask(text="Is the cup blue?", beginning=None, **arguments):
        content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": url}]
        messages = [{"role": "user", "content": content}]
        messages += [] if beginning is None else [{"role": "assistant", "content": beginning}]
        return client.chat.completions.create(**{"model": CAPTION, "messages": messages, **arguments})

    return ask


def test_a_caption(ask, captions):
    made = ask()
    (choice,) = made.choices
    assert choice.message.content == captions[0].text and choice.message.role == "assistant"
    assert (choice.finish_reason, made.model, made.object) == ("stop", CAPTION, "chat.completion")
    assert made.usage.prompt_tokens == 0
    assert made.usage.completion_tokens == made.usage.total_tokens == len(captions[0].tokens)


def test_a_stream(ask, captions):
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    *parts, usage = chunks
    assert "".join(part.choices[0].delta.content or "" for part in parts) == captions[0].text
    assert parts[0].choices[0].delta.role == "assistant" and parts[-1].choices[0].finish_reason == "stop"
    assert all(part.choices[0].finish_reason is None for part in parts[:-1])
    assert usage.choices == [] and usage.usage.completion_tokens == len(captions[0].tokens)
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(parts) == len(captions[0].tokens) + 2  # the role, every token, the end


def test_several_sentences(ask, captions):
    assert [choice.message.content for choice in ask(n=3).choices] == [one.text for one in captions]
    texts = ["", "", ""]
    reasons = {}
    for chunk in ask(n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    assert texts == [one.text for one in captions]
    assert set(reasons.values()) == {"stop"} and len(reasons) == 3


def test_the_prefix_and_the_limit(ask, captions):
    made = ask(beginning="the picture", max_completion_tokens=2)
    assert not made.choices[0].message.content.startswith("the picture")
    assert made.choices[0].finish_reason == "length"
    assert (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.total_tokens) == (2, 2, 4)
    assert ask(max_tokens=1000).choices[0].message.content == captions[0].text


def test_log_probabilities(ask, captions):
    made = ask(logprobs=True, top_logprobs=2).choices[0]
    assert "".join(bytes(one.bytes).decode() for one in made.logprobs.content) == captions[0].text
    for one in made.logprobs.content:
        assert len(one.top_logprobs) == 2 and one.top_logprobs[0].logprob >= one.top_logprobs[1].logprob
        same = [other for other in one.top_logprobs if other.token == one.token]
        assert not same or same[0].logprob == pytest.approx(one.logprob, abs=1e-4)
    assert any(one.token == one.top_logprobs[0].token for one in made.logprobs.content)
    streamed = [
        one for chunk in ask(logprobs=True, top_logprobs=1, stream=True) for one in chunk.choices if one.logprobs
    ]
    tokens = [one for choice in streamed for one in choice.logprobs.content]
    assert [one.token for one in tokens] == [one.token for one in made.logprobs.content]
    assert [one.top_logprobs for one in tokens] == [one.top_logprobs[:1] for one in made.logprobs.content]
    assert [one.logprob for one in tokens] == pytest.approx([one.logprob for one in made.logprobs.content])


def test_sampling_repeats_with_a_seed(ask):
    def draw(seed):
        return [one.message.content for one in ask(temperature=1.5, top_p=0.95, seed=seed, n=2).choices]

    assert draw(4) == draw(4)
    assert len({tuple(draw(seed)) for seed in range(6)}) > 1


def test_a_translation_model(client, runs):
    expected = limner.load(runs.translator).translate([SENTENCE])[0][0]
    messages = [
        {"role": "system", "content": "Translate to German."},
        {"role": "user", "content": "Earlier sentence."},
        {"role": "assistant", "content": "Früherer Satz."},
        {"role": "user", "content": SENTENCE},
    ]
    made = client.chat.completions.create(model=TRANSLATION, messages=messages)
    assert made.choices[0].message.content == expected.text
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (9, len(expected.tokens))


def test_models(client):
    assert [one.id for one in client.models.list()] == [CAPTION, TRANSLATION]
    assert client.models.retrieve(TRANSLATION).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


@pytest.mark.parametrize(
    ("arguments", "error", "param"),
    [({"model": "gpt-4o"}, openai.NotFoundError, "model"), ({"n": 0}, openai.BadRequestError, "n")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors(ask, arguments, error, param, stream):
    with pytest.raises(error, match=f"^Error code: 40. - .*{param}") as refused:
        ask(**arguments, stream=stream)
    assert refused.value.param == param and {"message", "type", "param", "code"} == refused.value.body.keys()


@pytest.mark.parametrize("limit", [None, 2])
def test_responses(client, runs, captions, limit):
    parts = [{"type": "input_image", "image_url": f"data:image/jpeg;base64,{runs.base64}", "detail": "auto"}]
    request = {"model": CAPTION, "input": [{"role": "user", "content": parts}], "max_output_tokens": limit}
    whole = client.responses.create(**request, instructions="Describe.", include=["message.output_text.logprobs"])
    with client.responses.stream(**request) as stream:
        events = list(stream)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text and events[-1].type == f"response.{whole.status}"
    assert "".join(token.token for token in whole.output[0].content[0].logprobs) == text
    assert (text == captions[0].text, whole.status) == ((True, "completed") if limit is None else (False, "incomplete"))
    assert whole.usage.output_tokens == (limit or len(captions[0].tokens))
