"""Scripts in pretrained/, which make the built-in captioner."""

import importlib
import sys
from pathlib import Path

import pytest

from limner.runs.concepts import Concepts
from limner.runs.pretrained import PRETRAINED


@pytest.fixture
def script(monkeypatch):
    """Imports a script: script(name)."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "pretrained")
    before = set(sys.modules)
    yield importlib.import_module
    scripts = {"concepts", "measure_photographs", "non_photographs", "pack_concepts", "pseudo_captions", "things"}
    for name in scripts & (set(sys.modules) - before):
        del sys.modules[name]


def test_generated_images_depend_on_their_seed_alone(script):
    drawn = script("non_photographs")
    for kind in drawn.KINDS:
        image, again, other = (drawn.draw_non_photograph(kind, seed) for seed in (1, 1, 2))
        assert image.tobytes() == again.tobytes() and (image.size, image.tobytes()) != (other.size, other.tobytes())
    assert set(drawn.HELD_OUT) < set(drawn.KINDS)


def test_the_concepts_of_the_package_are_those_of_the_tables(script):
    pack = script("pack_concepts")
    words = [concept.name for concept in Concepts.load(PRETRAINED / "en").file.concepts]
    for lang in ("en", "de", "zh"):
        file = Concepts.load(PRETRAINED / lang).file
        if lang != "en":
            words = [word for word in words if word in {*pack.things(), *pack.kinds(), pack.PHOTOGRAPH}]
            assert file.names == pack.translated_names(words, lang)
        assert list(file.concepts) == [pack.concept_of(word, lang) for word in words]


def test_plain_sentences_are_grammatical(script):
    concept_of = script("pack_concepts").concept_of
    english = {word: concept_of(word, "en").sentence for word in ("hourglass", "ATM", "uniform", "sunglasses", "water")}
    assert [sentence.removeprefix("a photo of ") for sentence in english.values()] == [
        "an hourglass", "an ATM", "a uniform", "a pair of sunglasses", "water"
    ]  # fmt: skip
    german = [concept_of(word, "de").sentence for word in ("elephant", "bear", "cat", "horses", "food", "sky", "beet")]
    assert [sentence.removeprefix("Ein Foto ") for sentence in german] == [
        "von einem Elefanten", "von einem Bären", "von einer Katze", "von Pferden", "von Essen", "vom Himmel",
        "von einer Roten Bete",
    ]  # fmt: skip
