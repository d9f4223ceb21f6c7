"""Captions that name tags, words that a captioner has never seen, and the confidence of captions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from limner.data.dataset import GenerationInput
from limner.data.examples import Example, Item, collate
from limner.decoding.automaton import Bans
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.errors import RunError
from limner.features.encoders.efficientnet import ClassProbabilities
from limner.features.spec import FeatureSpec
from limner.inference.base import GenerationModels
from limner.inference.caption_nouns import CaptionNouns, NamedThing
from limner.inference.caption_rules import CaptionRules
from limner.inference.confidence import (
    confidences,
    logistic,
    mean_image,
    shared_log_probs,
    thing_evidence,
    word_evidence,
)
from limner.inference.generate import generate
from limner.inference.tagged_captions import (
    EncodedImages,
    generate_captions,
    name_tags,
    required_words,
    start_with_tags,
    without_denied_words,
)
from limner.inference.tags import Tag, Tagger
from limner.inference.unseen_words import nearest_known, with_unseen_nouns
from limner.models import build_model
from limner.models.show_attend_tell import ShowAttendTellSettings
from limner.runs.calibration import (
    FILE,
    Calibration,
    ConfidenceCalibration,
    FeatureStatistics,
    StoredCalibration,
    TagCalibration,
    load_calibration,
    save_calibration,
)
from limner.runs.recipe import Recipe
from limner.runs.trained_model import ModelConfig, TrainedModel, load_trained_model, save_trained_model, sha256
from limner.text.class_nouns import ClassNoun
from limner.text.people_words import PEOPLE_WORDS
from limner.text.tokenizer import Tokenizer
from limner.text.words import TextSettings

NOUNS = (
    ClassNoun("animal", (0,), ("dog", "puppy")),
    ClassNoun("animal", (1,), ("cat", "kitten")),
    ClassNoun("animal", (2,), ("zebra", "zebras")),
    ClassNoun("animal", (3,), ("owl", "bird")),
    ClassNoun("object", (4,), ("kite",)),
)
DIM = 6


@pytest.fixture(scope="module")
def classifier():
    """A classifier in which the zebra looks like the cat."""
    weight = np.eye(5, DIM, dtype=np.float32)
    weight[2] = [0.1, 0.9, 0.2, 0, 0, 0]
    return ClassProbabilities(weight, np.zeros(5, np.float32))


@pytest.fixture(scope="module")
def trained():
    """A captioner with random weights."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.train(["a dog runs", "a cat sits", "the bird flies", "a man"], TextSettings(min_count=1))
    spec = FeatureSpec(
        name="grid", kind="grid", shape=(4, DIM), backbone="eye", preprocessing={}, weights_sha256="", grid_size=(2, 2)
    )
    settings = ShowAttendTellSettings(embedding_dim=8, hidden_dim=8, attention_dim=8)
    recipe = Recipe.parse({"model": settings.model_dump(), "features": {"tables": ["grid"]}, "text": {"min_count": 1}})
    config = ModelConfig(recipe=recipe.model_dump(mode="json"), features=(spec,), vocab_size=len(tokenizer))
    return TrainedModel(build_model(recipe.model, config.inputs).eval(), tokenizer, config, recipe)


def tag(word, probability, *words):
    return Tag(word, probability, "animal", (word, *words))


class Grids:
    def __init__(self, count):
        self.features = np.random.default_rng(0).normal(size=(count, 4, DIM)).astype(np.float16)

    def take(self, items):
        return [{"grid": self.features[int(item.id)]} for item in items]


def encoded(model, inputs):
    features = Grids(len(inputs)).take([source.item for source in inputs])
    batch = collate([Example(source.item.id, (), None, image) for source, image in zip(inputs, features, strict=True)])
    models = GenerationModels([model.model], "fp32", torch.device("cpu"))
    return EncodedImages(list(inputs), features, models.encode_batch(batch), models.device)


def test_unseen_nouns_copy_the_nearest_known_one_of_their_kind(trained, classifier):
    assert nearest_known(trained.tokenizer, NOUNS, classifier) == {"zebra": "cat"}  # the owl is a bird


