"""Tokenised examples of a split: selection, batches, sampling of synthetic pairs, inputs of generation."""

import json

import numpy as np
import pytest
from PIL import Image

from limner.data.collection import Collection, write_items
from limner.data.dataset import Examples, GenerationInput
from limner.data.examples import Item, ItemSentence
from limner.data.languages import SourceLanguage, TargetLanguage
from limner.data.readers import import_collection, read_source
from limner.data.tally import Tally
from limner.errors import CollectionError, FeatureError, TrainingError
from limner.features.store import FeatureStore
from limner.text.tokenizer import Tokenizer
from limner.text.words import TextSettings

ITEMS = [
    Item("a", "train", sentences=(ItemSentence("en", "one two three"), ItemSentence("de", "eins"))),
    Item("b", "train", sentences=(ItemSentence("de", "zwei"),)),
    Item(
        "c",
        "train",
        sentences=(ItemSentence("en", "one"), ItemSentence("en", "one two three four"), ItemSentence("en", "two")),
    ),
]


def examples(max_tokens=80):
    tokenizer = Tokenizer.train(["one two three four"], TextSettings())
    return Examples(ITEMS, TargetLanguage("en", tokenizer), None, max_tokens=max_tokens), tokenizer


def test_examples_are_the_sentences_of_one_language():
    pairs, tokenizer = examples()
    assert list(pairs.texts) == ["one two three", "one", "one two three four", "two"]
    assert list(pairs.owners) == [0, 2, 2, 2]
    assert list(pairs.targets) == [tokenizer.encode(text) for text in pairs.texts]
    assert pairs.batch([3, 0]).ids == ("c", "a")
    assert pairs.batch([3, 0]).target_mask.sum(1).tolist() == [2, 4]


def test_long_sentences_are_left_out_and_counted():
    pairs, _ = examples(max_tokens=3)
    assert (list(pairs.texts), list(pairs.owners), pairs.too_long) == (["one two three", "one", "two"], [0, 2, 2], 1)


def test_a_batch_to_score_is_bounded_by_both_languages():
    german = [ItemSentence("de", "eins", k) for k in range(6)]
    read = [ItemSentence("en", "one " * (3000 if k == 4 else 2), k) for k in range(6)]
    pairs = translated(items=[Item("i", "train", sentences=(*german, *read))], max_tokens=None)
    assert pairs.batches_by_length(20) == [[0, 1, 2, 3, 5], [4]]


def test_a_feature_store_returns_stored_features(tiny):
    features = FeatureStore.open(tiny, ["colour", "pixels16"], 64)
    assert features.shapes == {"pooled": (3,), "maps": (3, 16, 16)}
    shown, bare = tiny.items("test")[0], Item("bare", "test")
    first, second, third = features.take([shown, bare, shown])
    assert second is None
    np.testing.assert_array_equal(first["pooled"], features.tables[0].take([shown.id])[0])
    np.testing.assert_array_equal(third["maps"], first["maps"])
    assert features.covers(shown)
    assert features.covers(bare)
    assert not features.covers(Item("late", "test", image="late.png"))


def test_splits(tiny):
    tokenizer = Tokenizer.train(["a red wall"], TextSettings())
    german = Examples.of_split(tiny, "val", TargetLanguage("de", tokenizer), None, max_tokens=80)
    assert (len(german), len(german.items)) == (8, 8)
    with pytest.raises(CollectionError, match="no items in split 'dev'; the splits are 'train'"):
        Examples.of_split(tiny, "dev", TargetLanguage("en", tokenizer), None, max_tokens=80)
    with pytest.raises(TrainingError, match=r"'val' has no sentence in 'fr' \(.*: de, en\); train with data\.lang=de$"):
        Examples.of_split(tiny, "val", TargetLanguage("fr", tokenizer), None, max_tokens=80)
    with pytest.raises(TrainingError, match=r"'val' has no sentence of at most 1 tokens in 'en' \(.*: de, en\)$"):
        Examples.of_split(tiny, "val", TargetLanguage("en", tokenizer), None, max_tokens=1)


