"""Diagnosis on a toy collection where only the image disambiguates a word, with models that do and do not use it."""

import json
from typing import NamedTuple

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from limner.apps.diagnosis import DiagnosisSettings, diagnose, verdict
from limner.apps.diagnosis.diagnose import expresses_sense, find_ambiguous_inputs
from limner.data.collection import Collection, write_items
from limner.data.dataset import Examples, GenerationInput
from limner.data.examples import Item, ItemSentence
from limner.data.source_masks import LastWordsMask, MaskedTokenizer, WordListMask, create_mask
from limner.decoding.scoring import score_examples
from limner.errors import LimnerError, SettingsError
from limner.evaluation.measurements import ConditionResult, ConditionScore, Diagnosis
from limner.features.extract import extract
from limner.inference.features import open_features
from limner.models.protocols import Output
from limner.runs.recipe import Recipe
from limner.runs.trained_model import load_trained_model, save_trained_model
from limner.synthetic.scenes import SceneSettings
from limner.synthetic.storage import generate_collection
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS
from limner.text.words import TextSettings
from limner.training.setup import prepare

METRICS = ("bleu2", "ter", "perplexity")
GERMAN = {"bat:animal": "Fledermaus", "bat:club": "Schläger", "crane:bird": "Kranich", "crane:machine": "Kran"}
COLOURS = {"red": "rot", "blue": "blau"}


