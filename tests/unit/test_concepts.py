"""Concepts: names in sentences, evidence, tags, plain sentences, and their part in the search."""

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from test_beam_search import VOCAB, Chain, every_sentence, images

from limner.decoding.next_tokens import NumpyNextTokens
from limner.decoding.search import Search
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import TorchModels, TorchNextTokens
from limner.errors import RunError, SettingsError
from limner.generation.request import RuleOptions
from limner.generation.rules import REPEATED_WORD, CaptionRules, consensus
from limner.inference.captioner import Captioner
from limner.inference.load import load
from limner.inference.scorer import Scorer
from limner.runs.concepts import (
    FILE,
    WEIGHTS,
    Concept,
    Concepts,
    ConceptsFile,
    Tag,
    concepts_of,
    largest_of_words,
    trigram_bits,
)
from limner.runs.trained_model import load_trained_model

NAMES = {
    "cat": (0,), "cats": (0,), "kitten": (0,), "dog": (1,), "hot dog": (2,), "animal": (3,), "black": (4,),
    "bat": (0, 5), "a couple of": (),
}  # fmt: skip
CONCEPTS = (
    Concept(name="cat", kind="animal", sentence="a photo of a cat"),
    Concept(name="dog", kind="animal", sentence="a photo of a dog"),
    Concept(name="hot dog", kind="food", sentence="a photo of a hot dog"),
    Concept(name="animal", sentence="a photo of an animal"),
    Concept(name="black"),
    Concept(name="club", sentence="a photo of a club"),
    Concept(name="photograph"),
)
RATES = (0.1, 0.2, 0.01, 0.3, 0.1, 0.01, 0.9)
PHOTOGRAPH = 6
RED = np.full((8, 8, 3), (250, 20, 20), np.uint8)
LAYER = {"bias": np.ones(7, np.float32), "gain": np.zeros(7, np.float32)}


def concepts_with(lang="en", names=NAMES, **calibration):
    file = ConceptsFile(
        lang=lang,
        backbone_sha256="1",
        photograph=PHOTOGRAPH,
        calibration=calibration,
        concepts=CONCEPTS,
        rates=RATES,
        names=names,
    )
    return Concepts(file, np.zeros((len(CONCEPTS), 3), np.float32), np.zeros(len(CONCEPTS), np.float32))


def probabilities(photograph=1.0, **named):
    values = {concept.name.replace(" ", "_"): 0.001 for concept in CONCEPTS} | named | {"photograph": photograph}
    return np.array(list(values.values()), np.float32)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A Kitten, two cats.", [(0,), (0,)]),
        ("a hot dog and a dog", [(2,), (1,)]),
        ("a couple of cats", [(0,)]),
        ("a bat", [(0, 5)]),
        ("catalogue", []),
        ("", []),
    ],
)
def test_names_are_whole_words_and_the_longest_counts(text, expected):
    assert concepts_with().mentions(text) == expected


def test_names_of_a_language_without_spaces_are_characters():
    concepts = concepts_with("zh", {"猫": (0,), "热狗": (2,), "狗": (1,)})
    assert concepts.mentions("一只猫 和热狗和狗") == [(0,), (2,), (1,)]


def test_evidence_and_confidence_by_hand():
    concepts = concepts_with(weight=2.0, word_weight=0.5, margin=2.0)
    seen = probabilities(cat=0.5, black=0.3, club=0.7)
    things = math.log(0.5) + 2

    def evidence(text):
        return concepts.evidence(concepts.mentions(text), concepts.evidence_of_each(seen))

    assert evidence("a cat") == pytest.approx(2 * things, rel=1e-5)
    assert evidence("a cat and another cat") == pytest.approx(2 * (things - 2), rel=1e-5)
    kind = math.log(0.001) + 2
    assert evidence("a cat and an animal") == pytest.approx(2 * (things + kind - 2), rel=1e-5)
    assert evidence("an animal") == pytest.approx(2 * kind, rel=1e-5)
    black = 0.5 * (math.log(0.3) - math.log(0.1))
    assert evidence("black on black") == pytest.approx(2 * black, rel=1e-5)
    assert evidence("a black cat") == pytest.approx(2 * (things + black), rel=1e-5)
    assert evidence("a dog") == pytest.approx(2 * (math.log(0.001) + 2), rel=1e-5)
    assert evidence("a bat") == pytest.approx(2 * (math.log(0.7) + 2), rel=1e-5)
    assert evidence("something else") == 0
    assert concepts.confidence(concepts.mentions("a black cat and a club"), seen) == pytest.approx(0.5)
    assert concepts.confidence(concepts.mentions("a black cat sees a dog"), seen) == pytest.approx(0.001)
    assert concepts.confidence(concepts.mentions("black"), seen) == 0