def test_items_without_features_are_refused_or_left_out(tiny, caplog) -> None:
    class Half:
        table_names = ("pooled",)

        def covers(self, item) -> bool:
            return item.id != val_items[0].id

    val_items = tiny.items("val")
    tokenizer = Tokenizer.train(["a"], TextSettings())
    with pytest.raises(FeatureError, match=val_items[0].id):
        Examples.of_split(tiny, "val", TargetLanguage("en", tokenizer), Half(), max_tokens=80)
    examples = Examples.of_split(tiny, "val", TargetLanguage("en", tokenizer), Half(), max_tokens=80, leave_out=True)
    assert [item.id for item in examples.items] == [item.id for item in val_items[1:]]
    assert (examples.without_features, examples.with_features(None).without_features) == (1, 1)
    assert "1 item without features is left out" in caplog.text


MADE = "run:0123456789ab"
TRANSLATED = [
    Item("a", "train", sentences=(ItemSentence("en", "one two", 0), ItemSentence("de", "eins zwei drei", 0))),
    Item("b", "train", sentences=(ItemSentence("en", "two", 0), ItemSentence("de", "zwei", 1))),
    Item(
        "c",
        "train",
        sentences=(
            ItemSentence("en", "one", 5),
            ItemSentence("en", "four", 6),
            ItemSentence("de", "eins", 5),
            ItemSentence("de", "zwei eins", 5),
            ItemSentence("en", "three three", 7, MADE),
            ItemSentence("en", "four one", 5, MADE),
            ItemSentence("de", "drei", 7),
            ItemSentence("de", "vier", 6, MADE),
        ),
    ),
]


def translated(synthetic=0.0, items=TRANSLATED, max_tokens=80):
    english, german = (Tokenizer.train([text], TextSettings()) for text in ("one two three four", "eins zwei drei"))
    source = SourceLanguage("en", english, synthetic)
    return Examples(items, TargetLanguage("de", german), None, source=source, max_tokens=max_tokens)


def source_and_target(examples):
    read = [examples.source.tokenizer.decode(source) for source in examples.sources]
    return list(zip(read, examples.texts, strict=True))


def test_examples_of_translation_are_the_pairs_of_a_group():
    pairs = translated()
    assert source_and_target(pairs) == [("one two", "eins zwei drei"), ("one", "eins"), ("one", "zwei eins")]
    assert (list(pairs.owners), pairs.synthetic) == ([0, 2, 2], [])
    batch = pairs.batch([2, 0])
    assert batch.ids == ("c", "a")
    assert batch.source.tolist() == [[*pairs.sources[2], 0], list(pairs.sources[0])]
    assert batch.source_mask.sum(1).tolist() == [1, 2]
    assert batch.target_mask.sum(1).tolist() == [3, 4]


def test_model_generated_sentences_are_sources_only_and_optional():
    pairs = translated(synthetic=0.5)
    everything = source_and_target(pairs)
    written = [("four one", "eins"), ("four one", "zwei eins"), ("three three", "drei")]
    assert [everything[row] for row in pairs.synthetic] == written
    assert len(everything) == 6
    assert "vier" not in pairs.texts


@pytest.mark.parametrize(("max_tokens", "texts", "left_out"), [(2, ["eins", "zwei eins"], 1), (1, ["eins"], 2)])
def test_a_pair_with_a_long_sentence_on_either_side_is_left_out(max_tokens, texts, left_out):
    pairs = translated(max_tokens=max_tokens)
    assert (list(pairs.texts), pairs.too_long) == (texts, left_out)
    other = Item("long", "train", sentences=(ItemSentence("en", "one " * 90), ItemSentence("de", "eins")))
    assert translated(items=[*TRANSLATED, other]).too_long == 1


