"""Batches of examples: hand-computed tensors."""

import numpy as np
import pytest
import torch

from limner.data.batching import MAX_TOKENS_PER_EXAMPLE, bounded_batches, epoch_order, prefetch
from limner.data.examples import Example, Item, ItemSentence, collate, collate_features
from limner.layers.image_encoder import ImageEncoder, ImageEncoderSettings
from limner.text.vocab import SPECIAL_TOKENS

PAD, BOS, EOS = SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos, SPECIAL_TOKENS.eos


def vector(*values):
    return {"pooled": np.array(values, dtype=np.float16)}


def test_targets_are_shifted_padded_and_masked():
    batch = collate([Example("a", [7, 8, 9]), Example("b", [5]), Example("c")])
    assert batch.ids == ("a", "b", "c")
    assert batch.target_in.tolist() == [[BOS, 7, 8, 9], [BOS, 5, PAD, PAD], [BOS, PAD, PAD, PAD]]
    assert batch.target_out.tolist() == [[7, 8, 9, EOS], [5, EOS, PAD, PAD], [EOS, PAD, PAD, PAD]]
    assert batch.target_mask.tolist() == [[True] * 4, [True, True, False, False], [True, False, False, False]]
    assert batch.source is None
    assert len(batch) == 3


def test_sources_have_no_special_tokens():
    batch = collate([Example("a", source=[4, 5]), Example("b", source=[6]), Example("c")])
    assert batch.source.tolist() == [[4, 5], [6, PAD], [PAD, PAD]]
    assert batch.source_mask.tolist() == [[True, True], [True, False], [False, False]]


def test_features_are_stacked_and_missing_ones_are_zero():
    image = collate_features([None, vector(1, 2), {"pooled": None}, vector(3, 4)])
    assert image.present.tolist() == [False, True, False, True]
    assert image.pooled.tolist() == [[0, 0], [1, 2], [0, 0], [3, 4]]
    assert image.pooled.dtype == torch.float32
    assert image.grid is None
    assert image.maps is None


@pytest.mark.parametrize("kinds", [{"pooled": (4,)}, {"grid": (3, 4)}, {"maps": (3, 16, 16)}], ids=str)
def test_a_batch_without_any_image_has_zero_features(kinds):
    encoder = ImageEncoder(kinds, ImageEncoderSettings(scaling="l2", convnet_width=4, convnet_dim=4))
    features = {kind: np.ones(shape, dtype=np.float16) for kind, shape in kinds.items()}
    assert encoder(collate_features([None, None])).tolist() == [[0.0] * 4] * 2
    assert encoder(collate_features([None, features]))[0].tolist() == [0.0] * 4
    assert list(encoder.state_dict()) == [name for name, _ in encoder.named_parameters()]


A, B, C = ItemSentence("en", "a", 0), ItemSentence("en", "b", 1), ItemSentence("en", "c", 1)
X, Y, Z = ItemSentence("de", "x", 1), ItemSentence("de", "y", 1), ItemSentence("de", "z", 2)
MADE = ItemSentence("en", "made", 2, generated_by="run:1")
MADE_X = ItemSentence("de", "made x", 0, generated_by="run:2")
SPOKEN = Item("i", "train", sentences=(A, B, X, C, Y, Z, MADE, MADE_X))


def test_sentences_of_one_group_translate_each_other():
    """Every human-written target sentence is paired with every source sentence of its group."""
    assert SPOKEN.pairs("en", "de") == [(B, X), (C, X), (B, Y), (C, Y), (MADE, Z)]
    assert SPOKEN.pairs("de", "en") == [(MADE_X, A), (X, B), (Y, B), (X, C), (Y, C)]
    assert SPOKEN.pairs("en", "fr") == SPOKEN.pairs("fr", "en") == []


def test_texts_exclude_model_generated_sentences():
    assert SPOKEN.texts("en") == ["a", "b", "c"]
    assert SPOKEN.texts("de") == ["x", "y", "z"]


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