@pytest.mark.parametrize(
    ("seen", "text", "confidence", "expected"),
    [
        ({"cat": 0.9, "animal": 0.95}, "a dog", 0.5, ["a photo of a cat"]),
        ({"cat": 0.9, "animal": 0.95}, "a cat", 0.9, []),  # named
        ({"cat": 0.9, "animal": 0.95}, "a dog", 0.95, []),  # no more probable than the caption
        ({"cat": 0.79, "animal": 0.95}, "a dog", 0.5, []),  # not above `overlooked`
        ({"cat": 0.9, "photograph": 0.5}, "a dog", 0.1, []),
        ({"black": 0.9}, "a dog", 0.1, []),
    ],
)
def test_a_caption_that_overlooks_the_most_probable_thing_gives_way(seen, text, confidence, expected):
    sentences = concepts_with(overlooked=0.8).overlooked(text, probabilities(**seen), confidence)
    assert [sentence for sentence, _ in sentences] == expected
    assert concepts_with().overlooked(text, probabilities(**seen), confidence) == []


def test_tags_are_the_probable_things_without_kinds_of_them():
    concepts = concepts_with()
    found = concepts.tags(probabilities(cat=0.9, animal=0.95, black=0.99, club=0.5))
    assert [(tag.word, tag.kind) for tag in found] == [("cat", "animal"), ("club", "")]
    uncertain = concepts.tags(probabilities(cat=0.3, dog=0.25, animal=0.95))
    assert [tag.word for tag in uncertain] == ["animal", "cat", "dog"]
    assert concepts.tags(probabilities(photograph=0.1, cat=0.9)) == ()


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({"cat": 0.6, "animal": 0.95}, ["a photo of a cat"]),
        ({"cat": 0.1, "animal": 0.95}, ["a photo of an animal"]),
        ({"cat": 0.6, "dog": 0.3, "club": 0.4}, ["a photo of a cat", "a photo of a club", "a photo of a dog"]),
        ({"cat": 0.2, "black": 0.95}, []),
        ({"cat": 0.9, "photograph": 0.2}, []),
    ],
)
def test_plain_sentences_name_the_most_special_probable_thing_first(seen, expected):
    plain = concepts_with(plain_probability=0.5).plain_sentences(probabilities(**seen))
    assert [text for text, _ in plain] == expected


def test_tags_of_one_name_are_one_tag():
    concepts = concepts_with()
    renamed = (*CONCEPTS[:5], CONCEPTS[5].model_copy(update={"name": "dog"}), CONCEPTS[6])
    concepts.file = concepts.file.model_copy(update={"concepts": renamed})
    assert [tag[:2] for tag in concepts.tags(probabilities(dog=0.5, club=0.75))] == [("dog", 0.75)]


def test_the_evidence_for_a_word_is_the_largest_of_its_concepts():
    concepts = concepts_with(weight=5.0, word_weight=0.5, margin=2.0)
    seen = probabilities(cat=0.5, black=0.3, club=0.7)
    values = largest_of_words(concepts.columns_of(["cat", "the", "bat", "Black"]), concepts.evidence_of_each(seen))
    black = 0.5 * (math.log(0.3) - math.log(0.1))
    assert values.tolist() == pytest.approx([math.log(0.5) + 2, 0, math.log(0.7) + 2, black], rel=1e-5)
    assert concepts.log_ratios(seen)[4] == pytest.approx(math.log(0.3) - math.log(0.1), rel=1e-5)


