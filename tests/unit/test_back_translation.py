"""Back-translation of the untranslated sentences of a collection."""

import json
import logging
import shutil

import pytest
from toy_translation import image_collection, learn

from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.data.languages import text_pairs
from limner.errors import CollectionError, FeatureError
from limner.files import locked
from limner.inference.back_translation import BackTranslationSettings, back_translate, run_name, translate_untranslated
from limner.runs.trained_model import load_trained_model, sha256

WRITTEN = ("eins zwei", "drei", "zwei drei", "drei eins", "zwei")
MEANT = ("one two", "three", "two three", "three one", "two")


@pytest.fixture(scope="module")
def model(toy_run):
    return load_trained_model(toy_run)


@pytest.fixture
def collection(tmp_path):
    """Three items in training, whose German sentences are mostly untranslated, and one in validation."""
    pair = (ItemSentence("de", "eins"), ItemSentence("en", "number one"))
    items = [
        Item("a", "train", sentences=(*pair, ItemSentence("de", WRITTEN[0], 11), ItemSentence("de", WRITTEN[1], 21))),
        Item("b", "train", sentences=(ItemSentence("de", WRITTEN[2], 11), ItemSentence("en", "something else", 10))),
        Item("c", "train", sentences=(*pair, ItemSentence("de", WRITTEN[3], 11), ItemSentence("de", WRITTEN[4], 21))),
        Item("d", "val", sentences=(ItemSentence("de", "drei drei", 3),)),
    ]
    write_items(tmp_path / "collection", items)
    return Collection.open(tmp_path / "collection")


def made_in(collection):
    """Model-generated sentences: (item, group, text, generated_by)."""
    items = Collection.open(collection.path).items()
    return [
        (item.id, one.group, one.text, one.generated_by) for item in items for one in item.sentences if one.generated_by
    ]


ALL = [("a", 11, MEANT[0]), ("a", 21, MEANT[1]), ("b", 11, MEANT[2]), ("c", 11, MEANT[3]), ("c", 21, MEANT[4])]


def test_untranslated_sentences_get_a_translation_in_their_group(model, collection):
    before = collection.items()
    assert back_translate([model], collection, generated_by="run:1") == (5, 0)
    assert made_in(collection) == [(*one, "run:1") for one in ALL]
    after = Collection.open(collection.path).items()
    assert [item.texts("en") for item in after] == [item.texts("en") for item in before]  # those of people
    pair = (ItemSentence("en", MEANT[2], 11, "run:1"), ItemSentence("de", WRITTEN[2], 11))
    assert after[1].pairs("en", "de") == [pair]


def test_a_second_run_translates_nothing(model, collection):
    back_translate([model], collection, generated_by="run:1")
    again = Collection.open(collection.path)
    assert back_translate([model], again, generated_by="other:2") == (0, 0)
    assert made_in(collection) == [(*one, "run:1") for one in ALL]


def test_a_second_run_removes_what_a_killed_one_has_left(model, collection):
    back_translate([model], collection, generated_by="run:1")
    leftover, unfinished = collection.path / ".files.partial-0123abcd", collection.path / "items.lance/.tmp_manifest"
    leftover.mkdir()
    (leftover / ".spool.arrow").touch()
    unfinished.touch()
    with locked(collection.path, CollectionError):  # another process is writing them
        back_translate([model], Collection.open(collection.path), generated_by="run:1")
    assert leftover.exists() and unfinished.exists()
    back_translate([model], Collection.open(collection.path), generated_by="run:1")
    assert not leftover.exists() and not unfinished.exists()
    assert made_in(collection) == [(*one, "run:1") for one in ALL]


def test_an_interrupted_run_can_be_continued(model, collection):
    class Killed(Exception):
        pass

    def die(done, total):
        if done > 3:
            raise Killed

    settings = BackTranslationSettings(write_batch_size=1, batch_size=1)
    with pytest.raises(Killed):
        back_translate([model], collection, generated_by="run:1", settings=settings, on_progress=die)
    assert [one[:3] for one in made_in(collection)] == ALL[:3]  # two items, whole
    assert back_translate([model], Collection.open(collection.path), generated_by="run:1") == (2, 0)
    assert [one[:3] for one in made_in(collection)] == ALL


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
def test_batches_do_not_separate_the_sentences_of_an_item(model, collection, at_once):
    progress = []
    settings = BackTranslationSettings(write_batch_size=at_once)
    parts = list(
        translate_untranslated([model], collection, settings=settings, on_progress=lambda *news: progress.append(news))
    )
    assert [(one.item.id, one.sentence.group, one.text) for part in parts for one in part] == ALL
    owners = [{one.item.id for one in part} for part in parts]
    assert sum(map(len, owners)) == 3
    assert progress[-1] == (5, 5) and progress == sorted(progress)


def test_limit_and_split(model, collection):
    parts = translate_untranslated([model], collection, settings=BackTranslationSettings(limit=3))
    assert [one.text for part in parts for one in part] == [text for _, _, text in ALL[:3]]
    val = BackTranslationSettings(split="val")
    assert back_translate([model], collection, generated_by="m", settings=val) == (1, 0)
    assert made_in(collection) == [("d", 3, "three three", "m")]


