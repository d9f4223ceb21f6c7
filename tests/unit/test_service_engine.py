"""Requests that are computed together have the results of requests that are computed alone."""

import asyncio
import queue
import threading

import pytest
import torch
from running_service import caption, describe, png, run_with_engine

from limner.apps.server.errors import InvalidRequestError, NotFoundError, NotSupportedError, ServerError
from limner.apps.server.jobs import FeatureCache, FinalEvent, GeneratedToken, GenerationRequest
from limner.apps.server.models import Models, ServedModel
from limner.apps.server.settings import ServerSettings
from limner.apps.server.worker import Metrics, Worker
from limner.data.examples import Example, collate
from limner.inference import base
from limner.inference.features import new_item
from limner.models.protocols import device_of

COLOURS = [(250, 20, 20), (20, 250, 20), (20, 20, 250), (250, 250, 250), (90, 120, 20), (200, 20, 200)]
DECODING = [
    {"beam_size": 1},
    {"beam_size": 3, "n_best": 2},
    {"beam_size": 4, "n_best": 4, "length_penalty": 1.0, "min_length": 2},
    {"sample": {"seed": 4, "temperature": 1.5}},
    {"beam_size": 3, "n_best": 3, "sample": {"seed": 1, "top_p": 0.9}},
]


IMAGES = [png(colour, (16 + number, 16 + number)) for number, colour in enumerate(COLOURS)]


@pytest.fixture(scope="module")
def models(captioner, translator):
    return Models(
        [
            ServedModel("tiny", "describe", {"en": captioner}),
            ServedModel("toy", "translate", {"en": translator}, source="de"),
        ]
    )


def assert_same(final, expected):
    for sentence, reference in zip(final.sentences, expected, strict=True):
        # a network may add the products of several images in another order
        assert sentence.log_prob == pytest.approx(reference.log_prob, abs=1e-4)
        assert (sentence.text, sentence.tokens, sentence.ended) == (reference.text, reference.tokens, reference.ended)


def test_captions_of_all_kinds_of_decoding_together_are_those_of_single_requests(models, captioner):
    requests = [(image, decoding) for image in IMAGES for decoding in DECODING]

    async def together(engine):
        return await asyncio.gather(*(caption(engine, image, decoding=decoding) for image, decoding in requests))

    for (image, decoding), final in zip(requests, run_with_engine(models, together), strict=True):
        assert_same(final, captioner.describe([image], **decoding)[0])


def test_a_request_that_joins_while_others_are_decoded_changes_nothing(models, captioner):
    decoding = {"beam_size": 1, "min_length": 10}

    async def one_after_the_other(engine):
        streams = []
        for image in IMAGES:
            streams.append(await describe(engine, image, decoding=decoding))
            await anext(streams[-1])  # its first token is decided: the others are in the middle of their sentences
        return await asyncio.gather(*(stream.final() for stream in streams))

    for image, final in zip(IMAGES, run_with_engine(models, one_after_the_other), strict=True):
        assert_same(final, captioner.describe([image], **decoding)[0])


def test_translations_of_different_lengths_together_are_those_of_single_requests(models, translator):
    texts = ["eins", "eins zwei", "drei", "zwei drei", "drei eins", "eins eins"]

    async def together(engine):
        served = engine.models.get("toy")
        requests = [GenerationRequest(served, translator, None, text, {"beam_size": 3}) for text in texts]
        streams = [await engine.generate(request) for request in requests]
        return await asyncio.gather(*(stream.final() for stream in streams))

    for text, final in zip(texts, run_with_engine(models, together), strict=True):
        assert_same(final, translator.translate([text], beam_size=3)[0])


@pytest.mark.parametrize("decoding", DECODING, ids=str)
def test_the_tokens_of_a_stream_are_the_best_sentence(models, decoding):
    async def read(engine):
        return [event async for event in await describe(engine, IMAGES[0], decoding=decoding)]

    *tokens, final = run_with_engine(models, read)
    assert isinstance(final, FinalEvent) and all(isinstance(token, GeneratedToken) for token in tokens)
    assert "".join(token.text for token in tokens) == final.best.text
    assert [token.log_prob for token in tokens] == pytest.approx([token.log_prob for token in final.tokens[0]])


def test_the_log_probabilities_of_the_tokens_are_those_of_the_model(models, captioner):
    async def describe(engine):
        return await caption(engine, IMAGES[1], decoding={"beam_size": 4})

    final = run_with_engine(models, describe)
    ids, tokens = final.best.tokens, final.tokens[0]
    features = captioner.features_of([IMAGES[1]]).take([new_item(IMAGES[1])])[0]
    model = captioner.models[0].model
    batch = collate([Example("", ids, None, features)]).to(device_of(model))
    with torch.no_grad():
        log_probs = model(batch).logits[0].log_softmax(-1)
    expected = [float(log_probs[position, token]) for position, token in enumerate(ids)]
    assert [token.log_prob for token in tokens] == pytest.approx(expected, abs=1e-4)


