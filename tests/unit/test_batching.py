"""Order and size of batches, and the thread that prepares them in advance."""

import numpy as np
import pytest

from limner.data.batching import MAX_TOKENS_PER_EXAMPLE, bounded_batches, epoch_order, prefetch

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


def test_prefetch_raises_an_error_after_the_preceding_batches():
    def make(number):
        if number == 3:
            raise ValueError("the picture of item 3")
        return number

    got = []
    with pytest.raises(ValueError, match="the picture of item 3"):
        for value in prefetch(make, range(10), depth=8):
            got.append(value)
    assert got == [0, 1, 2]


@pytest.mark.parametrize("size", [1, 2, 8, 60])
@pytest.mark.parametrize("place", [0, 17, 40])
def test_a_long_sentence_makes_a_small_batch(size, place):
    """A long sentence gets a small batch, since padding costs memory; other batches are unaffected."""
    lengths = [3] * 40
    lengths.insert(place, 9000)
    batches = list(bounded_batches(range(41), lengths, size))
    assert [row for batch in batches for row in batch] == list(range(41))
    assert [place] in batches
    room = size * MAX_TOKENS_PER_EXAMPLE
    assert all(len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= room for batch in batches)
    assert max(map(len, batches)) == min(size, max(place, 40 - place))


def test_sentences_of_usual_length_fill_their_batches():
    lengths = [MAX_TOKENS_PER_EXAMPLE] * 10 + [MAX_TOKENS_PER_EXAMPLE * 2] * 3
    assert [len(batch) for batch in bounded_batches(range(13), lengths, 5)] == [5, 5, 2, 1]
    assert list(bounded_batches([], [], 5)) == []
