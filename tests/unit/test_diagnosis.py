"""Is the picture used? A toy where the picture alone tells the meaning of a word, and models that see it or do not."""

import json
import math
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from limner.cli import main
from limner.data.collection import Collection, write_items
from limner.data.dataset import Examples, GenerationInput
from limner.data.examples import Item, Sentence
from limner.decoding.scoring import score_examples
from limner.diagnosis import Diagnosis, diagnose, save_diagnosis, verdict
from limner.diagnosis.ambiguity import other_sense, says, sense_queries, wrong_pictures
from limner.diagnosis.conditions import by_item
from limner.diagnosis.contrastive import measure_contrasts, read_contrasts
from limner.diagnosis.masking import Hiding, LastWords, Words, read_mask, recovered
from limner.diagnosis.records import Condition, Figure, Masked
from limner.errors import CollectionError, FeatureError, LimnerError, SettingsError
from limner.features.store import extract
from limner.inference.collection_features import open_features
from limner.models import Output
from limner.runs.recipe import Recipe
from limner.runs.trained_model import load_trained_model
from limner.synthetic.scenes import SceneSettings, generate
from limner.text.tokenizer import TextSettings, Tokenizer
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.setup import prepare

METRICS = ("bleu2", "ter", "perplexity")
GERMAN = {"bat:animal": "Fledermaus", "bat:club": "Schläger", "crane:bird": "Kranich", "crane:machine": "Kran"}
COLOURS = {"red": "rot", "blue": "blau"}