def test_unseen_words_are_generated_only_where_they_are_required(trained, classifier):
    extended = with_unseen_nouns(trained, NOUNS, classifier)
    (zebra,), (cat,) = extended.tokenizer.encode("zebra"), extended.tokenizer.encode("cat")
    assert (zebra, trained.model.vocab_size) == (len(trained.tokenizer), len(trained.tokenizer))
    weights, before = extended.model.state_dict(), trained.model.state_dict()
    assert torch.equal(weights["embedding.weight"][zebra], before["embedding.weight"][cat])
    assert torch.equal(weights["output.weight"][zebra], before["output.weight"][cat])
    assert weights["output.bias"][zebra] == before["output.bias"][cat] - 20
    inputs = [GenerationInput(Item(str(n), "new", image=str(n)), None, ()) for n in range(3)]
    settings, source = DecodingSettings(beam_size=3, max_length=6), Grids(3)
    plain, same = (generate([model], inputs, source, settings) for model in (trained, extended))
    assert [one[0].tokens for one in plain] == [one[0].tokens for one in same]
    assert [one[0].log_prob for one in plain] == pytest.approx([one[0].log_prob for one in same], abs=1e-5)
    required = [one._replace(must_include=("zebra",)) for one in inputs]
    assert all(zebra in one[0].tokens for one in generate([extended], required, source, settings))


@pytest.mark.parametrize(
    ("caption", "tags", "expected"),
    [
        ("a man", (tag("dog", 0.9, "puppy"),), "dog"),
        ("a dog runs", (tag("dog", 0.9),), None),
        ("the bird", (tag("owl", 0.9, "bird"),), None),
        ("a man", (tag("owl", 0.9, "bird"),), "bird"),
        ("a man", (tag("dog", 0.3),), None),
        ("a man", (tag("cat", 0.9),), None),
        ("a man", (tag("kite", 0.9),), None),
        ("a man", (), None),
    ],
)
def test_words_that_a_caption_must_include(trained, caption, tags, expected):
    calibration = TagCalibration(threshold=0.5, max_loss=1, certain=1, left_out=("cat",))
    assert required_words(trained.tokenizer, trained.tokenizer.encode(caption), tags, calibration, 20) == expected


@pytest.mark.parametrize(("max_loss", "certain", "named"), [(50, 1, True), (-50, 1, False), (-50, 0.9, True)])
def test_captions_name_their_tag_unless_it_costs_too_much(trained, max_loss, certain, named):
    inputs = [GenerationInput(Item(str(n), "new", image=str(n)), None, ()) for n in range(2)]
    (man,), (dog,) = trained.tokenizer.encode("man"), trained.tokenizer.encode("dog")
    before = [[Sentence((man,), -1.0, -1.0, True)]] * 2
    calibration = TagCalibration(threshold=0.5, max_loss=max_loss, certain=certain)
    tags = [(tag("dog", 0.95),), ()]
    settings = DecodingSettings(beam_size=2, max_length=8)
    tagged, untagged = name_tags([trained], encoded(trained, inputs), settings, before, tags, calibration)
    assert (dog in tagged[0].tokens) == named
    assert untagged == before[1]


def test_a_tag_whose_words_are_banned_is_not_required(trained):
    tokenizer, calibration = trained.tokenizer, TagCalibration(threshold=0.5, max_loss=99, certain=1)
    caption = tokenizer.encode("a man")
    (dog,) = tokenizer.encode("dog")
    for bans, expected in ((Bans(frozenset({dog})), "a cat"), (Bans(at_most_once=frozenset({dog})), "dog|a cat")):
        found = required_words(tokenizer, caption, [tag("dog", 0.9, "a cat", "dog dog")], calibration, 8, bans)
        assert found == expected
    inputs = [GenerationInput(Item("0", "new", image="0"), None, (), at_most_once=("cat", "dog"))]
    settings = DecodingSettings(beam_size=1, max_length=6)
    before = [[Sentence(tuple(caption), -1.0, -1.0, True)]]
    ((best, *_),) = name_tags(
        [trained], encoded(trained, inputs), settings, before, [(tag("cat sits", 0.9),)], calibration
    )
    assert "cat sits" in tokenizer.decode(best.tokens)


def test_captions_with_a_denied_word_are_decoded_again_without_it(trained):
    inputs = [GenerationInput(Item(str(n), "new", image=str(n)), None, ()) for n in range(3)]
    settings = DecodingSettings(beam_size=2, min_length=2, max_length=8, ban_unknown=True)
    before = generate([trained], inputs, Grids(3), settings)
    words = [trained.tokenizer.decode(one[0].tokens).split()[0] for one in before]
    denied = [frozenset({words[0], "zebra"}), frozenset(), frozenset()]
    images, after = without_denied_words([trained], encoded(trained, inputs), settings, before, denied)
    changed = images.inputs
    assert changed[0].excluded == (words[0],)  # no caption has a zebra
    assert words[0] not in trained.tokenizer.decode(after[0][0].tokens).split()
    assert after[1:] == before[1:]
    other = "runs" if words[0] != "runs" else "sits"
    required = [changed[0]._replace(must_include=(other,))]
    sentence = trained.tokenizer.decode(generate([trained], required, Grids(3), settings)[0][0].tokens).split()
    assert words[0] not in sentence and other in sentence


