"""The order of batches, and the thread that makes them ahead of time."""

import threading
import time
from itertools import pairwise

import numpy as np
import pytest

from limner.data.batching import (
    MAX_TOKENS_PER_ROW,
    Examples,
    GenerationInput,
    SourceLanguage,
    cut,
    epoch_order,
    prefetch,
    split_examples,
)
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, Sentence
from limner.errors import CollectionError, FeatureError, TrainingError
from limner.features.sources import FeatureStore
from limner.text.vocab import TextSettings, Tokenizer

LENGTHS = np.random.default_rng(0).integers(1, 20, 103).tolist()


@pytest.mark.parametrize(("size", "bucket"), [(10, 1), (10, 4), (7, 100), (103, 1), (200, 2), (1, 1)])
def test_every_row_comes_once(size, bucket):
    batches = epoch_order(LENGTHS, size, bucket, seed=3, epoch=2)
    assert sorted(row for batch in batches for row in batch) == list(range(len(LENGTHS)))
    assert len(batches) == -(-len(LENGTHS) // size)
    assert all(len(batch) <= size for batch in batches)


def test_the_order_follows_from_seed_and_epoch():
    order = epoch_order(LENGTHS, 10, 4, seed=3, epoch=2)
    assert order == epoch_order(LENGTHS, 10, 4, seed=3, epoch=2)
    assert order != epoch_order(LENGTHS, 10, 4, seed=3, epoch=3)
    assert order != epoch_order(LENGTHS, 10, 4, seed=4, epoch=2)
    assert epoch_order(LENGTHS, 10, 4, seed=3, epoch=0) != epoch_order(LENGTHS, 10, 4, seed=0, epoch=3)


def test_one_bucket_sorts_everything_by_length():
    spans = []
    for batch in epoch_order(LENGTHS, 10, 100, seed=0, epoch=0):
        lengths = [LENGTHS[row] for row in batch]
        assert lengths == sorted(lengths)
        spans.append((lengths[0], lengths[-1]))
    ordered = sorted(spans)
    assert all(before[1] <= after[0] for before, after in pairwise(ordered))
    assert spans != ordered  # the batches themselves are shuffled


def test_buckets_save_padding():
    def padding(bucket):
        batches = epoch_order(LENGTHS, 10, bucket, seed=0, epoch=0)
        return sum(len(batch) * max(LENGTHS[row] for row in batch) for batch in batches) - sum(LENGTHS)

    assert padding(100) < padding(3) < padding(1)


def test_no_rows_no_batches():
    assert epoch_order([], 10, 4, seed=0, epoch=0) == []


def test_prefetch_keeps_the_order_and_works_in_a_thread():
    threads = []

    def make(number):
        threads.append(threading.current_thread())
        return number * number

    assert list(prefetch(make, range(50), depth=3)) == [n * n for n in range(50)]
    assert set(threads) != {threading.current_thread()}
    assert not threads[0].is_alive()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_prefetch_is_never_further_ahead_than_its_depth(depth):
    made, ahead = [], []
    for taken, _ in enumerate(prefetch(lambda n: made.append(n) or n, range(20), depth), start=1):
        time.sleep(0.005)  # time enough to run ahead
        ahead.append(len(made) - taken)
    assert max(ahead) == depth


def test_prefetch_raises_the_error_after_what_came_before_it():
    def make(number):
        if number == 3:
            raise ValueError("the picture of item 3")
        return number

    got = []
    with pytest.raises(ValueError, match="the picture of item 3"):
        for value in prefetch(make, range(10), depth=8):
            got.append(value)
    assert got == [0, 1, 2]


def test_prefetch_raises_what_goes_wrong_between_batches():
    def wanted():
        yield 1
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        list(prefetch(lambda n: n, wanted(), depth=2))


def test_prefetch_stops_when_it_is_left_early():
    made = []
    stream = prefetch(lambda n: made.append(n) or n, iter(int, 1), depth=2)  # would never end
    assert next(stream) == 0
    workers = [thread for thread in threading.enumerate() if thread.name == "limner-prefetch"]
    assert len(workers) == 1
    stream.close()
    assert not workers[0].is_alive()
    count = len(made)
    time.sleep(0.02)
    assert len(made) == count


ITEMS = [
    Item("a", "train", sentences=(Sentence("en", "one two three"), Sentence("de", "eins"))),
    Item("b", "train", sentences=(Sentence("de", "zwei"),)),
    Item("c", "train", sentences=(Sentence("en", "one"), Sentence("en", "one two three four"), Sentence("en", "two"))),
]


def examples(max_words=80):
    tokenizer = Tokenizer.train(["one two three four"], TextSettings())
    return Examples(ITEMS, tokenizer, "en", None, max_words), tokenizer


def test_examples_are_the_sentences_of_one_language():
    pairs, tokenizer = examples()
    assert pairs.texts == ["one two three", "one", "one two three four", "two"]
    assert pairs.owners == [0, 2, 2, 2]
    assert pairs.targets == [tokenizer.encode(text) for text in pairs.texts]
    assert pairs.batch([3, 0]).ids == ("c", "a")
    assert pairs.batch([3, 0]).target_mask.sum(1).tolist() == [2, 4]


def test_long_sentences_are_left_out_and_counted():
    pairs, _ = examples(max_words=3)
    assert (pairs.texts, pairs.owners, pairs.left_out) == (["one two three", "one", "two"], [0, 2, 2], 1)


def test_order_is_by_length_and_whole():
    pairs, _ = examples()
    assert pairs.order(3) == [[1, 3, 0], [2]]


@pytest.mark.parametrize("size", [1, 2, 8, 60])
@pytest.mark.parametrize("place", [0, 17, 40])
def test_a_long_sentence_makes_a_small_batch(size, place):
    """Padding to it would take the memory of many batches; all others are cut as if it were not there."""
    lengths = [3] * 40
    lengths.insert(place, 9000)
    batches = list(cut(range(41), lengths, size))
    assert [row for batch in batches for row in batch] == list(range(41))
    assert [place] in batches
    room = size * MAX_TOKENS_PER_ROW
    assert all(len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= room for batch in batches)
    assert max(map(len, batches)) == min(size, max(place, 40 - place))


def test_sentences_of_usual_length_fill_their_batches():
    lengths = [MAX_TOKENS_PER_ROW] * 10 + [MAX_TOKENS_PER_ROW * 2] * 3
    assert [len(batch) for batch in cut(range(13), lengths, 5)] == [5, 5, 2, 1]
    assert list(cut([], [], 5)) == []


def test_a_batch_to_score_is_bounded_by_both_languages():
    said = [Sentence("de", "eins", k) for k in range(6)]
    read = [Sentence("en", "one " * (3000 if k == 4 else 2), k) for k in range(6)]
    pairs = translated(items=[Item("i", "train", sentences=(*said, *read))], max_words=1 << 30)
    assert pairs.order(20) == [[0, 1, 2, 3, 5], [4]]


def test_pictures_give_what_is_stored(tiny):
    pictures = FeatureStore.open(tiny, ["colour", "pixels16"], 64)
    assert pictures.forms == {"pooled": (3,), "maps": (3, 16, 16)}
    shown, bare = tiny.items("test")[0], Item("bare", "test")
    first, second, third = pictures.take([shown, bare, shown])
    assert second is None
    np.testing.assert_array_equal(first["pooled"], pictures.tables[0].take([shown.id])[0])
    np.testing.assert_array_equal(third["maps"], first["maps"])
    assert pictures.knows(shown)
    assert pictures.knows(bare)
    assert not pictures.knows(Item("late", "test", image="late.png"))


def test_splits(tiny):
    tokenizer = Tokenizer.train(["a red wall"], TextSettings())
    german = split_examples(tiny, "val", tokenizer, "de", None, 80)
    assert (len(german), len(german.items)) == (8, 8)
    with pytest.raises(CollectionError, match="no items in split 'dev'; the splits are 'train'"):
        split_examples(tiny, "dev", tokenizer, "en", None, 80)
    with pytest.raises(TrainingError, match=r"'val' has no sentence in 'fr' \(.*: de, en\); train with data\.lang=de$"):
        split_examples(tiny, "val", tokenizer, "fr", None, 80)
    with pytest.raises(TrainingError, match=r"'val' has no sentence of at most 1 words in 'en' \(.*: de, en\)$"):
        split_examples(tiny, "val", tokenizer, "en", None, 1)


def test_pictures_without_features_are_left_out_when_asked(tiny, caplog) -> None:
    class Half:
        tables = ()

        def knows(self, item) -> bool:
            return item.id != kept[0].id

    kept = tiny.items("val")
    tokenizer = Tokenizer.train(["a"], TextSettings())
    with pytest.raises(FeatureError, match=kept[0].id):
        split_examples(tiny, "val", tokenizer, "en", Half(), 80)
    examples = split_examples(tiny, "val", tokenizer, "en", Half(), 80, leave_out=True)
    assert [item.id for item in examples.items] == [item.id for item in kept[1:]]
    assert (examples.without_features, examples.showing(None).without_features) == (1, 1)
    assert "1 pictures without features are left out" in caplog.text


MADE = "run:0123456789ab"
TRANSLATED = [
    Item("a", "train", sentences=(Sentence("en", "one two", 0), Sentence("de", "eins zwei drei", 0))),
    Item("b", "train", sentences=(Sentence("en", "two", 0), Sentence("de", "zwei", 1))),
    Item(
        "c",
        "train",
        sentences=(
            Sentence("en", "one", 5),
            Sentence("en", "four", 6),
            Sentence("de", "eins", 5),
            Sentence("de", "zwei eins", 5),
            Sentence("en", "three three", 7, MADE),
            Sentence("en", "four one", 5, MADE),
            Sentence("de", "drei", 7),
            Sentence("de", "vier", 6, MADE),
        ),
    ),
]


def translated(synthetic=0.0, items=TRANSLATED, max_words=80):
    english, german = (Tokenizer.train([text], TextSettings()) for text in ("one two three four", "eins zwei drei"))
    return Examples(items, german, "de", None, max_words, SourceLanguage("en", english, synthetic))


def read_and_said(examples):
    read = [examples.source.tokenizer.decode(source) for source in examples.sources]
    return list(zip(read, examples.texts, strict=True))


def test_examples_of_translation_are_the_pairs_of_a_group():
    pairs = translated()
    assert read_and_said(pairs) == [("one two", "eins zwei drei"), ("one", "eins"), ("one", "zwei eins")]
    assert (pairs.owners, pairs.synthetic) == ([0, 2, 2], [])
    batch = pairs.batch([2, 0])
    assert batch.ids == ("c", "a")
    assert batch.source.tolist() == [[*pairs.sources[2], 0], list(pairs.sources[0])]
    assert batch.source_mask.sum(1).tolist() == [1, 2]
    assert batch.target_mask.sum(1).tolist() == [3, 4]


def test_what_a_model_wrote_is_read_where_asked_for_and_never_said():
    pairs = translated(synthetic=0.5)
    everything = read_and_said(pairs)
    written = [("four one", "eins"), ("four one", "zwei eins"), ("three three", "drei")]
    assert [everything[row] for row in pairs.synthetic] == written
    assert len(everything) == 6
    assert "vier" not in pairs.texts


@pytest.mark.parametrize(("max_words", "texts", "left_out"), [(2, ["eins", "zwei eins"], 1), (1, ["eins"], 2)])
def test_a_pair_with_a_long_sentence_on_either_side_is_left_out(max_words, texts, left_out):
    pairs = translated(max_words=max_words)
    assert (pairs.texts, pairs.left_out) == (texts, left_out)
    other = Item("long", "train", sentences=(Sentence("en", "one " * 90), Sentence("de", "eins")))
    assert translated(items=[*TRANSLATED, other]).left_out == 1


def test_batches_are_sorted_by_both_lengths():
    said = [Sentence("de", "eins zwei", k) for k in range(4)]
    read = [Sentence("en", "one " * words, k) for k, words in enumerate((4, 1, 3, 2))]
    short = (Sentence("en", "one " * 9, 9), Sentence("de", "eins", 9))
    pairs = translated(items=[Item("i", "train", sentences=(*said, *read, *short))])
    assert pairs.lengths == [(2, 4), (2, 1), (2, 3), (2, 2), (1, 9)]
    assert pairs.order(2) == [[4, 1], [3, 2], [0]]


def of_both(people, written, synthetic):
    """So many pairs that people wrote, and after them those that begin with a sentence of a model."""
    sentences = [
        Sentence(lang, text, group, MADE if lang == "en" and group >= people else "")
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
    assert rows[:people] == list(range(people))
    assert len(rows) == len(set(rows)) == people + drawn
    assert set(rows[people:]) <= set(pairs.synthetic)


def test_the_synthetic_pairs_of_an_epoch_follow_from_seed_and_epoch():
    pairs = of_both(30, 300, 0.5)
    rows = pairs.epoch_rows(seed=1, epoch=3)
    assert rows == pairs.epoch_rows(seed=1, epoch=3)
    assert rows != pairs.epoch_rows(seed=1, epoch=4)
    assert rows != pairs.epoch_rows(seed=2, epoch=3)
    seen = {row for epoch in range(100) for row in pairs.epoch_rows(seed=1, epoch=epoch)}
    assert len(seen) == 330  # drawn anew, they all have their turn


def test_without_synthetic_pairs_an_epoch_is_everything():
    assert translated().epoch_rows(seed=1, epoch=0) == [0, 1, 2]
    assert examples()[0].epoch_rows(seed=1, epoch=0) == [0, 1, 2, 3]


def test_queries_are_what_people_wrote_with_every_reference():
    a, _, c = TRANSLATED
    expected = [GenerationInput(a, "one two", ("eins zwei drei",)), GenerationInput(c, "one", ("eins", "zwei eins"))]
    assert translated().queries() == expected
    assert translated(synthetic=0.5).queries() == expected
    assert translated(max_words=1).queries() == expected  # long sentences are not learned, but are translated


def test_queries_of_descriptions_are_the_items():
    first, _, last = ITEMS
    asked = [GenerationInput(item, None, tuple(item.texts("en"))) for item in ITEMS]
    assert examples()[0].queries() == asked
    assert (asked[0].references, len(asked[2].references)) == ((first.sentences[0].text,), len(last.sentences))


def test_splits_of_translation(tiny):
    english, german = (Tokenizer.train([text], TextSettings()) for text in ("look a red wall", "eine wand"))
    pairs = split_examples(tiny, "val", german, "de", None, 80, source=SourceLanguage("en", english))
    assert (len(pairs), len(pairs.items)) == (
        8,
        8,
    )  # the German sentence of each item is of the group of its second one
    assert all(text.startswith("look") for text, _ in read_and_said(pairs))
    with pytest.raises(
        TrainingError, match=r"'val' has no sentence in 'de' that translates one in 'fr' \(.*: de, en\)$"
    ):
        split_examples(tiny, "val", german, "de", None, 80, source=SourceLanguage("fr", english))


def test_a_split_that_a_model_translated_is_named_as_such(tmp_path):
    """It is not for learning from without a word, nor for validating on."""
    sentences = (Sentence("en", "one", 0, MADE), Sentence("de", "eins", 0))
    write_items(tmp_path, [Item("a", "val", sentences=sentences)])
    english, german = (Tokenizer.train([text], TextSettings()) for text in ("one", "eins"))
    collection = Collection.open(tmp_path)
    with pytest.raises(TrainingError, match=r"'val' has no .* in 'en' that people wrote; what a model wrote is left"):
        split_examples(collection, "val", german, "de", None, 80, source=SourceLanguage("en", english))
    assert (
        len(split_examples(collection, "val", german, "de", None, 80, source=SourceLanguage("en", english, 0.5))) == 1
    )