def test_must_include_and_a_prefix_hold_beside_free_requests(models):
    async def both(engine):
        free = caption(engine, IMAGES[0], decoding={"beam_size": 3})
        bound = caption(engine, IMAGES[0], decoding={"beam_size": 3}, must_include=["blue"])
        begun = caption(engine, IMAGES[0], decoding={"beam_size": 3}, prefix="look ,")
        return await asyncio.gather(free, bound, begun)

    free, bound, begun = run_with_engine(models, both)
    assert "blue" not in free.best.text and "blue" in bound.best.text
    assert begun.best.text.startswith("look")


def test_an_image_that_is_sent_again_is_not_encoded_again(models):
    async def twice(engine):
        first = await caption(engine, IMAGES[0], decoding={"beam_size": 2})
        stream = await describe(engine, IMAGES[0], decoding={"beam_size": 2})
        assert stream.job.pixels is None
        return first, await stream.final()

    first, second = run_with_engine(models, twice)
    assert second[1:] == first[1:]


def test_a_closed_stream_frees_its_place_and_does_not_disturb_the_others(models, captioner):
    decoding = {"beam_size": 1, "min_length": 11}

    async def leave(engine):
        streams = [await describe(engine, image, decoding=decoding) for image in IMAGES[:3]]
        await anext(streams[1])
        streams[1].close()
        assert engine.active == 2
        return [await streams[0].final(), await streams[2].final()]

    for image, final in zip((IMAGES[0], IMAGES[2]), run_with_engine(models, leave), strict=True):
        assert_same(final, captioner.describe([image], **decoding)[0])


def test_a_request_that_takes_too_long_ends(models):
    async def wait(engine):
        blocked = asyncio.Event()
        loop = asyncio.get_running_loop()
        engine._worker.submit(lambda: asyncio.run_coroutine_threadsafe(blocked.wait(), loop).result())
        with pytest.raises(ServerError) as late:
            await caption(engine, IMAGES[0])
        blocked.set()
        assert late.value.status == 504 and engine.active == 0

    run_with_engine(models, wait, timeout=0.2)


def test_stopping_finishes_accepted_requests_and_refuses_new_ones(models):
    async def stop(engine):
        streams = [await describe(engine, image) for image in IMAGES]
        stopping = asyncio.ensure_future(engine.stop())
        await asyncio.sleep(0)
        with pytest.raises(ServerError) as refused:
            await describe(engine, IMAGES[0])
        assert refused.value.status == 503
        finals = [await stream.final() for stream in streams]
        await stopping
        engine.stop = lambda: asyncio.sleep(0)
        return finals

    assert all(final.best.text for final in run_with_engine(models, stop))


def test_models_and_languages_are_found_by_name(models):
    async def ask(engine):
        with pytest.raises(NotFoundError, match="did you mean 'tiny'"):
            await describe(engine, IMAGES[0], model="tinny")
        with pytest.raises(NotSupportedError):
            await describe(engine, IMAGES[0], model="toy")
        with pytest.raises(InvalidRequestError, match="generates en"):
            await describe(engine, IMAGES[0], lang="fr")
        with pytest.raises(NotSupportedError, match="de to en"):
            engine.models.translator(None, "fr", None)
        assert engine.active == 0

    run_with_engine(models, ask)


def test_an_error_of_one_request_is_its_own(models, captioner, monkeypatch):
    encode = base.collate

    def failing(examples):
        if any("broken" in one.id for one in examples):
            raise ValueError("broken")
        return encode(examples)

    monkeypatch.setattr(base, "collate", failing)

    async def ask(engine, started):
        streams = [await describe(engine, image) for image in IMAGES[:3]]
        job = streams[1].job
        job.id = "broken"
        started.set()
        return await asyncio.gather(*(stream.final() for stream in streams), return_exceptions=True)

    async def held(engine):
        loop, started = asyncio.get_running_loop(), asyncio.Event()
        engine._worker.submit(lambda: asyncio.run_coroutine_threadsafe(started.wait(), loop).result())
        asking = asyncio.ensure_future(ask(engine, started))
        await started.wait()
        return await asking

    first, second, third = run_with_engine(models, held)
    assert isinstance(second, ValueError)
    assert_same(first, captioner.describe([IMAGES[0]])[0])
    assert_same(third, captioner.describe([IMAGES[2]])[0])


@pytest.fixture
def worker():
    return Worker(ServerSettings(), FeatureCache(0), Metrics())


def test_the_thread_that_decodes_keeps_its_number_of_threads(worker):
    before = torch.get_num_threads()
    worker.start()
    other = threading.Thread(target=torch.set_num_threads, args=(before + 1,))
    counts = queue.SimpleQueue()
    try:
        for _ in range(2):
            worker.submit(lambda: counts.put(torch.get_num_threads()))
            assert counts.get() == before
            if not other.ident:
                other.start()
                other.join()
    finally:
        worker.stop()
        torch.set_num_threads(before)