def test_empty_long_and_unfinished_translations_are_left_out(model, collection):
    odd = (ItemSentence("de", "  ", 31), ItemSentence("de", "eins " * 1001, 41), ItemSentence("de", "drei zwei", 51))
    write_items(collection.path, [Item("e", "odd", sentences=odd)])
    collection, settings = Collection.open(collection.path), BackTranslationSettings(split="odd")
    assert back_translate([model], collection, generated_by="m", settings=settings) == (1, 2)
    assert made_in(collection) == [("e", 51, "three two", "m")]
    short = model.recipe.decoding.model_copy(update={"max_length": 1})  # without end-of-sentence token
    settings = BackTranslationSettings(split="train", decoding=short)
    assert back_translate([model], collection, generated_by="m", settings=settings) == (0, 5)


def test_generated_sentences_are_not_translated(model, collection):
    write_items(collection.path, [Item("e", "odd", sentences=(ItemSentence("de", "drei", 1, "other:2"),))])
    settings = BackTranslationSettings(split="odd")
    assert list(translate_untranslated([model], Collection.open(collection.path), settings=settings)) == []


def test_missing_features_are_reported_before_decoding(tmp_path):
    collection = image_collection(tmp_path / "c")
    multimodal = load_trained_model(learn(collection, tmp_path / "run", image=("attention",), steps=2))
    sentences = (ItemSentence("de", "eins", 7),)
    write_items(collection.path, [Item("green0", "train", sentences=sentences)])
    write_items(collection.path, [Item("later", "train", image="later.png", sentences=sentences)])
    collection = Collection.open(collection.path)
    with pytest.raises(FeatureError, match=r"1 image of sentences to translate without features, .* 'later'"):
        back_translate([multimodal], collection, generated_by="m", settings=BackTranslationSettings(write_batch_size=1))
    assert made_in(collection) == []
    image = multimodal.recipe.features.model_copy(update={"missing": "leave_out"})
    multimodal = multimodal._replace(recipe=multimodal.recipe.model_copy(update={"features": image}))
    assert sum(back_translate([multimodal], collection, generated_by="m")) == 2
    assert "later" not in [item for item, *_ in made_in(collection)]


def test_groups_with_several_source_sentences_are_logged(model, tmp_path, caplog):
    """Each source sentence would be paired with the translations of all."""
    both = (ItemSentence("de", "eins"), ItemSentence("de", "zwei"))
    write_items(tmp_path / "c", [Item("a", "train", sentences=both)])
    back_translate([model], Collection.open(tmp_path / "c"), generated_by="m")
    assert "1 groups have several sentences in 'de', for example group 0 of item 'a'" in caplog.text


def test_training_uses_synthetic_pairs_only_if_configured(model, collection):
    back_translate([model], collection, generated_by="run:1")
    item = Collection.open(collection.path).items()[0]
    other_way = model.source._replace(lang="en")
    assert [pair[0] for pair in text_pairs(item, "de", other_way)] == ["number one"]
    taken = text_pairs(item, "de", other_way._replace(synthetic=0.5))
    assert {pair[:2] for pair in taken if pair[2]} == {(MEANT[0], WRITTEN[0]), (MEANT[1], WRITTEN[1])}


def test_the_name_of_a_run_is_its_directory_and_weights(toy_run, tmp_path, monkeypatch):
    copy = shutil.copytree(toy_run, tmp_path / "de-en")
    assert run_name(copy) == f"de-en:{sha256(copy / 'model.safetensors')[:12]}"
    monkeypatch.chdir(copy)
    assert run_name(".") == run_name(copy)


@pytest.fixture
def limner_translate(toy_run, collection, command_line):
    """Calls the command in this process: its exit status, output and messages."""

    def call(*arguments, command="translate"):
        place = ["--model", toy_run, "--collection", collection.path] if command == "translate" else [collection.path]
        result = command_line(command, *place, *arguments)
        logging.getLogger().handlers.clear()
        return result

    return call


def test_without_write_nothing_is_written(limner_translate, collection):
    before = collection.fingerprint()
    status, printed, _ = limner_translate("--source-lang", "de", "--target-lang", "en")
    assert (status, printed) == (0, "".join(f"{a}\t{b}\n" for a, b in zip(WRITTEN, MEANT, strict=True)))
    assert json.loads(limner_translate("--limit", 1, "--json")[1]) == [{"de": WRITTEN[0], "en": MEANT[0]}]
    assert Collection.open(collection.path).fingerprint() == before


def test_with_write_the_collection_records_the_model(limner_translate, collection, toy_run):
    status, printed, _ = limner_translate("--source-lang", "de", "--target-lang", "en", "--write")
    assert status == 0 and f"5 sentences in 'en' added, generated by {run_name(toy_run)}" in printed
    assert {who for *_, who in made_in(collection)} == {run_name(toy_run)}
    counts = json.loads(limner_translate("--json", command="show")[1])["sentences"]
    assert counts == {"train": {"de": 7, "en": 3, "en (generated)": 5}, "val": {"de": 1}}


def test_a_model_of_another_direction_is_an_error(limner_translate, collection):
    for options in (["--source-lang", "en", "--target-lang", "de"], ["--target-lang", "fr"]):
        status, _, progress = limner_translate(*options, "--write")
        assert status == 1 and "translates from 'de' to 'en'" in progress.replace("\n", " ")
    assert made_in(collection) == []