def of_both(people, written, synthetic):
    """Human-written pairs followed by pairs with a generated source sentence."""
    sentences = [
        ItemSentence(lang, text, group, MADE if lang == "en" and group >= people else "")
        for group in range(people + written)
        for lang, text in (("en", "one two"), ("de", "eins"))
    ]
    return translated(synthetic, [Item("i", "train", sentences=tuple(sentences))])


@pytest.mark.parametrize(
    ("people", "written", "synthetic", "drawn"),
    [(30, 100, 0.5, 30), (30, 100, 0.25, 10), (30, 100, 0.75, 90), (30, 20, 0.5, 20), (0, 9, 0.5, 9), (9, 0, 0.5, 0)],
)
def test_an_epoch_has_its_share_of_synthetic_pairs(people, written, synthetic, drawn):
    pairs = of_both(people, written, synthetic)
    assert len(pairs) == people + written
    rows = pairs.epoch_rows(seed=1, epoch=0)
    assert list(rows[:people]) == list(range(people))
    assert len(rows) == len(set(rows)) == people + drawn
    assert set(rows[people:]) <= set(pairs.synthetic)


def test_the_synthetic_pairs_of_an_epoch_follow_from_seed_and_epoch():
    pairs = of_both(30, 300, 0.5)
    rows = pairs.epoch_rows(seed=1, epoch=3)
    assert rows == pairs.epoch_rows(seed=1, epoch=3)
    assert rows != pairs.epoch_rows(seed=1, epoch=4)
    assert rows != pairs.epoch_rows(seed=2, epoch=3)
    drawn = {row for epoch in range(100) for row in pairs.epoch_rows(seed=1, epoch=epoch)}
    assert len(drawn) == 330  # redrawn in every epoch, all rows occur


def test_without_synthetic_pairs_an_epoch_is_everything():
    assert list(translated().epoch_rows(seed=1, epoch=0)) == [0, 1, 2]
    assert list(examples()[0].epoch_rows(seed=1, epoch=0)) == [0, 1, 2, 3]


def test_generation_inputs_are_human_written_sources_with_all_references():
    a, _, c = TRANSLATED
    expected = [GenerationInput(a, "one two", ("eins zwei drei",)), GenerationInput(c, "one", ("eins", "zwei eins"))]
    assert translated().generation_inputs() == expected
    assert translated(synthetic=0.5).generation_inputs() == expected
    short = translated(max_tokens=1)  # long sentences are excluded from training, not from generation
    assert short.generation_inputs() == expected


def test_generation_inputs_of_captioning_are_the_items():
    inputs = [GenerationInput(item, None, tuple(item.texts("en"))) for item in ITEMS]
    assert examples()[0].generation_inputs() == inputs


def pairs_of_val(collection, lang, synthetic=0.0):
    """Pairs of sentences in a language and their German translations."""
    source, german = (Tokenizer.train([text], TextSettings()) for text in ("look a red wall", "eine wand"))
    source = SourceLanguage(lang, source, synthetic)
    return Examples.of_split(collection, "val", TargetLanguage("de", german), None, max_tokens=80, source=source)


def test_splits_of_translation(tiny):
    pairs = pairs_of_val(tiny, "en")
    assert (len(pairs), len(pairs.items)) == (8, 8)  # the German sentence of an item is of the group of its second one
    assert all(text.startswith("look") for text, _ in source_and_target(pairs))
    message = r"'val' has no sentence in 'de' with a translation in 'fr' \(.*: de, en\)$"
    with pytest.raises(TrainingError, match=message):
        pairs_of_val(tiny, "fr")


def test_an_error_names_excluded_model_generated_sentences(tmp_path):
    """Generated sentences are used only if configured, and never for validation."""
    sentences = (ItemSentence("en", "one", 0, MADE), ItemSentence("de", "eins", 0))
    write_items(tmp_path, [Item("a", "val", sentences=sentences)])
    collection = Collection.open(tmp_path)
    with pytest.raises(TrainingError, match=r"'val' has no .* with a translation in 'en'; model-generated source"):
        pairs_of_val(collection, "en")
    assert len(pairs_of_val(collection, "en", synthetic=0.5)) == 1