def test_the_bonus_of_a_search_is_weighted_evidence():
    concepts, tokenizer = concepts_with(search_weight=2.0, margin=1.0), SimpleNamespace(spellings=["cat", "the"])
    request = SimpleNamespace(
        prefix=(),
        evidence=probabilities(cat=0.5),
        rule_options=RuleOptions(),
        decoding=DecodingSettings(),
        generator=SimpleNamespace(tokenizer=tokenizer),
    )
    assert CaptionRules(concepts, concepts).bonus(request).tolist() == pytest.approx([2 * (math.log(0.5) + 1), 0])


def test_the_consensus_is_the_expected_share_of_common_ngrams():
    texts = [line.split() for line in ("a cat on a mat", "a cat on a bed", "dogs run", "a cat")]
    scores = [-1.0, -1.5, -0.5, -2.0]

    def similarity(left, right):
        total = 0.0
        for order in range(1, 5):
            a, b = ({tuple(words[i : i + order]) for i in range(len(words) - order + 1)} for words in (left, right))
            total += 2 * len(a & b) / (len(a) + len(b)) if a or b else 0.0
        return total / 4

    weights = [math.exp(score) for score in scores]
    expected = [
        sum(weight * similarity(text, other) for weight, other in zip(weights, texts, strict=True)) / sum(weights)
        for text in texts
    ]
    np.testing.assert_allclose(consensus(texts, scores), expected, rtol=1e-5)
    assert consensus([], []).tolist() == []


@pytest.mark.parametrize(
    ("weight", "penalty", "order"),
    [
        (0.0, 1.0, (1, 0, 2)),
        (4.0, 1.0, (0, 2, 1)),
        (0.0, 3.0, (0, 2, 1)),  # long captions first
    ],
)
def test_hypotheses_that_agree_come_first_and_a_requested_length_penalty_counts(weight, penalty, order):
    texts = ("a black cat on a mat", "dog", "a black cat on a bed")
    concepts = concepts_with(weight=0.0, consensus=weight)
    request = SimpleNamespace(
        rule_options=RuleOptions(min_confidence=0.0),
        decoding=DecodingSettings(beam_size=3, n_best=3), exponent=penalty,
        constraint=None, prefix=(), evidence=probabilities(cat=0.9, dog=0.9),
        generator=SimpleNamespace(tokenizer=SimpleNamespace(spellings=("cat",), token_id=lambda _: 0)),
    )  # fmt: skip
    hypotheses = [
        Sentence((0,) * len(text.split()), log_prob, log_prob, text=text)
        for text, log_prob in zip(texts, (-7, -1, -10.5), strict=True)
    ]
    captions = CaptionRules(concepts, None).finish(request, hypotheses)
    assert [texts.index(caption.text) for caption in captions] == list(order)


def bloom_of(sentences, size):
    bloom = np.zeros(size, np.uint8)
    for tokens in sentences:
        np.bitwise_or.at(bloom, *trigram_bits(tokens, size))
    return bloom


@pytest.mark.parametrize("size", [1 << 11, 1 << 13])
def test_a_filter_has_every_trigram_that_was_added_and_few_others(size):
    generator = np.random.default_rng(0)
    sentences = generator.integers(3, 5000, (300, 8)).tolist()
    bloom = bloom_of(sentences, size)

    def unseen(tokens):
        places, bits = trigram_bits(tokens, size)
        return ((bloom[places] & bits) == 0).any(1)

    assert not any(unseen(tokens).any() for tokens in sentences)
    others = np.concatenate([unseen(tokens) for tokens in generator.integers(3, 5000, (300, 8)).tolist()])
    share = float(np.unpackbits(bloom).mean())
    assert 1 - others.mean() == pytest.approx(share**3, abs=0.02)


def test_the_order_of_tokens_and_the_ends_of_a_sentence_count():
    size, sentence = 1 << 16, [5, 6, 7, 8]
    bloom = bloom_of([sentence], size)

    def unseen(tokens):
        places, bits = trigram_bits(tokens, size)
        return ((bloom[places] & bits) == 0).any(1).tolist()

    assert unseen(sentence) == [False] * 5
    assert unseen(sentence[::-1]) == [True] * 5
    assert unseen(sentence[1:]) == [True] * 2 + [False] * 2
    assert unseen([*sentence, 9]) == [False] * 4 + [True] * 2
    assert unseen([]) == [True]


