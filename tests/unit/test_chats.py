"""Sampling parameters and schemas of other interfaces, as settings of decoding and as labels."""

import pytest

from limner.apps.server.chats import SamplingFields, decoding_changes
from limner.apps.server.errors import NotSupportedError
from limner.apps.server.labels import labels_of, schema_of
from limner.apps.server.libretranslate_api import SENTENCE_ENDS, detect_language
from limner.decoding.settings import DecodingSettings


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


def test_only_the_given_languages_are_returned():
    assert sorted(one.language for one in detect_language(SENTENCES["fr"], ["de", "en", "de"])) == ["de", "en"]
    assert [one.language for one in detect_language(SENTENCES["fr"], ["xx", "de"])] == ["de", "xx"]
    assert {one.confidence for one in detect_language("a", ["xx", "yy"])} == {0}


def test_without_letters_nothing_is_more_probable():
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