def test_captions_that_repeat_a_noun_or_a_word_are_decoded_again(trained):
    inputs = [GenerationInput(Item(str(n), "new", image=str(n)), None, ()) for n in range(4)]
    texts = ["a dog runs a dog", "a dog runs", "a a dog", "a man a bird"]
    before = [[Sentence(tuple(trained.tokenizer.encode(text)), -1.0, -1.0, True)] for text in texts]
    settings = DecodingSettings(beam_size=2, min_length=5, max_length=8, ban_unknown=True)
    nothing = [frozenset[str]()] * 4
    _, same = without_denied_words([trained], encoded(trained, inputs), settings, before, nothing)
    assert same == before
    images, once = encoded(trained, inputs), ["dog", "cat", "man"]
    _, after = without_denied_words([trained], images, settings, before, nothing, once)
    assert [one is other for one, other in zip(before, after, strict=True)] == [False, True, False, True]
    for (best, *_), _ in zip(after[::2], range(2), strict=True):
        words = trained.tokenizer.decode(best.tokens).split()
        assert all(words.count(word) <= 1 for word in ("dog", "cat", "man"))
        assert all(a != b for a, b in pairwise(words))


@pytest.mark.parametrize(
    ("text", "main", "named"),
    [
        ("a dog runs", "dog", ["dog"]),
        ("a man and a dog", "man", ["man", "dog"]),
        ("a red shirt on a wall dog", "dog", ["shirt", "wall", "dog"]),  # clothing and scenes describe
        ("a wall in a red shirt", "wall", ["wall", "shirt"]),
        ("a hot dog runs", "hot dog", ["hot dog"]),
        ("runs red", None, []),
    ],
)
def test_the_main_thing_of_a_caption(text, main, named):
    tokenizer = Tokenizer.train(
        ["a red hot dog runs on and in the wall", "a man in a shirt"], TextSettings(min_count=1)
    )
    things = [("man", 0), ("dog", 0), ("hot dog", 0), ("wall", 1), ("shirt", 2), ("zebra", 0)]
    nouns = CaptionNouns(tokenizer, [NamedThing(*one) for one in things])
    tokens = tokenizer.encode(text)
    assert nouns.main(tokens) == main and [one.word for one in nouns.of_caption(tokens)] == named
    assert nouns.single == ("dog", "man", "shirt", "wall")


@pytest.mark.parametrize("lang", ["en", "de", "zh"])
def test_people_are_named_in_every_language(trained, lang):
    words = PEOPLE_WORDS[lang]
    tokenizer = Tokenizer.train([" ".join(words)], TextSettings(min_count=1, tokenise="unicode"))
    data = trained.recipe.data.model_copy(update={"lang": lang})
    model = trained._replace(tokenizer=tokenizer, recipe=trained.recipe.model_copy(update={"data": data}))
    nouns = CaptionNouns.of(model)
    assert len(set(words)) == len(words) and all(nouns.main(tokenizer.encode(word)) for word in words)


def test_a_caption_of_what_the_classifier_does_not_see_has_less_evidence(trained, classifier):
    nouns = CaptionNouns(trained.tokenizer, [NamedThing(word, 0) for word in ("dog", "cat", "man", "bird")])
    image = {"grid": np.tile(np.array([0, 6, 0, 0, 0, 0], np.float16), (4, 1))}
    tagger = Tagger(classifier, NOUNS)
    captions = [trained.tokenizer.encode(text) for text in ("a cat sits", "a dog runs", "a man", "runs")]
    cat, dog, man, nothing = thing_evidence(tagger, nouns, captions, tagger.classify([image] * 4))
    assert cat["subject"] > 0 > dog["subject"] >= man["subject"] == nothing["subject"]
    assert cat["unnamed_tag"] == 0 and dog["unnamed_tag"] == nothing["unnamed_tag"] > 0.5