@pytest.mark.parametrize("lang", ["en", "de"])
def test_the_filter_of_the_package_knows_its_plain_sentences(lang):
    captioner = load(lang=lang)
    concepts, tokenizer = captioner.rules.concepts, captioner.tokenizer

    def unseen(text):
        places, bits = trigram_bits(tokenizer.encode(text), len(concepts.trigrams))
        return int(((concepts.trigrams[places] & bits) == 0).any(1).sum())

    sentences = [concept.sentence for concept in concepts.file.concepts if concept.sentence]
    assert sum(map(unseen, sentences)) == 0
    assert sum(unseen(" ".join(reversed(sentence.split()))) > 0 for sentence in sentences) > 0.8 * len(sentences)


@pytest.mark.parametrize(("loss", "order"), [(0.0, (0, 1)), (0.2, (0, 1)), (0.4, (1, 0))])
def test_a_trigram_outside_of_the_filter_costs_its_loss(loss, order):
    concepts, tokens = concepts_with(weight=0.0, unseen=loss), ((10, 11, 13), (10, 11, 12))
    concepts.trigrams = bloom_of([tokens[1], (11, 13, 12)], 1 << 10)
    request = SimpleNamespace(
        rule_options=RuleOptions(min_confidence=0.0), decoding=DecodingSettings(beam_size=2, n_best=2), exponent=1.0,
        constraint=None, prefix=(), evidence=probabilities(cat=0.9),
        generator=SimpleNamespace(tokenizer=SimpleNamespace(spellings=("cat",), token_id=lambda _: 0)),
    )  # fmt: skip
    sums = -4.0, -6.0  # -1 and -1.5 a token; two trigrams of the first caption are unseen, .4 and .8 of loss
    hypotheses = [
        Sentence(words, log_prob, log_prob, text=f"a cat {words[-1]}")
        for words, log_prob in zip(tokens, sums, strict=True)
    ]
    captions = CaptionRules(concepts, None).finish(request, hypotheses)
    assert [tokens.index(caption.tokens) for caption in captions] == list(order)
    assert captions[order.index(0)].score == pytest.approx(-1 - 2 * loss)


def test_a_length_penalty_that_is_given_counts_also_where_it_is_the_default_of_the_model():
    chinese, cat = load(lang="zh"), Path(__file__).parents[2] / "docs" / "assets" / "photographs" / "cat.jpg"
    penalties = {}, {"length_penalty": 1.0}, {"length_penalty": chinese.decoding.length_penalty}
    default, one, given = (chinese.describe([cat], **penalty)[0][0].score for penalty in penalties)
    assert default == pytest.approx(one) and given != pytest.approx(default)


@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_a_full_width_beam_with_a_bonus_equals_enumeration(penalty):
    """The first occurrence of each token counts; scores and log-probabilities of the results are without the bonus."""
    settings = DecodingSettings(beam_size=300, n_best=300, max_length=3, length_penalty=penalty)
    bonus = np.zeros((2, VOCAB), np.float32)
    bonus[0, 4:] = 3.0, -2.0, 0.5
    model = TorchModels([Chain()], "fp32", images(1).target_in.device)
    search = Search(model, model.encode_batch(images(1, 2)), ["1", "2"], settings, bonus=bonus)
    while (beam := search.beam) is not None:
        search.advance(*model.step(beam.last, beam.memory, beam.state))
    for example, image in enumerate((1, 2)):
        expected = every_sentence(Chain(), image, settings)
        found = search.without_bonus(example)
        assert [entry.tokens for entry in found] == [entry.tokens for entry in expected]
        np.testing.assert_allclose([e.log_prob for e in found], [e.log_prob for e in expected], atol=1e-5)
        np.testing.assert_allclose([e.score for e in found], [e.score for e in expected], atol=1e-5)
        for entry in found:
            assert list(entry.totals) == sorted(entry.totals, reverse=True)

    def with_bonus(entry):
        return entry.log_prob + sum(bonus[0, token] for token in set(entry.tokens))

    narrow = DecodingSettings(beam_size=3, n_best=1, max_length=3)
    search = Search(model, model.encode_batch(images(1)), ["1"], narrow, bonus=bonus[:1])
    while (beam := search.beam) is not None:
        search.advance(*model.step(beam.last, beam.memory, beam.state))
    best = max(every_sentence(Chain(), 1, settings), key=with_bonus)
    assert 4 in best.tokens and any(4 in entry.tokens for entry in search.without_bonus(0))


