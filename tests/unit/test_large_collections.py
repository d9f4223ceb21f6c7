"""Collections of any size: what reads their items holds a few chunks of them, never all."""

import gc

import lance
import pytest

from limner.data import collection as collections
from limner.data.collection import ITEMS, Collection, write_items
from limner.data.examples import Item, Sentence
from limner.data.stored_items import CHUNK_ITEMS
from limner.data.summary import summarise
from limner.errors import CollectionError

ROWS = 20_000
HELD = 3 * CHUNK_ITEMS
"""Items that may exist at once: a chunk that is read, one before it, and some."""


def many_items(rows=ROWS):
    for row in range(rows):
        split = "test" if row % 10 == 0 else "train"
        yield Item(f"{row:06d}", split, image=f"images/{row}.jpg", sentences=(Sentence("en", f"number {row}"),))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many") / "c"
    write_items(folder, many_items())
    return folder


def existing_items():
    return sum(type(one) is Item for one in gc.get_objects())


def held_while(items, every=9_500):
    """Largest number of items in memory while an iterator of items is read, and the number that it gave."""
    gc.collect()
    before, count, most = existing_items(), 0, 0
    for count, _ in enumerate(items, start=1):
        if count % every == 0:
            most = max(most, existing_items() - before)
    return most, count


@pytest.mark.parametrize("split", [None, "train"])
def test_items_are_read_in_chunks(path, split):
    most, count = held_while(Collection.open(path).iter_items(split))
    assert count == (ROWS if split is None else ROWS * 9 // 10)
    assert most <= HELD
    most, again = held_while(Collection.open(path, budget=1).items(split))
    assert again == count
    assert most <= HELD


def test_a_small_collection_is_read_once(path, monkeypatch):
    items = Collection.open(path).items()
    monkeypatch.setattr(lance.LanceDataset, "take", None)
    assert sum(1 for _ in items) == ROWS
    assert items[-1].id == f"{ROWS - 1:06d}"


def test_columns_are_read_alone(path, monkeypatch):
    read = []
    take = lance.LanceDataset.take

    def spy(self, rows, columns):
        read.append(columns)
        return take(self, rows, columns=columns)

    monkeypatch.setattr(lance.LanceDataset, "take", spy)
    first = next(Collection.open(path).iter_items(columns=["image"]))
    assert read == [["id", "split", "image"]]
    assert (first.image, first.sentences) == ("images/0.jpg", ())


def test_selections_and_access_by_index_hold_no_items(path):
    items = Collection.open(path, budget=1).items("train")
    even = items.select(lambda item: int(item.id) % 2 == 0)
    assert len(even) == sum(row % 10 != 0 and row % 2 == 0 for row in range(ROWS))
    most, _ = held_while((even[row] for row in range(0, len(even), 3)), every=2_000)
    assert most <= HELD
    assert [item.id for item in even[-2:]] == ["019996", "019998"]
    assert [item.image for item in even.media([5, 0, 5])] == [f"images/{row}.jpg" for row in (14, 2, 14)]
    with pytest.raises(IndexError):
        even[len(even)]


def test_counts_and_the_summary_hold_no_items(path, monkeypatch):
    monkeypatch.setattr(collections, "SCANNED_ROWS", 1_000)
    collection, seen = Collection.open(path), []
    assert collection.splits() == {"test": ROWS // 10, "train": ROWS * 9 // 10}
    make = collections.item_of_row

    def counting(row):
        if len(seen) % 9_500 == 0:
            seen.append(existing_items())
        else:
            seen.append(0)
        return make(row)

    gc.collect()
    before = existing_items()
    monkeypatch.setattr(collections, "item_of_row", counting)
    summary = summarise(collection)
    assert (summary.items, summary.sentences["test"]) == (ROWS, {"en": ROWS // 10})
    assert summary.missing == ROWS
    assert len(summary.missing_examples) == 3
    assert max(seen) - before <= HELD


def test_a_lost_row_of_a_large_collection_is_found(path, tmp_path):
    write_items(tmp_path / "c", many_items(2 * CHUNK_ITEMS))
    lance.dataset(str(tmp_path / "c" / ITEMS)).delete("id = '000003'")
    with pytest.raises(CollectionError, match="of 2,048 items can be read"):
        Collection.open(tmp_path / "c", budget=1).items()