def toy_items(folder):
    """Pictures whose red tells the meaning of the word, and whose green tells the colour that the sentence names."""
    for split, size in {"train": 8, "val": 8, "test": 16}.items():
        for number in range(size):
            label, (english, german) = list(GERMAN)[number % 4], list(COLOURS.items())[number // 4 % 2]
            id_, word = f"{split}{number}", label.partition(":")[0]
            ink = (255 * (number % 2), 255 * (german == "blau"), 9 * number)
            Image.new("RGB", (8, 8), ink).save(folder / f"{id_}.png")
            sentences = (Sentence("en", f"a {english} {word} ."), Sentence("de", f"{german} : {GERMAN[label]} ."))
            yield Item(id_, split, image=f"{id_}.png", sentences=sentences, label=label)


@pytest.fixture(scope="module")
def toys(tmp_path_factory, eye_of):
    folder = tmp_path_factory.mktemp("toys")
    write_items(folder, toy_items(folder))
    collection = Collection.open(folder)
    extract(collection, eye_of())
    return collection


class Intended(NamedTuple):
    """A stub's memory: the words it is going to say, each example's end sign among them."""

    words: Tensor  # (B, 5)


class Position(NamedTuple):
    """A stub's state."""

    at: Tensor  # (N K,)


class Seeing(nn.Module):
    """Translates the toy as one would who sees: the meaning by the picture's red, a hidden colour by its green.

    Without a picture it says 'rot' for both. Each word has the logit 4, every other word 0.
    """

    uses_image = True

    def __init__(self, tokenizer, source_tokenizer):
        super().__init__()
        self.vocab_size = len(tokenizer)
        self.register_buffer("place", torch.zeros(1))
        self.say = lambda text: [*tokenizer.encode(text), SPECIAL_TOKENS.eos]
        self.read = lambda ids: [source_tokenizer.entries[word] for word in ids]

    def encode(self, batch):
        said = []
        for row, source in enumerate(batch.source.tolist()):
            _, colour, word, *_ = self.read(source)
            if not batch.image.present[row]:
                said.append(self.say(f"{COLOURS.get(colour, 'rot')} : rot ."))
                continue
            seen = batch.image.pooled[row].tolist()
            adjective = COLOURS.get(colour, list(COLOURS.values())[seen[1] > 0.5])
            meanings = [noun for name, noun in GERMAN.items() if name.startswith(word)] or list(GERMAN.values())
            said.append(self.say(f"{adjective} : {meanings[seen[0] > 0.5]} ."))
        return Intended(torch.tensor(said))

    def start(self, memory):
        return Position(torch.zeros(len(memory.words), dtype=torch.long))

    def step(self, tokens, memory, state):
        words = memory.words.repeat_interleave(len(tokens) // len(memory.words), 0)
        said = words.gather(1, state.at.clamp(max=4)[:, None])[:, 0]
        return 4.0 * functional.one_hot(said, self.vocab_size), Position(state.at + 1)

    def forward(self, batch):
        words = functional.pad(self.encode(batch).words, (0, batch.target_in.shape[1]), value=SPECIAL_TOKENS.eos)
        return Output(4.0 * functional.one_hot(words[:, : batch.target_in.shape[1]], self.vocab_size))


def untrained(toys, picture):
    sizes = {"embedding_dim": 4, "hidden_dim": 4, "attention_dim": 4, "readout_dim": 4}
    recipe = Recipe.parse(
        {
            "data": {"lang": "de", "source_lang": "en"},
            "text": {"lowercase": False},
            "features": {"tables": ["colour"] if picture else []},
            "model": {"name": "nmt", "image": picture, **sizes},
            "training": {"metric": "perplexity"},
            "decoding": {"max_length": 8},
        }
    )
    model = prepare(recipe, toys, "")[0]
    model.model.eval()
    return model


@pytest.fixture(scope="module")
def seeing(toys):
    model = untrained(toys, ["initial"])
    return model._replace(model=Seeing(model.tokenizer, model.source_tokenizer))


@pytest.fixture(scope="module")
def ignoring(toys):
    """It looks, and what it sees changes nothing."""
    model = untrained(toys, ["initial"])
    with torch.no_grad():
        for weight in model.model.image_initial.parameters():
            weight.zero_()
    return model


@pytest.fixture(scope="module")
def found(seeing, toys):
    return diagnose(seeing, toys, metrics=METRICS, masks=["colours", "last:1"], trials=200)


def figures(conditions):
    return {one.name: {figure.metric: figure for figure in one.figures} for one in conditions}


def test_a_model_that_uses_the_picture_is_found_out(found):
    table = figures(found.pictures)
    assert list(table) == ["right", "shuffled", "mean", "none"]
    assert list(table["right"]) == list(METRICS)
    for metric in METRICS:
        right, shuffled = table["right"][metric], table["shuffled"][metric]
        assert right.p is None
        assert shuffled.p < 0.05
        assert shuffled.difference == pytest.approx(shuffled.value - right.value)
    assert found.verdict.startswith("The pictures are used: bleu2 is 100.00 with the right pictures and")
    assert found.sentences == 16


def test_the_picture_decides_the_meaning(found):
    assert found.senses.sentences == 16
    assert found.senses.left_out == 0
    table = figures(found.senses.conditions)
    assert list(table) == ["right", "swapped", "none"]
    assert table["right"]["right_meaning"].value == 100
    assert table["swapped"]["right_meaning"].value == 0 < found.senses.chance
    assert table["swapped"]["other_meaning"].value == 100
    assert table["swapped"]["right_meaning"].p < 0.05
    assert table["none"]["right_meaning"].value == table["none"]["other_meaning"].value == 0


def test_a_model_that_ignores_the_picture_is_found_out(ignoring, toys):
    found = diagnose(ignoring, toys, metrics=METRICS, masks=["colours"], trials=20)
    for conditions in (found.pictures, found.senses.conditions, found.masked[0].conditions[:3]):
        first, *others = conditions
        for other in others:
            assert other.changed == 0
            for mine, theirs in zip(first.figures, other.figures, strict=True):
                assert (theirs.value, theirs.difference, theirs.p) == (mine.value, 0, 1)
    assert found.verdict.startswith("It does not show that the pictures are used")
    assert "0.0 % of the sentences change" in found.verdict
    # Of the same word half the pictures show either meaning, so whoever does not look is right for half of them.
    assert figures(found.senses.conditions)["right"]["right_meaning"].value <= 50


def test_a_model_without_pictures_has_nothing_to_compare(toys):
    found = diagnose(untrained(toys, []), toys, metrics=["bleu1"], masks=["last:2"], trials=20)
    assert [one.name for one in found.pictures] == ["none"]
    assert [one.name for one in found.masked[0].conditions] == ["none", "whole sentence"]
    assert [one.name for one in found.senses.conditions] == ["none"]
    assert found.verdict == "This model looks at no pictures."


def test_captioners_are_diagnosed_too(trained_on_colours, tiny):
    model = load_trained_model(trained_on_colours)
    found = diagnose(model, tiny, metrics=["bleu2", "perplexity"], trials=50)
    table = figures(found.pictures)
    assert list(table) == ["right", "shuffled", "mean", "none"]
    assert table["shuffled"]["bleu2"].difference < 0 < table["shuffled"]["perplexity"].difference
    assert found.senses is None
    with pytest.raises(SettingsError, match="mask 'colours': this model translates nothing"):
        diagnose(model, tiny, masks=["colours"])


def test_the_figures_are_those_of_an_evaluation(found, seeing, toys):
    examples = Examples.of_split(
        toys, "test", seeing.target, open_features(seeing, toys), source=seeing.source, max_tokens=80
    )
    expected = score_examples(seeing.model, examples).perplexity
    assert figures(found.pictures)["right"]["perplexity"].value == pytest.approx(expected.value)
    assert found.signatures["perplexity"] == expected.signature
    assert found.signatures["bleu2"].endswith("|decoding:beam1,penalty0,max_length8")


def test_what_is_said_of_one_picture_is_one_observation():
    statistics = np.array([[1.0, 2], [10, 20], [100, 200]])
    np.testing.assert_array_equal(by_item(statistics, ["a", "b", "a"]), [[101, 202], [10, 20]])


def condition(name, **values):
    tested = None if name == "right" else 0.01
    return Condition(
        name=name, figures=tuple(Figure(metric=metric, value=value, p=tested) for metric, value in values.items())
    )


@pytest.mark.parametrize(
    ("metric", "right", "shuffled", "told"),
    [
        ("bleu4", 30, 20, "The pictures are used: bleu4 is 30.00"),
        ("ter", 50, 60, "The pictures are used: ter is 50.00"),
        ("perplexity", 5, 6, "The pictures are used"),
        ("bleu4", 20, 30, "The pictures matter, and the right ones are worse"),
        ("ter", 60, 50, "The pictures matter, and the right ones are worse"),
    ],
)
def test_the_verdict_knows_which_way_a_metric_goes(metric, right, shuffled, told):
    assert verdict([condition("right", **{metric: right}), condition("shuffled", **{metric: shuffled})]).startswith(
        told
    )


def test_hidden_words_are_counted_and_their_translations_expected(found):
    colours, last = found.masked
    assert (colours.mask, colours.sentences, colours.words, colours.expected) == ("colours", 16, 16, 16)
    assert (last.mask, last.sentences, last.words, last.expected) == ("last:1", 16, 16, 16)
    table = figures(colours.conditions)
    assert list(table) == ["right", "shuffled", "none", "whole sentence"]
    assert table["whole sentence"]["recovered"].value == 100
    assert table["right"]["recovered"].value == 100  # the picture tells the colour
    assert table["none"]["recovered"].value == 50  # of the colours half are red, which it says unseen
    assert table["none"]["recovered"].p < 0.05
    assert list(table["right"]) == ["recovered", "bleu2", "ter"]
    # Without the noun it takes everything for a bat: half of the sentences have one.
    assert figures(last.conditions)["right"]["recovered"].value == 50
    assert last.conditions[-1].changed == 50


SENTENCES = ["a man in a light-blue shirt .", "a red dog 's bone", "Mr. Smith runs", "the dog runs"]


@pytest.fixture(scope="module", params=["word", "bpe"])
def tokenizer(request):
    size = 60 if request.param == "bpe" else None
    return Tokenizer.train(SENTENCES, TextSettings(level=request.param, max_size=size, lowercase=False))


def test_a_mask_hides_whole_words_and_nothing_else(tokenizer):
    hiding = Hiding(tokenizer, Words("some", {"red": frozenset(), "blue": frozenset()}))
    assert hiding.encode("the dog runs") == tokenizer.encode("the dog runs")
    assert hiding.encode("Mr. Smith runs") == tokenizer.encode("Mr. Smith runs")
    for text, before, after in (
        ("a Red dog 's bone", "a", "dog 's bone"),
        ("a man in a light-blue shirt .", "a man in a", "shirt ."),
    ):
        assert hiding.encode(text) == [*tokenizer.encode(before), SPECIAL_TOKENS.unk, *tokenizer.encode(after)]


def test_the_last_words_are_hidden_but_no_signs(tokenizer):
    hiding = Hiding(tokenizer, LastWords(2))
    dot = tokenizer.encode(".")
    assert hiding.encode("the dog runs .") == [*tokenizer.encode("the"), SPECIAL_TOKENS.unk, SPECIAL_TOKENS.unk, *dot]
    assert hiding.encode("runs") == [SPECIAL_TOKENS.unk]
    assert LastWords(2).hides(["a", "dog", "!", "runs", "."]) == [False, True, False, True, False]
    assert LastWords(2).expects(["dog", "runs"], ["der", "Hund", "rennt", "."]) == [{"hund"}, {"rennt"}]


@pytest.mark.parametrize(
    ("lang", "forms"),
    [
        ("en", ["red", "Gray", "purple", "dark-green", "black-and-white"]),
        ("de", ["roter", "weiße", "Weissen", "hellblaues", "rot-weiß", "orangefarbene", "lila", "rosa"]),
        ("fr", ["blanches", "noire", "violette", "gris", "marron"]),
        ("cs", ["červený", "modří", "bílou", "zelených", "světlemodré"]),
    ],
)
def test_colours_are_known_in_their_forms(lang, forms):
    mask = read_mask("colours", lang, "en")
    assert mask.hides(forms) == [True] * len(forms)
    assert mask.hides(["dog", "Hund", "chien", "pes", "."]) == [False] * 5


def test_only_what_the_reference_says_is_expected_and_any_form_recovers_it():
    mask = read_mask("colours", "en", "de")
    expected = mask.expects(["red", "blue", "green"], ["ein", "roter", "Hund", "und", "hellblaue", "Katzen"])
    assert recovered(expected, ["die", "rote", "Katze"]) == 1
    assert recovered(expected, ["ein", "blauer", "roter", "Ball"]) == 2
    assert recovered(expected, ["ein", "grüner", "Ball"]) == 0
    assert recovered([frozenset({"rot"})] * 2, ["rot"]) == 1  # one word does not stand for two


def test_a_list_of_words_may_tell_its_translations(tmp_path):
    file = tmp_path / "words.tsv"
    file.write_text("dog\tHund Hunde\n\nMan\n", encoding="utf-8")
    mask = read_mask(str(file), "en", "de")
    assert mask.hides(["a", "man", "and", "Dog"]) == [False, True, False, True]
    assert mask.expects(["man", "dog"], ["ein", "Mann", "mit", "Hund"]) == [{"hund", "hunde"}]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("last:0", "mask 'last:0': how many words"),
        ("last:few", "mask 'last:few': how many words"),
        ("colors", "mask 'colors': expected 'colours', 'last:3' or a file of words, and there is no such file"),
        ("two words.txt", "words.txt:2: 'a dog' is several words"),
        ("elephants.txt", "elephants.txt': hides no word of the 16 sentences"),
    ],
)
def test_masks_that_cannot_be_are_refused_before_the_work(seeing, toys, tmp_path, monkeypatch, name, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two words.txt").write_text("dog\na dog\n")
    (tmp_path / "elephants.txt").write_text("elephant\n")
    with pytest.raises(LimnerError, match=told):
        diagnose(seeing, toys, masks=[name], progress=lambda *_: pytest.fail("the work has begun"))


def test_a_language_without_colours_says_which_have_them():
    with pytest.raises(SettingsError, match="no list of colours in 'ja', only in en, de, fr, cs"):
        read_mask("colours", "ja", "en")


def labelled(id_, label):
    return Item(id_, "test", image=f"{id_}.png", label=label)


def test_the_wrong_picture_shows_the_other_meaning_of_the_same_word():
    labels = ["bat:animal", "bat:club", "bat:club", "crane:bird", "seal", None, "dog:big"]
    items = [labelled(str(k), label) for k, label in enumerate(labels)]
    shown = {id_: item.label for id_, item in wrong_pictures(items, 1).items()}
    assert shown == {"0": "bat:club", "1": "bat:animal", "2": "bat:animal"}
    assert [other_sense(item) for item in items[-3:]] == [None] * 3


def test_ambiguous_words_are_those_that_the_target_language_tells_apart():
    asked = [
        GenerationInput(labelled("0", "letter:sign"), "The letter is red.", ()),
        GenerationInput(labelled("1", "bat:animal"), "The picture shows a bat.", ()),
        GenerationInput(labelled("2", "bat:animal"), "The picture shows a ball.", ()),
        GenerationInput(labelled("3", None), "a bat", ()),
    ]
    words = [query.source.rstrip(".").split() for query in asked]
    german = sense_queries(asked, words, "de")
    assert [one.row for one in german] == [0, 1]
    assert german[0].right == {"buchstabe", "buchstaben"}  # it takes -n outside the nominative
    assert german[0].wrong == {"brief"}
    assert [one.row for one in sense_queries(asked, words, "fr")] == [1]  # both letters are 'lettre'
    assert sense_queries(asked, words, "cs") == []


def test_every_german_sentence_of_the_scenes_says_its_meaning(tmp_path):
    scenes = generate(tmp_path / "scenes", SceneSettings(train=30, val=0, test=0, size=32, ambiguous=1.0))
    pairs = [(item, pair) for item in scenes.items() for pair in item.pairs("en", "de")]
    asked = [GenerationInput(item, english.text, (german.text,)) for item, (english, german) in pairs]
    tokenizer = Tokenizer.train([], TextSettings(lang="de", lowercase=False))
    found = sense_queries(asked, [tokenizer.words(query.source) for query in asked], "de")
    assert len(found) > 100
    for one in found:
        said = " ".join(tokenizer.words(asked[one.row].references[0]))
        assert says(said, one.right, one.wrong)
        assert not says(said, one.wrong, one.right)


def test_saying_both_meanings_is_saying_neither():
    nouns, others = frozenset({"kran"}), frozenset({"kranich"})
    assert says("ein roter Kran .", nouns, others)
    assert not says("ein Kran und ein Kranich", nouns, others)
    assert not says("ein Kranich", nouns, others)


def table(path, *lines):
    path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")
    return path


ANIMAL, CLUB = "rot : Fledermaus .", "rot : Schläger ."


def test_the_likelier_of_two_sentences(seeing, ignoring, toys, tmp_path):
    file = table(
        tmp_path / "pairs.tsv",
        ("source", "target", "other", "image", "remark"),
        ("a red bat .", ANIMAL, CLUB, "test0", "an animal"),
        ("a red bat .", CLUB, ANIMAL, "test1", "a club"),
    )
    found = measure_contrasts(seeing, read_contrasts(file, seeing, toys), toys)
    assert (found.compared, found.accuracy, found.accuracy_per_word) == ("sentences", 100, 100)
    assert [line.line for line in found.lines] == [2, 3]
    blind = measure_contrasts(ignoring, read_contrasts(file, ignoring, toys), toys)
    assert blind.accuracy == 50
    assert blind.lines[0].log_prob == pytest.approx(blind.lines[1].other_log_prob)
    word = 4 - math.log(math.exp(4) + len(seeing.tokenizer) - 1)  # the stub's logits are 4 and 0
    assert found.lines[0].words == 5
    assert found.lines[0].log_prob == pytest.approx(5 * word, rel=1e-5)
    assert found.lines[0].other_log_prob == pytest.approx(5 * word - 4, rel=1e-5)  # one of its words is wrong


def test_the_likelier_of_two_pictures_which_may_be_files(seeing, ignoring, toys, tmp_path, eye_of, monkeypatch):
    monkeypatch.setattr("limner.diagnosis.contrastive.load_backbone_for", lambda *_, **__: eye_of())
    Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "new.png")
    file = table(
        tmp_path / "pairs.tsv",
        ("image", "other_image", "source", "target"),
        ("test0", "test1", "a red bat .", ANIMAL),
        ("new.png", "test0", "a red bat .", CLUB),
    )
    found = measure_contrasts(seeing, read_contrasts(file, seeing, toys), toys)
    assert (found.compared, found.accuracy) == ("pictures", 100)
    assert measure_contrasts(ignoring, read_contrasts(file, ignoring, toys), toys).accuracy == 50  # a tie counts half