@pytest.mark.parametrize(
    ("kind", "subject_loss", "starts"), [("animal", 99, True), ("animal", None, False), ("sport", 99, False)]
)
def test_captions_start_with_a_tag_that_is_a_subject(trained, kind, subject_loss, starts):
    inputs = [GenerationInput(Item("0", "new", image="0"), None, ())]
    (man,) = trained.tokenizer.encode("man")
    calibration = TagCalibration(threshold=0.5, max_loss=99, certain=1, subject_loss=subject_loss)
    found = [(tag("dog", 0.95)._replace(kind=kind),)]
    settings = DecodingSettings(beam_size=2, max_length=8)
    ((best, *_),) = name_tags(
        [trained], encoded(trained, inputs), settings, [[Sentence((man,), -1.0, -1.0, True)]], found, calibration
    )
    assert trained.tokenizer.decode(best.tokens).startswith("a dog") == starts
    assert trained.tokenizer.encode("dog")[0] in best.tokens


def test_a_language_without_articles_starts_no_caption_with_a_tag(trained):
    chinese = trained._replace(
        recipe=trained.recipe.model_copy(update={"data": trained.recipe.data.model_copy(update={"lang": "zh"})})
    )
    inputs = [GenerationInput(Item("0", "new", image="0"), None, ())]
    assert start_with_tags([chinese], encoded(chinese, inputs), DecodingSettings(), [tag("dog", 0.9)]) == [None]


def calibration_of(folder, **changes):
    confidence = ConfidenceCalibration(
        event="it fits",
        photograph={"outside": -10.0, "constant": 5.0},
        caption={"log_prob": 1.0, "log_ratio": 0.5, "constant": 2.0},
        word={"log_ratio": 1.0, "constant": 0.0},
        min_confidence=0.2,
    )
    settings = Calibration(weights_sha256=sha256(folder / "model.safetensors"), confidence=confidence)
    vectors = np.random.default_rng(1).normal(size=(40, DIM)).astype(np.float32)
    return StoredCalibration(settings.model_copy(update=changes), FeatureStatistics.of(vectors, directions=2))


def test_confidence_grows_with_what_the_image_adds_to_the_words(trained, tmp_path):
    save_trained_model(tmp_path, trained)
    calibration = calibration_of(tmp_path)
    images, caption = Grids(2).take([Item("0", ""), Item("1", "")]), trained.tokenizer.encode("a dog runs")
    found = confidences([trained], [caption, caption[:2]], images, calibration)
    mean = mean_image(calibration.statistics.mean, ["grid"])
    (evidence, shorter) = word_evidence([trained.model], [caption, caption[:2]], images, mean)
    assert len(evidence.log_prob) == 4 and len(shorter.log_prob) == 3  # with the end of the sentence
    assert found[0].log_ratio == pytest.approx(evidence.log_ratio.sum())
    assert [one.word for one in found[0].words] == ["a", "dog", "runs"]
    (same,) = word_evidence([trained.model], [caption], [mean], mean)
    assert same.log_ratio == pytest.approx(np.zeros(4), abs=1e-6)
    order = np.argsort([one.log_ratio for one in found[0].words])
    assert [found[0].words[n].probability for n in order] == sorted(one.probability for one in found[0].words)


def test_the_search_has_computed_the_log_probabilities_of_the_words(trained):
    inputs = [GenerationInput(Item(str(n), "new", image=str(n)), None, ()) for n in range(4)]
    images, mean = encoded(trained, inputs), mean_image(np.zeros(DIM), ["grid"])
    required = images._replace(inputs=[one._replace(must_include=("dog",), excluded=("cat",)) for one in images.inputs])
    settings = DecodingSettings(beam_size=3, n_best=2, min_length=2, max_length=9)
    for searched, prefixes in ((images, None), (images, ["the bird", "a", "a man", ""]), (required, None)):
        n_bests = generate_captions([trained], searched, settings, prefixes)
        found = [(one, image) for n_best, image in zip(n_bests, images.features, strict=True) for one in n_best]
        captions, features = [one.tokens for one, _ in found], [image for _, image in found]
        plain = word_evidence([trained.model], captions, features, mean)
        reused = word_evidence([trained.model], captions, features, mean, [one.token_log_probs for one, _ in found])
        assert any(one.ended for one, _ in found)
        for (one, _), own, other in zip(found, plain, reused, strict=True):
            assert (one.token_log_probs is None) == (not one.ended)
            np.testing.assert_allclose(other.log_prob, own.log_prob, atol=1e-5)
            np.testing.assert_allclose(other.log_ratio, own.log_ratio, atol=1e-5)


