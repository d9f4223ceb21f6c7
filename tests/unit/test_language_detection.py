"""Detection of the language of a text among a few."""

import pytest

from limner.apps.server.libretranslate_api import SENTENCE_ENDS, detect_language

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