HEAD = ("source", "target", "other", "image")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([("source", "target", "other")], "pairs.tsv:1: no column 'image'; the first line names the columns"),
        ([("target", "other", "image")], "pairs.tsv:1: no column 'source'"),
        ([("source", "target", "image")], "pairs.tsv:1: expected one of the columns 'other' and 'other_image'"),
        ([(*HEAD, "other_image")], "pairs.tsv:1: expected one of the columns 'other' and 'other_image'"),
        ([HEAD], "only the first line is there"),
        ([HEAD, ("a", "b", "c", "test0"), ("a", "b", "c")], "pairs.tsv:3: 3 columns, and the first line names 4"),
        ([HEAD, ("a bat", " ", "c", "test0")], "pairs.tsv:2: 'target' is 'empty'"),
        ([HEAD, ("a bat", "b", "c", "")], "pairs.tsv:2: 'image' is 'empty'"),
        ([HEAD, ("a bat", "b", "c", "test99")], "pairs.tsv:2: 'test99' is neither an item with a picture in"),
    ],
)
def test_contrasts_that_cannot_be_read_are_refused_before_the_work(seeing, toys, tmp_path, lines, told):
    file = table(tmp_path / "pairs.tsv", *lines)
    with pytest.raises(CollectionError, match=told):
        diagnose(seeing, toys, contrast=file, progress=lambda *_: pytest.fail("the work has begun"))