def test_captions_that_begin_alike_have_the_log_probabilities_of_each_alone(trained):
    texts = ["a dog runs", "a dog", "a dog runs", "the bird flies", "a cat sits", ""]
    captions = [trained.tokenizer.encode(text) for text in texts]
    (image,) = Grids(1).take([Item("0", "")])
    together = shared_log_probs([trained.model], captions, image)
    for caption, own in zip(captions, together, strict=True):
        example = collate([Example("", caption, None, image)])
        log_probs = trained.model(example).logits.log_softmax(-1).gather(2, example.target_out[..., None])
        np.testing.assert_allclose(own, log_probs.detach().flatten(), atol=1e-5)


def test_images_are_encoded_once_for_all_searches(trained, monkeypatch):
    inputs = [GenerationInput(Item(str(n), "new", image=str(n)), None, ()) for n in range(3)]
    images, settings = encoded(trained, inputs), DecodingSettings(beam_size=2, max_length=8)
    expected = generate([trained], inputs, Grids(3), settings)
    monkeypatch.setattr(type(trained.model), "encode", None)
    texts = [
        [caption.decoded(trained.tokenizer) for caption in n_best]
        for n_best in generate_captions([trained], images, settings)
    ]
    assert texts == expected
    assert [one[0].tokens for one in generate_captions([trained], images.take([2, 0, 2]), settings)] == [
        expected[row][0].tokens for row in (2, 0, 2)
    ]
    calibration = TagCalibration(threshold=0.5, max_loss=99, certain=1, subject_loss=99)
    tagged = name_tags([trained], images, settings, expected, [(tag("dog", 0.9),)] * 3, calibration)
    (dog,) = trained.tokenizer.encode("dog")
    assert all(dog in n_best[0].tokens for n_best in tagged)


def test_a_confidence_that_needs_tags_is_refused_for_a_model_without_them(trained, tmp_path):
    save_trained_model(tmp_path, trained)
    calibration = calibration_of(tmp_path)
    save_calibration(tmp_path, calibration)
    own = [trained._replace(folder=tmp_path)]
    rules = CaptionRules(own)
    assert rules.has_confidence and rules.tagger is None
    confidence = calibration.settings.confidence.model_copy(update={"caption": {"subject": 1.0, "constant": 0.0}})
    save_calibration(tmp_path, calibration_of(tmp_path, confidence=confidence))
    with pytest.raises(RunError, match=r"calibration.json: coefficient 'subject' of the confidence needs tags"):
        CaptionRules(own)


def test_features_outside_of_the_main_directions_lower_the_confidence():
    vectors = np.random.default_rng(0).normal(size=(200, 3)) * [5, 4, 0.1]
    vectors = np.column_stack([vectors, vectors[:, 0] + vectors[:, 1]]).astype(np.float32)
    statistics = FeatureStatistics.of(vectors, directions=2)
    usual = statistics.mean + statistics.deviation * (statistics.directions[0] + statistics.directions[1])
    unusual = statistics.mean + statistics.deviation * np.linalg.svd(statistics.directions)[2][-1]
    assert statistics.outside(usual) == pytest.approx(0, abs=1e-5)
    assert statistics.outside(unusual) == pytest.approx(1, abs=1e-5)


def test_a_calibration_is_read_as_it_was_saved_and_only_for_its_weights(trained, tmp_path, caplog):
    save_trained_model(tmp_path, trained)
    assert load_calibration(tmp_path) is None
    calibration = calibration_of(tmp_path, tags=TagCalibration(threshold=0.4, max_loss=0.3, certain=0.8))
    save_calibration(tmp_path, calibration)
    stored = load_calibration(tmp_path)
    assert stored.settings == calibration.settings
    np.testing.assert_allclose(stored.statistics.directions, calibration.statistics.directions, atol=1e-3)
    assert load_trained_model(tmp_path).folder == tmp_path
    save_calibration(tmp_path, calibration_of(tmp_path, weights_sha256="0"))
    assert load_calibration(tmp_path) is None
    assert "made for other weights and not used; run pretrained/calibrate.py again" in caplog.text
    (tmp_path / FILE).write_text('{"weights_sha256": 1}')
    with pytest.raises(RunError, match=r"calibration.json: .*; restore the file, or remove it"):
        load_calibration(tmp_path)


def test_logistic_of_extreme_evidence_is_a_number():
    assert logistic({"x": 1e9, "constant": 0}, {"x": 1e9}) == 1
    assert logistic({"x": 1e9, "constant": 0}, {"x": -1e9}) == pytest.approx(0)