def test_arrays_and_tensors_favour_tokens_alike():
    random = np.random.default_rng(0)
    values, bonus = random.normal(size=(2, 3, 7)).astype(np.float32), random.normal(size=(2, 7)).astype(np.float32)
    used = random.integers(0, 7, (2, 3, 4))
    array, tensor = NumpyNextTokens(values.copy()), TorchNextTokens(torch.from_numpy(values.copy()))
    array.add_bonus(bonus, used)
    tensor.add_bonus(bonus, used)
    np.testing.assert_array_equal(array.values, tensor.values.numpy())
    for n, k, v in itertools.product(range(2), range(3), range(7)):
        expected = values[n, k, v] + (0 if v in used[n, k] else bonus[n, v])
        assert array.values[n, k, v] == pytest.approx(expected)


def test_classes_of_imagenet_are_evidence_for_a_concept(monkeypatch):
    classifier = {"classifier.weight": np.eye(3, dtype=np.float32), "classifier.bias": np.zeros(3, np.float32)}
    monkeypatch.setattr("limner.runs.concepts.read_weights", lambda *_: classifier)
    file = concepts_with().file
    breeds = [concept.model_copy(update={"classes": (0, 2) if concept.name == "dog" else ()}) for concept in CONCEPTS]
    layer = (np.zeros((7, 3), np.float32), np.zeros(7, np.float32), np.eye(7, dtype=np.float32)[1] * 0.5)
    dog, cat = Concepts(file.model_copy(update={"concepts": tuple(breeds)}), *layer).of_vectors(
        np.array([[1, 2, 3]], np.float32), [1, 0]
    )[0]
    of_classes = (math.e + math.e**3) / (math.e + math.e**2 + math.e**3)
    assert dog == pytest.approx(1 / (1 + of_classes**-0.5), rel=1e-5) and cat == 0.5


def test_concepts_are_read_as_they_were_written_and_damage_is_named(tmp_path):
    assert Concepts.load(tmp_path) is None
    file = concepts_with().file
    (tmp_path / FILE).write_text(file.model_dump_json())
    weight = np.arange(21, dtype=np.float16).reshape(7, 3)
    save_file({"weight": weight, **LAYER}, tmp_path / WEIGHTS)
    read = Concepts.load(tmp_path)
    assert read.file == file and (read.weight == weight).all() and (read.bias == 1).all()
    for damage in (
        lambda: save_file({"weight": weight[:6], **LAYER}, tmp_path / WEIGHTS),
        lambda: save_file({"weight": np.full_like(weight, np.inf), **LAYER}, tmp_path / WEIGHTS),
        lambda: save_file({"weight": weight, **LAYER, "trigrams": np.zeros(24, np.uint8)}, tmp_path / WEIGHTS),
        lambda: save_file({"weight": weight, **LAYER, "trigrams": np.zeros((4, 4), np.uint8)}, tmp_path / WEIGHTS),
        lambda: save_file({"weight": weight, **LAYER, "trigrams": np.zeros(0, np.uint8)}, tmp_path / WEIGHTS),
        lambda: (tmp_path / WEIGHTS).write_bytes(b"12"),
        lambda: (tmp_path / WEIGHTS).unlink(),
        lambda: (tmp_path / FILE).write_text(json.dumps({"concepts": 1})),
        lambda: (tmp_path / FILE).write_text("{"),
    ):
        damage()
        with pytest.raises(RunError, match=r"concepts\.(json|safetensors)"):
            Concepts.load(tmp_path)