def test_an_item_without_features_is_named(seeing, own_toys, tmp_path):
    write_items(own_toys.path, [Item("later", "test", image="test0.png")])
    file = table(tmp_path / "pairs.tsv", HEAD, ("a bat", "b", "c", "later"))
    with pytest.raises(FeatureError, match=r"pairs.tsv:2: item 'later' has no features"):
        read_contrasts(file, seeing, Collection.open(own_toys.path))


@pytest.fixture
def own_toys(tmp_path, eye_of):
    """A collection that a test may change: two bats, one crane, and no split to learn from."""
    folder = tmp_path / "own"
    folder.mkdir()
    write_items(folder, [item for item in toy_items(folder) if item.id in ("test0", "test1", "test2")])
    collection = Collection.open(folder)
    extract(collection, eye_of())
    return collection


def test_a_small_split_goes_without_what_it_has_no_pictures_for(seeing, own_toys, caplog):
    found = diagnose(seeing, own_toys, metrics=["bleu1"], trials=5)
    assert [one.name for one in found.pictures] == ["right", "shuffled", "none"]
    assert (found.senses.sentences, found.senses.left_out) == (2, 1)  # the crane has no other one
    assert "there is no mean picture to show" in caplog.text and "'train'" in caplog.text


def test_a_training_split_without_pictures_costs_the_mean_picture_only(seeing, own_toys, caplog):
    write_items(own_toys.path, [Item("told", "train", sentences=(Sentence("en", "a bat"),))])
    found = diagnose(seeing, Collection.open(own_toys.path), metrics=["bleu1"], trials=5)
    assert [one.name for one in found.pictures] == ["right", "shuffled", "none"]
    assert "there is no mean picture to show: the mean picture of the training split" in caplog.text