PIXEL = Image.new("RGB", (4, 4))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def draw(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        PIXEL.save(folder / name, "png")


def test_lines_name_counts_reasons_and_a_few_names():
    tally = Tally()
    for name in "abcda":
        tally.skip("sentences of too many words", name)
    tally.note("hidden files", count=1200)
    assert tally.lines() == ["skipped 5 sentences of too many words, for example a; b; c", "note: 1,200 hidden files"]


def test_lines_of_a_split_name_it_once_and_are_no_notes():
    tally = Tally()
    tally.skip("sentences of too many words", count=2)
    tally.note("tokens are not in the vocabulary", count=30)
    tally.note_few("val", 7, "sentences")
    assert tally.lines("val") == [
        "split 'val': skipped 2 sentences of too many words",
        "split 'val': 30 tokens are not in the vocabulary",
        "7 sentences in split 'val': too few to choose a model by, or to measure it",
    ]


def test_a_folder_counts_every_file_that_is_no_item_or_has_no_sentence(tmp_path):
    source = tmp_path / "photos"
    draw(source, "A.JPG", "b.png", ".hidden.png", ".cache/c.png", "__MACOSX/d.png")
    write(source / "a.TXT", "not the sentences of A.JPG\n")
    write(source / "A.TXT", "a dog\na dog\n\na cat\n")
    write(source / "notes.md", "about")
    (source / "album").symlink_to(tmp_path)
    report = import_collection("folder", source, tmp_path / "collection")
    assert report.sentences == 3
    assert report.tally.skipped == {"empty sentences": 1, "text files without an image or video of the same name": 1}
    assert report.tally.noted == {
        "items without sentences": 1,
        "hidden files and folders, which are not read": 3,
        "links to folders, which are not followed": 1,
        "files of other kinds, which are not read": 1,
        "items in split 'train': too few to choose a model by, or to measure it": 2,
    }
    assert f"for example {source / 'a.TXT'}" in "\n".join(report.lines())
    with pytest.raises(CollectionError, match=r"A\.TXT:3: 'A': empty sentences"):
        read_source("folder", source, strict=True)


def test_two_text_files_for_one_image_are_refused(tmp_path):
    draw(tmp_path, "a.png")
    write(tmp_path / "a.txt", "one\n")
    write(tmp_path / "a.TXT", "two\n")
    with pytest.raises(CollectionError, match=r"a\.txt: has the same name as .*a\.TXT; join"):
        read_source("folder", tmp_path)


def test_images_of_a_corpus_that_no_split_names_are_noted(tmp_path):
    draw(tmp_path / "images", "a.png", "b.png", "c.png")
    write(tmp_path / "f.token.txt", "a.png#0\tone\na.png#0\tone\n")
    write(tmp_path / "splits" / "train.txt", "a.png\nb.png\n")
    tally = read_source("flickr", tmp_path).tally
    assert tally.noted == {
        "items without sentences": 1,
        "files that no item of the source uses": 1,
        "sentences that repeat another sentence of their item and group": 1,
    }
    assert tally.examples["files that no item of the source uses"] == (str(tmp_path / "images" / "c.png"),)


def coco(tmp_path, images, captions):
    draw(tmp_path / "images", "a.jpg", "b.jpg")
    contents = {
        "images": [{"id": id, "file_name": name} for id, name in images],
        "annotations": [{"id": id, "image_id": image, "caption": text} for id, image, text in captions],
    }
    write(tmp_path / "captions_train.json", json.dumps(contents))
    return tmp_path


def test_two_coco_images_with_one_id_are_refused(tmp_path):
    source = coco(tmp_path, [(1, "a.jpg"), (1, "b.jpg")], [(1, 1, "a dog")])
    with pytest.raises(CollectionError, match=r"images\[1\]: the id 1 of 'b\.jpg' is also the id of 'a'"):
        read_source("coco", source)
