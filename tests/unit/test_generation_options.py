"""Sampling parameters of other interfaces as settings of decoding, and stop sequences."""

import pytest

from limner.apps.server.chats import SamplingFields, StopText, decoding_changes
from limner.decoding.settings import DecodingSettings
from limner.errors import LimnerError


class Tokenizer:
    def encode(self, text):
        return text.split()


class Generator:
    decoding = DecodingSettings(beam_size=5, max_length=20, min_length=4)
    tokenizer = Tokenizer()


def changed(prefix="", count=1, **fields):
    changes = decoding_changes(Generator(), SamplingFields(**fields), prefix=prefix, count=count)
    return DecodingSettings.parse({**Generator.decoding.model_dump(), **changes}), changes


@pytest.mark.parametrize(
    "fields",
    [{}, {"temperature": 0}, {"temperature": 1e-9}, {"top_p": 1}, {"top_k": -1}, {"seed": 3}, {"max_tokens": -1}],
)
def test_the_model_decodes_by_its_own_settings(fields):
    assert changed(**fields)[1] == {}


@pytest.mark.parametrize("fields", [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.9}, {"temperature": 1, "top_p": 1}])
def test_sampling(fields):
    settings, _ = changed(**fields, seed=7, count=3)
    assert settings.sample.seed == 7 and settings.beam_size == settings.n_best == 3
    assert settings.sample.temperature == fields.get("temperature", 1)
    assert settings.sample.top_k == fields.get("top_k")
    assert settings.sample.top_p == (fields.get("top_p") if fields.get("top_p") != 1 else None)


def test_no_probability_mass_is_the_most_probable_token():
    settings, _ = changed(top_p=0)
    assert (settings.sample.top_k, settings.sample.top_p) == (1, None)


def test_seeds():
    seeds = [changed(temperature=1, seed=seed)[0].sample.seed for seed in (0, 5, 2**32 + 5, 2**70)]
    assert seeds[:3] == [0, 5, 5]
    drawn = {changed(temperature=1, seed=seed)[0].sample.seed for seed in (None, -1, None, -1)}
    assert len(drawn) > 1


@pytest.mark.parametrize(
    ("max_tokens", "prefix", "expected"),
    [(3, "", (3, 3)), (3, "a dog", (4, 5)), (100, "a", (4, 20)), (10**12, "", (4, 20))],
)
def test_limits_shorten_the_maximum_of_the_model(max_tokens, prefix, expected):
    settings, _ = changed(max_tokens=max_tokens, prefix=prefix)
    assert (settings.min_length, settings.max_length) == expected


def test_several_sentences_are_the_best_of_the_beam():
    assert changed(count=3)[1] == {"n_best": 3}


@pytest.mark.parametrize(
    ("stops", "parts", "sent"),
    [
        ([], ["a", " dog"], ["a", " dog", ""]),
        (["."], ["a dog", ".", " no"], ["a dog", "", "", ""]),
        (["dog runs"], ["a", " dog", " runs", " far"], ["a", " ", "", "", ""]),
        (["dog runs"], ["a", " dog", " sits"], ["a", " ", "dog sits", ""]),
        (["dog runs"], ["a", " dog"], ["a", " ", "dog"]),
        (["b", "a"], ["xaby"], ["x", ""]),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", "", ""]),
    ],
)
def test_stop_sequences(stops, parts, sent):
    stop = StopText(stops)
    made = [stop.feed(part) for part in parts]
    assert [*made, stop.end()] == sent
    assert stop.cut("".join(parts)) == ("".join(sent), stop.stopped)


@pytest.mark.parametrize("stops", [[""], ["x" * 101], ["a"] * 17])
def test_stop_sequences_are_bounded(stops):
    with pytest.raises(LimnerError, match="stop: expected at most 16 texts"):
        StopText(stops)