@pytest.fixture(scope="module")
def captioner(trained_on_colours, backbone_of):
    return Captioner([load_trained_model(trained_on_colours)], backbone_of())


def test_concepts_choose_name_and_withhold(captioner, colour_concepts, monkeypatch, caplog):
    (plain,) = captioner.describe([RED], beam_size=4)
    assert plain[0].confidence is None and "red" in plain[0].text
    monkeypatch.setattr(captioner, "rules", colour_concepts())
    chosen, *_ = captioner.describe([RED], beam_size=4, with_tags=True)[0]
    assert "red" in chosen.text and chosen.confidence > 0.9 and chosen.is_sure
    assert chosen.tags[0][:1] == ("red",) and isinstance(chosen.tags[0], Tag)
    # Concepts that see blue where the model sees red: another caption of the beam.
    monkeypatch.setattr(captioner, "rules", colour_concepts(red=20, blue=0))
    other, *_ = captioner.describe([RED], beam_size=12)[0]
    assert "blue" in other.text
    begun, *_ = captioner.describe([RED], beam_size=12, prefixes=["a red"])[0]
    assert begun.text.startswith("a red")
    alone, *_ = captioner.describe([RED], beam_size=12, concepts=False)[0]
    assert alone.text == plain[0].text and alone.confidence < 0.1
    sampled, *_ = captioner.describe([RED], sample={"seed": 1})[0]
    assert sampled.text == captioner.describe([RED], sample={"seed": 1}, concepts=False)[0][0].text
    # Nothing in the beam is probable: a plain sentence, or no caption where no thing is probable.
    monkeypatch.setattr(captioner, "rules", colour_concepts(red=20, wood=0))
    (plain,) = captioner.describe([RED], beam_size=2, n_best=2, min_confidence=0.999999)
    assert [caption.text for caption in plain] == ["a photo of wood"] and plain[0].is_sure and not plain[0].tokens
    monkeypatch.setattr(captioner, "rules", colour_concepts(red=20))
    (withheld,) = captioner.describe([RED], beam_size=2, n_best=2, min_confidence=0.999999, max_length=1)
    assert [(caption.display_text, caption.is_sure, caption.ended) for caption in withheld] == [("", False, False)]
    assert not caplog.records


def test_the_evidence_of_an_image_is_not_computed_for_each_hypothesis(captioner, colour_concepts, monkeypatch):
    rules, computed = colour_concepts(), []
    evidence_of_each = rules.concepts.evidence_of_each
    monkeypatch.setattr(captioner, "rules", rules)
    monkeypatch.setattr(rules.concepts, "evidence_of_each", lambda seen: computed.append(0) or evidence_of_each(seen))
    captioner.describe([RED], beam_size=12)
    assert len(computed) == 2  # for the search, and for all hypotheses


def test_requirements_are_met_and_captions_withheld_only_where_nothing_is_probable(
    captioner, colour_concepts, monkeypatch
):
    """Whatever the language: these rules and not the search decide whether a caption is shown."""
    requirements = {"prefixes": ["a red"]}, {"must_include": ["red"]}, {"sample": {"seed": 1}}, {"concepts": False}
    for rules, is_shown in ((colour_concepts(red=20, wood=0), True), (colour_concepts(red=20), False)):
        monkeypatch.setattr(captioner, "rules", rules)
        for requirement in requirements:
            (caption, *_), doubtful = (
                captioner.describe([RED], min_confidence=least, **requirement)[0] for least in (None, 0.9)
            )
            assert caption.is_sure == is_shown and caption.confidence < 0.1 and not doubtful[0].is_sure
            assert "sample" in requirement or "red" in caption.text
        ((begun, *_),) = captioner.describe([RED], prefixes=["a"])
        assert (begun.text == "a photo of wood") == is_shown == begun.is_sure
        ((words, *_),) = captioner.describe([RED], must_include=["a"])
        assert (words.text == "a photo of wood") == is_shown == words.is_sure