def toy_items(folder):
    """Images whose red channel encodes the sense of the word and whose green channel encodes the colour adjective."""
    for split, size in {"train": 8, "val": 8, "test": 16}.items():
        for number in range(size):
            label, (english, german) = list(GERMAN)[number % 4], list(COLOURS.items())[number // 4 % 2]
            id_, word = f"{split}{number}", label.partition(":")[0]
            ink = (255 * (number % 2), 255 * (german == "blau"), 9 * number)
            Image.new("RGB", (8, 8), ink).save(folder / f"{id_}.png")
            sentences = (
                ItemSentence("en", f"a {english} {word} ."),
                ItemSentence("de", f"{german} : {GERMAN[label]} ."),
            )
            yield Item(id_, split, image=f"{id_}.png", sentences=sentences, label=label)


@pytest.fixture(scope="module")
def toy_data(tmp_path_factory, backbone_of):
    folder = tmp_path_factory.mktemp("toys")
    write_items(folder, toy_items(folder))
    collection = Collection.open(folder)
    extract(collection, backbone_of())
    return collection


class StubMemory(NamedTuple):
    """The target tokens that a stub generates, end-of-sentence tokens included."""

    tokens: Tensor  # (B, 5)


class StubState(NamedTuple):
    """Position in the target sentence."""

    position: Tensor  # (N K,)


class ImageOracle(nn.Module):
    """Translates the toy sentences with the image: the sense by the red channel, a masked colour by the green one.

    Without an image both are translated as 'rot'. The chosen token has the logit 4, every other token 0.
    """

    uses_image = True

    def __init__(self, tokenizer, source_tokenizer):
        super().__init__()
        self.vocab_size = len(tokenizer)
        self.register_buffer("device_marker", torch.zeros(1))
        self.target_ids = lambda text: [*tokenizer.encode(text), SPECIAL_TOKENS.eos]
        self.source_words = lambda ids: [source_tokenizer.entries[word] for word in ids]

    def encode(self, batch):
        targets = []
        for row, source in enumerate(batch.source.tolist()):
            _, colour, word, *_ = self.source_words(source)
            if not batch.image.present[row]:
                targets.append(self.target_ids(f"{COLOURS.get(colour, 'rot')} : rot ."))
                continue
            pixel = batch.image.pooled[row].tolist()
            adjective = COLOURS.get(colour, list(COLOURS.values())[pixel[1] > 0.5])
            senses = [noun for name, noun in GERMAN.items() if name.startswith(word)] or list(GERMAN.values())
            targets.append(self.target_ids(f"{adjective} : {senses[pixel[0] > 0.5]} ."))
        return StubMemory(torch.tensor(targets))

    def start(self, memory):
        return StubState(torch.zeros(len(memory.tokens), dtype=torch.long))

    def step(self, tokens, memory, state):
        targets = memory.tokens.repeat_interleave(len(tokens) // len(memory.tokens), 0)
        chosen = targets.gather(1, state.position.clamp(max=4)[:, None])[:, 0]
        return 4.0 * functional.one_hot(chosen, self.vocab_size), StubState(state.position + 1)

    def forward(self, batch):
        targets = functional.pad(self.encode(batch).tokens, (0, batch.target_in.shape[1]), value=SPECIAL_TOKENS.eos)
        return Output(4.0 * functional.one_hot(targets[:, : batch.target_in.shape[1]], self.vocab_size))


def untrained(toy_data, image_paths):
    sizes = {"embedding_dim": 4, "hidden_dim": 4, "attention_dim": 4, "readout_dim": 4}
    recipe = Recipe.parse(
        {
            "data": {"lang": "de", "source_lang": "en"},
            "text": {"lowercase": False},
            "features": {"tables": ["colour"] if image_paths else []},
            "model": {"name": "nmt", "image": image_paths, **sizes},
            "training": {"metric": "perplexity"},
            "decoding": {"max_length": 8},
        }
    )
    model = prepare(recipe, toy_data, "")[0]
    model.model.eval()
    return model


@pytest.fixture(scope="module")
def using(toy_data):
    model = untrained(toy_data, ["initial"])
    return model._replace(model=ImageOracle(model.tokenizer, model.source_tokenizer))


@pytest.fixture(scope="module")
def ignoring(toy_data):
    """A model that reads the image features with weights of zero."""
    model = untrained(toy_data, ["initial"])
    with torch.no_grad():
        for weight in model.model.image_initial.parameters():
            weight.zero_()
    return model


@pytest.fixture(scope="module")
def diagnosis(using, toy_data):
    return run_diagnosis(using, toy_data, metrics=METRICS, masks=["colours", "last:1"], trials=200)


def run_diagnosis(model, collection, on_progress=None, **settings):
    return diagnose(model, collection, settings=DiagnosisSettings.parse(settings), on_progress=on_progress)


def scores(conditions):
    return {one.name: {score.metric: score for score in one.scores} for one in conditions}


def test_a_model_that_uses_the_image(diagnosis):
    table = scores(diagnosis.image_controls)
    assert list(table) == ["right", "shuffled", "mean", "none"]
    assert list(table["right"]) == list(METRICS)
    for metric in METRICS:
        right, shuffled = table["right"][metric], table["shuffled"][metric]
        assert right.p is None
        assert shuffled.p < 0.05
        assert shuffled.difference == pytest.approx(shuffled.value - right.value)
    assert diagnosis.verdict.startswith("The model uses the image: bleu2 is 100.00 with the right images and")
    assert diagnosis.sentences == 16


def test_the_image_determines_the_sense(diagnosis):
    assert diagnosis.ambiguity.sentences == 16
    assert diagnosis.ambiguity.excluded == 0
    table = scores(diagnosis.ambiguity.conditions)
    assert list(table) == ["right", "swapped", "none"]
    assert table["right"]["correct_sense"].value == 100
    assert table["swapped"]["correct_sense"].value == 0 < diagnosis.ambiguity.chance
    assert table["swapped"]["other_sense"].value == 100
    assert table["swapped"]["correct_sense"].p < 0.05
    assert table["none"]["correct_sense"].value == table["none"]["other_sense"].value == 0


def test_a_model_that_ignores_the_image(ignoring, toy_data):
    diagnosis = run_diagnosis(ignoring, toy_data, metrics=METRICS, masks=["colours"], trials=20)
    for conditions in (diagnosis.image_controls, diagnosis.ambiguity.conditions, diagnosis.masking[0].conditions[:3]):
        first, *others = conditions
        for other in others:
            assert other.changed == 0
            for mine, theirs in zip(first.scores, other.scores, strict=True):
                assert (theirs.value, theirs.difference, theirs.p) == (mine.value, 0, 1)
    assert diagnosis.verdict.startswith("No significant effect of the image")
    assert "0.0 % of the sentences change" in diagnosis.verdict
    # Half of the images of a word show each sense, so that a constant translation is correct for half of them.
    assert scores(diagnosis.ambiguity.conditions)["right"]["correct_sense"].value <= 50


def test_a_text_only_model_has_no_image_controls(toy_data):
    diagnosis = run_diagnosis(untrained(toy_data, []), toy_data, metrics=["bleu1"], masks=["last:2"], trials=20)
    assert [one.name for one in diagnosis.image_controls] == ["none"]
    assert [one.name for one in diagnosis.masking[0].conditions] == ["none", "unmasked"]
    assert [one.name for one in diagnosis.ambiguity.conditions] == ["none"]
    assert diagnosis.verdict == "The model does not use images."


def test_a_captioning_model(trained_on_colours, tiny):
    model = load_trained_model(trained_on_colours)
    diagnosis = run_diagnosis(model, tiny, metrics=["bleu2", "perplexity"], trials=50)
    table = scores(diagnosis.image_controls)
    assert list(table) == ["right", "shuffled", "mean", "zero"]
    assert table["shuffled"]["bleu2"].difference < 0 < table["shuffled"]["perplexity"].difference
    assert diagnosis.ambiguity is None
    with pytest.raises(SettingsError, match="mask 'colours': expected a translation model"):
        run_diagnosis(model, tiny, masks=["colours"])


def test_the_scores_equal_those_of_an_evaluation(diagnosis, using, toy_data):
    examples = Examples.of_split(
        toy_data, "test", using.target, open_features(using, toy_data), source=using.source, max_tokens=80
    )
    expected = score_examples(using.model, examples).perplexity
    assert scores(diagnosis.image_controls)["right"]["perplexity"].value == pytest.approx(expected.value)
    assert diagnosis.signatures["perplexity"] == expected.signature
    assert diagnosis.signatures["bleu2"].endswith("|decoding:beam1,penalty0,max_length8")


def condition(name, **values):
    tested = None if name == "right" else 0.01
    return ConditionResult(
        name=name,
        scores=tuple(ConditionScore(metric=metric, value=value, p=tested) for metric, value in values.items()),
    )


@pytest.mark.parametrize(
    ("metric", "right", "shuffled", "expected"),
    [
        ("bleu4", 30, 20, "The model uses the image: bleu4 is 30.00"),
        ("ter", 50, 60, "The model uses the image: ter is 50.00"),
        ("perplexity", 5, 6, "The model uses the image"),
        ("bleu4", 20, 30, "The image has an effect, but the right images score worse"),
        ("ter", 60, 50, "The image has an effect, but the right images score worse"),
    ],
)
def test_the_verdict_respects_the_direction_of_the_metric(metric, right, shuffled, expected):
    conditions = [condition("right", **{metric: right}), condition("shuffled", **{metric: shuffled})]
    assert verdict(conditions, items=100).startswith(expected)


def test_masked_words_are_counted_and_their_translations_expected(diagnosis):
    colours, last = diagnosis.masking
    assert (colours.mask, colours.sentences, colours.masked_words, colours.expected_words) == ("colours", 16, 16, 16)
    assert (last.mask, last.sentences, last.masked_words, last.expected_words) == ("last:1", 16, 16, 16)
    table = scores(colours.conditions)
    assert list(table) == ["right", "shuffled", "none", "unmasked"]
    assert table["unmasked"]["recovered"].value == 100
    assert table["right"]["recovered"].value == 100  # the image shows the colour
    assert table["none"]["recovered"].value == 50  # half of the colours are red, the default
    assert table["none"]["recovered"].p < 0.05
    assert list(table["right"]) == ["recovered", "bleu2", "ter"]
    # Without the noun the model assumes a bat, which half of the sentences contain.
    assert scores(last.conditions)["right"]["recovered"].value == 50
    assert last.conditions[-1].changed == 50


SENTENCES = ["a man in a light-blue shirt .", "a red dog 's bone", "Mr. Smith runs", "the dog runs"]


@pytest.fixture(scope="module", params=["word", "bpe"])
def tokenizer(request):
    size = 60 if request.param == "bpe" else None
    return Tokenizer.train(SENTENCES, TextSettings(level=request.param, max_size=size, lowercase=False))


def test_a_mask_replaces_whole_words_only(tokenizer):
    masked = MaskedTokenizer(tokenizer, WordListMask("some", {"red": frozenset(), "blue": frozenset()}))
    assert masked.encode("the dog runs") == tokenizer.encode("the dog runs")
    assert masked.encode("Mr. Smith runs") == tokenizer.encode("Mr. Smith runs")
    for text, before, after in (
        ("a Red dog 's bone", "a", "dog 's bone"),
        ("a man in a light-blue shirt .", "a man in a", "shirt ."),
    ):
        assert masked.encode(text) == [*tokenizer.encode(before), SPECIAL_TOKENS.unk, *tokenizer.encode(after)]


def test_the_last_words_are_masked_but_no_punctuation(tokenizer):
    masked = MaskedTokenizer(tokenizer, LastWordsMask(2))
    dot = tokenizer.encode(".")
    assert masked.encode("the dog runs .") == [*tokenizer.encode("the"), SPECIAL_TOKENS.unk, SPECIAL_TOKENS.unk, *dot]
    assert masked.encode("runs") == [SPECIAL_TOKENS.unk]
    assert LastWordsMask(2).select(["a", "dog", "!", "runs", "."]) == [False, True, False, True, False]
    assert LastWordsMask(2).expected_words(["dog", "runs"], ["der", "Hund", "rennt", "."]) == [{"hund"}, {"rennt"}]


@pytest.mark.parametrize(
    ("lang", "kinds"),
    [
        ("en", ["red", "Gray", "purple", "dark-green", "black-and-white"]),
        ("de", ["roter", "weiße", "Weissen", "hellblaues", "rot-weiß", "orangefarbene", "lila", "rosa"]),
        ("fr", ["blanches", "noire", "violette", "gris", "marron"]),
        ("cs", ["červený", "modří", "bílou", "zelených", "světlemodré"]),
    ],
)
def test_inflected_colour_terms_are_masked(lang, kinds):
    mask = create_mask("colours", lang, "en")
    assert mask.select(kinds) == [True] * len(kinds)
    assert mask.select(["dog", "Hund", "chien", "pes", "."]) == [False] * 5


def test_a_word_list_may_contain_translations(tmp_path):
    file = tmp_path / "words.tsv"
    file.write_text("dog\tHund Hunde\n\nMan\n", encoding="utf-8")
    mask = create_mask(str(file), "en", "de")
    assert mask.select(["a", "man", "and", "Dog"]) == [False, True, False, True]
    assert mask.expected_words(["man", "dog"], ["ein", "Mann", "mit", "Hund"]) == [{"hund", "hunde"}]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("last:0", "number of words: expected a whole number from 1 to 10,000, got 0"),
        ("last:few", "number of words: expected a whole number from 1 to 10,000, got few"),
        ("colors", "mask 'colors': expected 'colours', 'last:3' or the path of a word list; no such file"),
        ("two words.txt", "words.txt:2: expected one source word before the tab, got 'a dog'"),
        ("elephants.txt", "elephants.txt': no word of the 16 source sentences is masked"),
    ],
)
def test_invalid_masks_are_rejected_before_generation(using, toy_data, tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two words.txt").write_text("dog\na dog\n")
    (tmp_path / "elephants.txt").write_text("elephant\n")
    with pytest.raises(LimnerError, match=message):
        run_diagnosis(using, toy_data, masks=[name], on_progress=lambda *_: pytest.fail("generation has started"))


def test_a_language_without_a_colour_list():
    with pytest.raises(SettingsError, match="no list of colours for 'ja', only for en, de, fr, cs"):
        create_mask("colours", "ja", "en")


def labelled(id_, label):
    return Item(id_, "test", image=f"{id_}.png", label=label)


def test_ambiguous_words_have_different_translations_in_the_target_language():
    inputs = [
        GenerationInput(labelled("0", "letter:sign"), "The letter is red.", ()),
        GenerationInput(labelled("1", "bat:animal"), "The picture shows a bat.", ()),
        GenerationInput(labelled("2", "bat:animal"), "The picture shows a ball.", ()),
        GenerationInput(labelled("3", None), "a bat", ()),
    ]
    words = [query.source.rstrip(".").split() for query in inputs]
    german = find_ambiguous_inputs(inputs, words, "de")
    assert [one.position for one in german] == [0, 1]
    assert german[0].correct == {"buchstabe", "buchstaben"}  # -n in the oblique cases
    assert german[0].incorrect == {"brief"}
    assert [one.position for one in find_ambiguous_inputs(inputs, words, "fr")] == [1]  # both senses are 'lettre'
    assert find_ambiguous_inputs(inputs, words, "cs") == []


def test_every_german_sentence_of_the_scenes_expresses_its_sense(tmp_path):
    scenes = generate_collection(tmp_path / "scenes", SceneSettings(train=30, val=0, test=0, size=32, ambiguous=1.0))
    pairs = [(item, pair) for item in scenes.items() for pair in item.pairs("en", "de")]
    inputs = [GenerationInput(item, english.text, (german.text,)) for item, (english, german) in pairs]
    tokenizer = Tokenizer.train([], TextSettings(lang="de", lowercase=False))
    ambiguous = find_ambiguous_inputs(inputs, [tokenizer.words(query.source) for query in inputs], "de")
    assert len(ambiguous) > 100
    for one in ambiguous:
        reference = " ".join(tokenizer.words(inputs[one.position].references[0]))
        assert expresses_sense(reference, one.correct, one.incorrect)
        assert not expresses_sense(reference, one.incorrect, one.correct)


@pytest.fixture
def own_toy_data(tmp_path, backbone_of):
    """A collection that a test may change: two bats, one crane and no training split."""
    folder = tmp_path / "own"
    folder.mkdir()
    write_items(folder, [item for item in toy_items(folder) if item.id in ("test0", "test1", "test2")])
    collection = Collection.open(folder)
    extract(collection, backbone_of())
    return collection


def test_image_controls_without_images_are_left_out(using, own_toy_data, caplog):
    diagnosis = run_diagnosis(using, own_toy_data, metrics=["bleu1"], trials=20)
    assert [one.name for one in diagnosis.image_controls] == ["right", "shuffled", "none"]
    # The crane has no image of the other sense.
    assert (diagnosis.ambiguity.sentences, diagnosis.ambiguity.excluded) == (2, 1)
    assert "the image control 'mean' is left out" in caplog.text and "'train'" in caplog.text


def test_a_training_split_without_images_has_no_mean_image(using, own_toy_data, caplog):
    write_items(own_toy_data.path, [Item("text", "train", sentences=(ItemSentence("en", "a bat"),))])
    diagnosis = run_diagnosis(using, Collection.open(own_toy_data.path), metrics=["bleu1"], trials=20)
    assert [one.name for one in diagnosis.image_controls] == ["right", "shuffled", "none"]
    assert "expected items with an image in the training split" in caplog.text


def test_items_without_an_image_are_left_out(using, own_toy_data):
    sentences = (ItemSentence("en", "a red bat ."), ItemSentence("de", "rot : Fledermaus ."))
    write_items(
        own_toy_data.path, [Item("text", "test", sentences=sentences), Item("other", "words", sentences=sentences)]
    )
    collection = Collection.open(own_toy_data.path)
    diagnosis = run_diagnosis(using, collection, metrics=["bleu1"], trials=20)
    assert diagnosis.sentences == 3
    assert diagnosis.verdict.startswith("No verdict: ") and "items cannot give p < 0.05" in diagnosis.verdict
    with pytest.raises(SettingsError, match="split 'words' has no images"):
        run_diagnosis(using, collection, split="words")


def test_diagnoses_with_different_masks_have_different_files(diagnosis, tmp_path):
    masked = diagnosis.masking[0].model_copy(update={"mask": "last:3"})
    listed = masked.model_copy(update={"mask": "lists/my animals.txt"})
    stored = [diagnosis.model_copy(update={"masking": masks}) for masks in ((), (masked,), (masked, listed))]
    stored.append(diagnosis)
    names = [record.save_in(tmp_path).name for record in stored]
    assert names == [f"test{name}.json" for name in ("", "-last_3", "-last_3-my_animals", "-colours-last_1")]
    assert [Diagnosis.load(tmp_path / "diagnosis" / name) for name in names] == stored


def test_the_command_prints_and_stores(using, toy_data, tmp_path, monkeypatch, command_line):
    run = tmp_path / "run"
    run.mkdir()
    save_trained_model(run, using)
    line = ["diagnose", "--model", run, "--collection", toy_data.path, "--metric", "bleu1", "--metric", "perplexity"]
    line += ["--mask", "colours", "--trials", 20, "--beam-size", 2]
    monkeypatch.setattr("limner.runs.trained_model.load_trained_model", lambda *_: using)
    status, printed, _ = command_line(*line)
    assert status == 0
    for words in ("16 sentences of 'test'", "shuffled", "16 words (colours) masked in 16 sentences", "swapped"):
        assert words in printed
    assert "The model uses the image: bleu1" in printed
    stored = Diagnosis.load(run / "diagnosis" / "test-colours.json")
    assert stored.decoding == "beam2,penalty0,max_length8"
    assert stored.trials == 20
    printed = json.loads(command_line(*line, "--json", "--out", tmp_path / "elsewhere.json")[1])
    assert printed["file"] == str(tmp_path / "elsewhere.json")
    assert printed["verdict"] == Diagnosis.load(tmp_path / "elsewhere.json").verdict
