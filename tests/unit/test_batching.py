"""The order of batches, and the thread that makes them ahead of time."""

import threading
import time
from itertools import pairwise

import numpy as np
import pytest

from limner.data.batching import Examples, Pictures, epoch_order, prefetch, split_examples
from limner.data.examples import Item, Sentence
from limner.errors import CollectionError, FeatureError, TrainingError
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


def test_pictures_give_what_is_stored(tiny):
    pictures = Pictures.open(tiny, ["colour", "pixels16"], 64)
    assert pictures.forms == {"vector": (3,), "maps": (3, 16, 16)}
    shown, bare = tiny.items("test")[0], Item("bare", "test")
    first, second, third = pictures.take([shown, bare, shown])
    assert second is None
    np.testing.assert_array_equal(first["vector"], pictures.tables[0].take([shown.id])[0])
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
    assert "1 pictures without features are left out" in caplog.text