def test_plain_captions_have_the_probability_of_the_model_and_differ(captioner, colour_concepts, monkeypatch):
    monkeypatch.setattr(captioner, "rules", colour_concepts(red=20, blue=0, wood=0, green=0))
    (several,) = captioner.describe([RED], beam_size=3, n_best=3, min_confidence=0.99999)
    assert [caption.text[:10] for caption in several] == ["a photo of"] * 3 and len({c.text for c in several}) == 3
    scores = Scorer(captioner.models[0], captioner.backbone).score([RED] * 3, [caption.text for caption in several])
    np.testing.assert_allclose([c.log_prob for c in several], [score.log_prob for score in scores], atol=1e-4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a photo of a elephant", "a photo of an elephant"),
        ("a unicorn and a old uniform", "a unicorn and an old uniform"),
        ("a pizza", "a pizza"),
    ],
)
def test_articles_before_vowels(text, expected):
    words = sorted({*text.split(), "an"})
    tokenizer = SimpleNamespace(spellings=words, token_id=words.index)
    request = SimpleNamespace(generator=SimpleNamespace(tokenizer=tokenizer), constraint=None, prefix=())
    caption = Sentence(tuple(map(words.index, text.split())), -1.0, -1.0, text=text)
    concepts = concepts_with()
    corrected = CaptionRules(concepts, concepts)._with_articles(request, caption)
    assert corrected.text == " ".join(words[token] for token in corrected.tokens) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ein kleiner kleiner Hund", True),
        ("a dog and a dog", False),
        ("Frauen, die die Straße überqueren", False),
        ("一只狗狗", False),
    ],
)
def test_a_word_that_follows_itself(text, expected):
    assert bool(REPEATED_WORD.search(text)) is expected


def test_unknown_words_of_a_prefix_are_printed_as_they_were_typed(captioner):
    ((caption, *_),) = captioner.describe([RED], prefixes=["A Zyxomma red"])
    assert caption.text.startswith("a Zyxomma red") and "unk" not in caption.text


def test_captions_of_a_batch_are_captions_of_each_image_alone(captioner, colour_concepts, monkeypatch):
    monkeypatch.setattr(captioner, "rules", colour_concepts())
    pictures = [np.full((8, 8, 3), colour, np.uint8) for colour in ((250, 20, 20), (20, 20, 250), (20, 250, 20))]
    together = captioner.describe(pictures, beam_size=4, n_best=3)
    for picture, captions in zip(pictures, together, strict=True):
        (alone,) = captioner.describe([picture], beam_size=4, n_best=3)
        assert [caption.text for caption in alone] == [caption.text for caption in captions]
        assert len({caption.text for caption in captions}) == len(captions)
        np.testing.assert_allclose([c.log_prob for c in alone], [c.log_prob for c in captions], atol=1e-4)


@pytest.mark.parametrize("beam_size", [4, 12])
def test_the_first_caption_does_not_depend_on_the_number_of_captions(
    captioner, colour_concepts, monkeypatch, beam_size
):
    monkeypatch.setattr(captioner, "rules", colour_concepts(red=20, blue=0))
    picture = np.full((8, 8, 3), (250, 20, 20), np.uint8)
    for prefixes in (None, ["a"]):
        options = {"beam_size": beam_size, "prefixes": prefixes}
        alone, several = (captioner.describe([picture], n_best=count, **options)[0] for count in (1, 4))
        assert alone[0].text == several[0].text and len(several) == 4


def test_a_model_without_concepts_refuses_their_options(captioner):
    with pytest.raises(SettingsError, match=r"min_confidence 0\.5: this model has no concepts"):
        captioner.describe([np.zeros((4, 4, 3), np.uint8)], min_confidence=0.5)
    with pytest.raises(SettingsError, match="tags need the features"):
        captioner.tags([np.zeros((4, 4, 3), np.uint8)])


def test_concepts_of_other_features_are_refused(trained_on_colours, tmp_path):
    (tmp_path / FILE).write_text(concepts_with().file.model_copy(update={"backbone_sha256": "2"}).model_dump_json())
    save_file({"weight": np.zeros((7, 3), np.float16), **LAYER}, tmp_path / WEIGHTS)
    with pytest.raises(RunError, match=r"other features.*concepts\.json"):
        concepts_of(tmp_path, load_trained_model(trained_on_colours).config.features)