def test_items_without_a_picture_are_passed_over(seeing, own_toys):
    sentences = (Sentence("en", "a red bat ."), Sentence("de", ANIMAL))
    write_items(own_toys.path, [Item("text", "test", sentences=sentences), Item("other", "words", sentences=sentences)])
    collection = Collection.open(own_toys.path)
    assert diagnose(seeing, collection, metrics=["bleu1"], trials=5).sentences == 3
    with pytest.raises(SettingsError, match="split 'words' has no pictures"):
        diagnose(seeing, collection, split="words")


def test_an_unknown_metric_is_refused(seeing, toys):
    with pytest.raises(SettingsError, match="no metric 'blue4'"):
        diagnose(seeing, toys, metrics=["blue4"])


def test_a_diagnosis_is_stored_as_it_is(found, tmp_path):
    path = save_diagnosis(found, tmp_path)
    assert path == tmp_path / "diagnosis" / "test-colours-last_1.json"
    assert Diagnosis.load(path) == found


def test_a_diagnosis_of_other_questions_replaces_nothing(found, tmp_path):
    masked = Masked(mask="last:3", sentences=1, words=3, expected=0, conditions=found.pictures)
    listed = masked.model_copy(update={"mask": "lists/my animals.txt"})
    asked = [found.model_copy(update={"masked": masks}) for masks in ((), (masked,), (masked, listed))]
    names = [save_diagnosis(one, tmp_path).name for one in asked]
    assert names == ["test.json", "test-last_3.json", "test-last_3-my_animals.json"]
    assert [Diagnosis.load(tmp_path / "diagnosis" / name) for name in names] == asked


