"""Tags of images: the classifier of the built-in backbone, and the everyday nouns of its classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from limner.errors import SettingsError
from limner.features.encoders.efficientnet import ClassProbabilities, load_efficientnet, pooled_vector
from limner.features.encoders.load import load_backbone
from limner.inference.tags import KINDS, MIN_PROBABILITY, People, Tag, Tagger, require_tagger
from limner.runs.calibration import FeatureStatistics
from limner.text.class_nouns import CLASSES, LANGUAGES, ClassNoun, class_nouns, plural


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_class_has_one_noun_in_every_language(lang):
    nouns = class_nouns(lang)
    assert sorted(number for noun in nouns for number in noun.classes) == list(range(CLASSES))
    words = [word for noun in nouns for word in noun.words]
    assert all(word and word == word.strip() for word in words)


def test_nouns_of_known_classes():
    by_class = {number: noun for noun in class_nouns("en") for number in noun.classes}
    assert by_class[207].word == by_class[151].word == "dog"  # golden retriever, chihuahua
    assert (by_class[281].word, by_class[817].word, by_class[985].word) == ("cat", "car", "flower")
    assert {"mug", "cups"} <= set(by_class[504].words)
    assert {noun.word for noun in class_nouns("de") if 207 in noun.classes} == {"Hund"}
    assert {noun.word for noun in class_nouns("zh") if 207 in noun.classes} == {"狗"}


def test_a_language_without_nouns_is_an_error():
    with pytest.raises(SettingsError, match="expected one of the languages en, de, zh, got 'fr'"):
        class_nouns("fr")


@pytest.mark.parametrize(
    ("word", "expected"),
    [("dog", "dogs"), ("bus", "bus"), ("box", "boxes"), ("couch", "couches"), ("puppy", "puppies"), ("toy", "toys")],
)
def test_regular_plurals(word, expected):
    assert plural(word) == expected


def test_probabilities_are_those_of_the_network():
    backbone = load_backbone("efficientnet-lite2", kind="both", size=96, precision="fp32")
    pixels = np.stack([np.full((1, 96, 96, 3), 90, np.uint8), np.full((1, 96, 96, 3), 200, np.uint8)])
    features = backbone(pixels)
    network = load_efficientnet("efficientnet-lite2").module.eval()
    with torch.no_grad():
        inputs = (torch.from_numpy(pixels[:, 0]).permute(0, 3, 1, 2).float() - 127) / 128
        expected = network.classifier(network(inputs).mean((2, 3))).softmax(1).numpy()
    for kind in ("pooled", "grid"):
        rows = [{kind: values} for values in features[kind]]
        classifier = ClassProbabilities.of([spec for spec in backbone.specs if spec.kind == kind])
        np.testing.assert_allclose(classifier(rows), expected, rtol=0.05, atol=1e-4)  # features are float16


def test_other_features_have_no_classifier():
    (spec,) = load_backbone("efficientnet-lite2", layer="stage5", size=64).specs
    assert ClassProbabilities.of([spec]) is None
    assert ClassProbabilities.of(load_backbone("pixels:16").specs) is None
    with pytest.raises(SettingsError, match="tags need the features of the last layer of a built-in backbone"):
        require_tagger(None)


def test_the_mean_of_a_grid_is_the_pooled_vector():
    grid = np.arange(12, dtype=np.float16).reshape(3, 4)
    np.testing.assert_allclose(pooled_vector({"grid": grid}), grid[1])


def test_the_background_is_subtracted_and_the_rest_normalised():
    nouns = [ClassNoun("animal", (0, 1), ("dog",)), ClassNoun("object", (2,), ("ball",))]
    logits = np.log(np.array([0.1, 0.1, 0.8], np.float32))
    features = [{"pooled": np.ones(1, np.float16)}, None]
    found = Tagger(ClassProbabilities(logits[:, None], np.zeros(3, np.float32)), nouns, 0.05).probabilities(features)
    np.testing.assert_allclose(found, [[0.1 / 0.85, 0.75 / 0.85], [0, 0]], rtol=1e-3)


def test_words_are_denied_unless_their_nouns_or_a_phrase_with_them_is_probable():
    nouns = [
        ClassNoun("animal", (0,), ("dog",)),
        ClassNoun("food", (1,), ("hot dog",)),
        ClassNoun("animal", (2,), ("owl", "bird")),
        ClassNoun("animal", (3,), ("eagle", "bird")),
    ]
    tagger = Tagger(ClassProbabilities(np.eye(4, dtype=np.float32), np.zeros(4, np.float32)), nouns)
    images = [
        {"pooled": np.log(np.array(one, np.float32))} for one in ((0.02, 0.02, 0.48, 0.48), (0.02, 0.9, 0.04, 0.04))
    ]
    limits = {"dog": 0.1, "bird": 0.5, "eagle": 0.2}
    assert tagger.denied(tagger.classify(images), limits) == [{"dog"}, {"bird", "eagle"}]


def test_people_have_a_classifier_of_their_own():
    statistics = FeatureStatistics(
        np.zeros(2, np.float32), np.ones(2, np.float32), np.eye(2, dtype=np.float32), np.array([3, 0, 0], np.float32)
    )
    nouns = [ClassNoun("animal", (0,), ("dog",)), ClassNoun("animal", (1,), ("cat",))]
    classifier = ClassProbabilities(np.eye(2, dtype=np.float32), np.zeros(2, np.float32))
    tagger = Tagger(classifier, nouns, people=People(("man", "woman"), statistics))
    features = [{"pooled": np.array(one, np.float32)} for one in ((6, 0), (-2, 4))]
    images = tagger.classify(features)
    found = tagger.word_probabilities(images, ["woman", "cat", "sky"])
    np.testing.assert_allclose(found[:, 0], [1 / (1 + np.exp(-18)), 1 / (1 + np.exp(6))], rtol=1e-4)
    assert found[0, 1] < 0.2 < 0.9 < found[1, 1] and not found[:, 2].any()
    assert tagger.denied(images, {"woman": 0.5, "cat": 0.5}) == [{"cat"}, {"woman"}]
    assert tagger.denied(images, {}, min_people_probability=0.9) == [
        set(),
        {"man", "woman"},
    ]  # a cat, and hardly people
    tagger.nouns = tuple(noun._replace(kind="sport") for noun in nouns)  # whose players are the subject
    assert tagger.denied(tagger.classify(features), {}, min_people_probability=0.9) == [set(), set()]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ([("cup", 0.97, "drink"), ("bowl", 0.02, "household")], [("cup", 0.97)]),
        ([("car", 0.4, "vehicle"), ("tram", 0.3, "vehicle"), ("dog", 0.1, "animal")], [("vehicle", 0.7)]),
        ([("car", 0.3, "vehicle"), ("dog", 0.3, "animal")], []),
        ([("clock", 0.3, "device"), ("phone", 0.3, "device")], []),  # a kind that people do not say
    ],
)
def test_likely_tags_or_the_kind_of_thing(tags, expected):
    tagger = Tagger(ClassProbabilities(np.eye(2, dtype=np.float32), np.zeros(2, np.float32)), [])
    found = tagger.likely([Tag(*one) for one in tags])
    assert [(one.word, pytest.approx(one.probability)) for one in found] == expected
    assert all(len(names) == len(LANGUAGES) for names in KINDS.values())


def test_classes_of_one_noun_are_summed():
    nouns = [ClassNoun("animal", (0, 2), ("dog", "puppy")), ClassNoun("object", (1,), ("ball",))]
    logits = np.log(np.array([0.5, 0.02, 0.48], np.float32))
    tagger = Tagger(ClassProbabilities(logits[:, None], np.zeros(3, np.float32)), nouns)
    tags, missing = tagger([{"pooled": np.ones(1, np.float16)}, None])
    assert [(tag.word, tag.words) for tag in tags] == [("dog", ("dog", "puppy"))]
    assert tags[0].probability == pytest.approx(0.98)
    assert MIN_PROBABILITY > 0.02
    assert missing == ()


def test_nouns_with_the_same_usual_word_are_one_tag():
    """Classes exclude each other, so that their probabilities add up; the kind is that of the most probable noun."""
    nouns = [
        ClassNoun("object", (0,), ("lock", "padlock")),
        ClassNoun("nature", (1,), ("cliff", "rock")),
        ClassNoun("building", (2,), ("lock", "sluice")),
        ClassNoun("nature", (3,), ("cliff", "ruins")),
    ]
    logits = np.log(np.array([0.22, 0.04, 0.70, 0.04], np.float32))
    tagger = Tagger(ClassProbabilities(logits[:, None], np.zeros(4, np.float32)), nouns)
    (tags,) = tagger([{"pooled": np.ones(1, np.float16)}])
    assert [(tag.word, tag.kind) for tag in tags] == [("lock", "building"), ("cliff", "nature")]
    assert [tag.probability for tag in tags] == pytest.approx([0.92, 0.08])
    assert tags[0].words == ("lock", "sluice", "padlock")


@pytest.mark.parametrize("lang", LANGUAGES)
def test_no_two_tags_of_an_image_are_printed_alike(lang):
    nouns = class_nouns(lang)
    words = [noun.word for noun in nouns]
    repeated = [noun.classes[0] for noun in nouns if words.count(noun.word) > 1]
    assert repeated
    weight = np.zeros((CLASSES, 1), np.float32)
    weight[repeated[:8]] = 9
    (tags,) = Tagger(ClassProbabilities(weight, np.zeros(CLASSES, np.float32)), nouns, lang=lang)(
        [{"pooled": np.ones(1, np.float16)}]
    )
    assert len(tags) == len({tag.word for tag in tags}) > 2