def test_the_command_prints_and_stores(seeing, toys, tmp_path, monkeypatch, capsys):
    file = table(tmp_path / "pairs.tsv", HEAD, ("a red bat .", ANIMAL, CLUB, "test0"))
    run = tmp_path / "run"
    line = ["limner", "diagnose", str(run), "--data", str(toys.path), "--metric", "bleu1", "--metric", "perplexity"]
    line += ["--mask", "colours", "--contrast", str(file), "--trials", "20", "--beam-size", "2"]
    monkeypatch.setattr("limner.runs.trained_model.load_trained_model", lambda *_: seeing)
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    told = capsys.readouterr().out
    for words in ("16 sentences of 'test'", "shuffled", "16 words (colours) hidden in 16 sentences", "swapped"):
        assert words in told
    assert "the right one is likelier in 100.0 % of 1 lines" in told
    assert "The pictures are used: bleu1" in told
    stored = Diagnosis.load(run / "diagnosis" / "test-colours-contrast_pairs.json")
    assert stored.decoding == "beam2,penalty0,max_length8"
    assert stored.trials == 20
    monkeypatch.setattr(sys, "argv", [*line, "--json", "--out", str(tmp_path / "elsewhere.json")])
    with pytest.raises(SystemExit):
        main()
    printed = json.loads(capsys.readouterr().out)
    assert printed["file"] == str(tmp_path / "elsewhere.json")
    assert printed["verdict"] == Diagnosis.load(tmp_path / "elsewhere.json").verdict
    assert math.isfinite(printed["contrast"]["lines"][0]["log_prob"])
